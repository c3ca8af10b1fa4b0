//! Metric families of plug-ins and embedders.

use std::ffi::c_char;

use conch_abi as abi;
use conch_control::metrics::{Family, FamilyKind, Metric};
use conch_engine::Error;

use super::export;
use crate::boundary::{
    HandleTag, borrow, borrow_mut, delete, handles, lossy_text, slice, text, write, write_handle,
};
use crate::objects::NamedValue;

/// What a metric is made with beyond its labels.
#[derive(Default)]
#[repr(C)]
pub(crate) struct MetricArguments {
    tag: HandleTag<abi::TRITONSERVER_MetricArgs>,
    /// Upper bounds of a histogram's buckets, once set.
    bounds: Option<Vec<f64>>,
}

handles! {
    TRITONSERVER_MetricFamily => FamilyHandle, "metric family", tagged;
    TRITONSERVER_Metric => MetricHandle, "metric", tagged;
    TRITONSERVER_MetricArgs => MetricArguments, "metric arguments", tagged;
}

#[repr(C)]
pub(crate) struct FamilyHandle {
    tag: HandleTag<abi::TRITONSERVER_MetricFamily>,
    family: Family,
}

#[repr(C)]
pub(crate) struct MetricHandle {
    tag: HandleTag<abi::TRITONSERVER_Metric>,
    metric: Metric,
}

fn number_of(kind: FamilyKind) -> abi::TRITONSERVER_MetricKind {
    match kind {
        FamilyKind::Counter => abi::TRITONSERVER_METRIC_KIND_COUNTER,
        FamilyKind::Gauge => abi::TRITONSERVER_METRIC_KIND_GAUGE,
        FamilyKind::Histogram => abi::TRITONSERVER_METRIC_KIND_HISTOGRAM,
    }
}

/// # Safety
/// As of `TRITONSERVER_MetricNewWithArgs`, whose arguments these are.
unsafe fn new_metric(
    metric: *mut *mut abi::TRITONSERVER_Metric,
    family: *mut abi::TRITONSERVER_MetricFamily,
    labels: *mut *const abi::TRITONSERVER_Parameter,
    label_count: u64,
    bounds: Option<&[f64]>,
) -> Result<(), Error> {
    let count = usize::try_from(label_count).map_err(|_| Error::invalid("too many labels"))?;
    let mut pairs = Vec::with_capacity(count.min(64));
    // SAFETY: `labels` has `label_count` parameters by this function's contract.
    for label in unsafe { slice(labels.cast_const(), count, "labels") }? {
        // SAFETY: live by this function's contract.
        let parameter = unsafe { borrow(*label) }?;
        let name = parameter.name.to_string_lossy().into_owned();
        let NamedValue::Text(value) = &parameter.value else {
            return Err(Error::invalid(format!(
                "Parameter [{name}] must have a type of TRITONSERVER_PARAMETER_STRING to be added \
                 as a label."
            )));
        };
        pairs.push((name, value.to_string_lossy().into_owned()));
    }
    // SAFETY: live and writable by this function's contract.
    unsafe {
        let made = borrow(family)?.family.metric(&pairs, bounds)?;
        write_handle(
            metric,
            Box::new(MetricHandle {
                tag: HandleTag::new(),
                metric: made,
            }),
        )
    }
}

