//! Reports of backends on executions, responses and memory.

use std::sync::Arc;

use conch_abi as abi;
use conch_engine::model::stats::{ExecutionSpan, MemoryOwner, MemoryUsage, ResponseReport};
use conch_engine::request::batch_stages::note_span;
use conch_engine::request::trace::TraceActivity;
use conch_engine::{Error, ModelVersion};

use super::export;
use crate::boundary::{HandleTag, borrow, borrow_mut, delete, handles, slice, write_handle};
use crate::host::{BackendRequest, LoadedModel};
use crate::objects::kind_of;

handles! {
    TRITONBACKEND_ModelInstanceResponseStatistics
        => BackendResponseStatistics, "response statistics", tagged;
}

/// What a backend collects about one response before it reports it. Times are monotonic ns.
#[derive(Default)]
#[repr(C)]
pub(crate) struct BackendResponseStatistics {
    tag: HandleTag<abi::TRITONBACKEND_ModelInstanceResponseStatistics>,
    version: Option<Arc<ModelVersion>>,
    request: Option<Arc<BackendRequest>>,
    start_ns: u64,
    output_start_ns: u64,
    end_ns: u64,
    /// The code of the error that the response carries.
    error: Option<u32>,
}

impl BackendResponseStatistics {
    fn report(&self) -> ResponseReport {
        let BackendResponseStatistics {
            start_ns,
            output_start_ns,
            end_ns,
            ..
        } = *self;
        match self.error {
            Some(abi::TRITONSERVER_ERROR_CANCELLED) => {
                ResponseReport::Cancelled { start_ns, end_ns }
            }
            None if output_start_ns == 0 => ResponseReport::Empty { start_ns, end_ns },
            error => ResponseReport::Sent {
                success: error.is_none(),
                start_ns,
                output_start_ns,
                end_ns,
            },
        }
    }
}

/// Counts the memory that `owner` uses.
///
/// # Safety
/// `usage` has `usage_size` live attributes.
pub(super) unsafe fn report_memory(
    model: &LoadedModel,
    owner: MemoryOwner,
    usage: *mut *mut abi::TRITONSERVER_BufferAttributes,
    usage_size: u32,
) -> Result<(), Error> {
    let count = usize::try_from(usage_size).map_err(|_| Error::invalid("too many usages"))?;
    // SAFETY: by this function's contract.
    for attributes in unsafe { slice(usage.cast_const(), count, "usage") }? {
        // SAFETY: by this function's contract.
        let attributes = unsafe { borrow(*attributes) }?.load();
        let kind = kind_of(attributes.memory_type)?;
        let usage = MemoryUsage {
            kind,
            id: attributes.memory_type_id,
            bytes: attributes.byte_size,
        };
        model.report_memory(owner, usage);
    }
    Ok(())
}

export! {
    fn TRITONBACKEND_ModelInstanceReportMemoryUsage(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        usage: *mut *mut abi::TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) {
        let instance = borrow(instance)?;
        report_memory(instance.model(), instance.number(), usage, usage_size)
    }

    fn TRITONBACKEND_ModelInstanceReportStatistics(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        request: *mut abi::TRITONBACKEND_Request,
        success: bool,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) {
        let device_id = borrow(instance)?.gpu();
        let request = borrow(request)?;
        let executed = request.request()?;
        if executed.is_null {
            request.mark_reported();
            return Ok(());
        }
        let span = ExecutionSpan {
            exec_start_ns,
            compute_start_ns,
            compute_end_ns,
            exec_end_ns,
        };
        let origin = request.origin()?;
        executed.report_execution(&origin.model, device_id, success, &span);
        note_span(origin, &span);
        if let Some(trace) = request.trace() {
            trace.reach(TraceActivity::ComputeStart, exec_start_ns);
            trace.reach(TraceActivity::ComputeInputEnd, compute_start_ns);
            trace.reach(TraceActivity::ComputeOutputStart, compute_end_ns);
            trace.reach(TraceActivity::ComputeEnd, exec_end_ns);
        }
        request.mark_reported();
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        batch_size: u64,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) {
        let span = ExecutionSpan {
            exec_start_ns,
            compute_start_ns,
            compute_end_ns,
            exec_end_ns,
        };
        let instance = borrow(instance)?;
        if let Some(version) = instance.model().registered() {
            version.statistics.report_batch(instance.gpu(), batch_size, &span);
        }
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsNew(
        response_statistics: *mut *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        write_handle(
            response_statistics,
            Box::<BackendResponseStatistics>::default(),
        )
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        delete(response_statistics)
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
        model_instance: *mut abi::TRITONBACKEND_ModelInstance,
    ) {
        borrow_mut(response_statistics)?.version = borrow(model_instance)?.model().registered();
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
        response_factory: *mut abi::TRITONBACKEND_ResponseFactory,
    ) {
        borrow_mut(response_statistics)?.request =
            Some(Arc::clone(borrow(response_factory)?.sender.request()));
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
        response_start: u64,
    ) {
        borrow_mut(response_statistics)?.start_ns = response_start;
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
        compute_output_start: u64,
    ) {
        borrow_mut(response_statistics)?.output_start_ns = compute_output_start;
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
        response_end: u64,
    ) {
        borrow_mut(response_statistics)?.end_ns = response_end;
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
        error: *mut abi::TRITONSERVER_Error,
    ) {
        let code = if error.is_null() {
            None
        } else {
            Some(borrow(error)?.code)
        };
        borrow_mut(response_statistics)?.error = code;
        Ok(())
    }

    fn TRITONBACKEND_ModelInstanceReportResponseStatistics(
        response_statistics: *mut abi::TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        let statistics = borrow(response_statistics)?;
        let missing = |part: &str| Error::invalid(format!("response statistics have no {part}"));
        let version = statistics
            .version
            .as_ref()
            .ok_or_else(|| missing("model instance"))?;
        let request = statistics
            .request
            .as_ref()
            .ok_or_else(|| missing("response factory"))?;
        version
            .statistics
            .report_response(request.next_response_index(), statistics.report())
            .map_err(Error::internal)
    }
}