export! {
    fn TRITONSERVER_MetricFamilyNew(
        family: *mut *mut abi::TRITONSERVER_MetricFamily,
        kind: abi::TRITONSERVER_MetricKind,
        name: *const c_char,
        description: *const c_char,
    ) {
        let kind = match kind {
            abi::TRITONSERVER_METRIC_KIND_COUNTER => FamilyKind::Counter,
            abi::TRITONSERVER_METRIC_KIND_GAUGE => FamilyKind::Gauge,
            abi::TRITONSERVER_METRIC_KIND_HISTOGRAM => FamilyKind::Histogram,
            _ => {
                return Err(Error::invalid(
                    "Unsupported kind passed to MetricFamily constructor.",
                ));
            }
        };
        let opened = Family::open(kind, text(name, "name")?, &lossy_text(description))?;
        write_handle(
            family,
            Box::new(FamilyHandle {
                tag: HandleTag::new(),
                family: opened,
            }),
        )
    }

    fn TRITONSERVER_MetricFamilyDelete(family: *mut abi::TRITONSERVER_MetricFamily) {
        if !family.is_null() && borrow(family)?.family.metric_count() > 0 {
            // The caller keeps the handle.
            return Err(Error::internal(
                "Must call MetricDelete on all dependent metrics before calling \
                 MetricFamilyDelete.",
            ));
        }
        delete(family)
    }

    fn TRITONSERVER_GetMetricFamilyKind(
        family: *mut abi::TRITONSERVER_MetricFamily,
        kind: *mut abi::TRITONSERVER_MetricKind,
    ) {
        write(kind, number_of(borrow(family)?.family.kind()))
    }

    fn TRITONSERVER_MetricArgsNew(args: *mut *mut abi::TRITONSERVER_MetricArgs) {
        write_handle(args, Box::<MetricArguments>::default())
    }

    fn TRITONSERVER_MetricArgsSetHistogram(
        args: *mut abi::TRITONSERVER_MetricArgs,
        buckets: *const f64,
        buckets_count: u64,
    ) {
        let count =
            usize::try_from(buckets_count).map_err(|_| Error::invalid("too many buckets"))?;
        borrow_mut(args)?.bounds = Some(slice(buckets, count, "buckets")?.to_vec());
        Ok(())
    }

    fn TRITONSERVER_MetricArgsDelete(args: *mut abi::TRITONSERVER_MetricArgs) {
        delete(args)
    }

    fn TRITONSERVER_MetricNew(
        metric: *mut *mut abi::TRITONSERVER_Metric,
        family: *mut abi::TRITONSERVER_MetricFamily,
        labels: *mut *const abi::TRITONSERVER_Parameter,
        label_count: u64,
    ) {
        new_metric(metric, family, labels, label_count, None)
    }

    fn TRITONSERVER_MetricNewWithArgs(
        metric: *mut *mut abi::TRITONSERVER_Metric,
        family: *mut abi::TRITONSERVER_MetricFamily,
        labels: *mut *const abi::TRITONSERVER_Parameter,
        label_count: u64,
        args: *const abi::TRITONSERVER_MetricArgs,
    ) {
        let bounds = if args.is_null() {
            None
        } else {
            let bounds = borrow(args)?.bounds.as_deref();
            Some(bounds.ok_or_else(|| Error::invalid("Metric args not set to histogram kind."))?)
        };
        new_metric(metric, family, labels, label_count, bounds)
    }

    fn TRITONSERVER_MetricDelete(metric: *mut abi::TRITONSERVER_Metric) {
        delete(metric)
    }

    fn TRITONSERVER_MetricValue(metric: *mut abi::TRITONSERVER_Metric, value: *mut f64) {
        write(value, borrow(metric)?.metric.value()?)
    }

    fn TRITONSERVER_MetricIncrement(metric: *mut abi::TRITONSERVER_Metric, value: f64) {
        borrow(metric)?.metric.increment(value)
    }

    fn TRITONSERVER_MetricSet(metric: *mut abi::TRITONSERVER_Metric, value: f64) {
        borrow(metric)?.metric.set(value)
    }

    fn TRITONSERVER_MetricObserve(metric: *mut abi::TRITONSERVER_Metric, value: f64) {
        borrow(metric)?.metric.observe(value)
    }

    fn TRITONSERVER_GetMetricKind(
        metric: *mut abi::TRITONSERVER_Metric,
        kind: *mut abi::TRITONSERVER_MetricKind,
    ) {
        write(kind, number_of(borrow(metric)?.metric.kind()))
    }
}
