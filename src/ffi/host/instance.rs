//! An instance of a model: what `TRITONBACKEND_ModelInstance*` points to, and the walk of a batch
//! through it.
//!
//! Created and dropped on its core's thread, executed there or by a thread in its place.

use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use conch_abi as abi;
use conch_config::InstanceKind;
use conch_engine::clock::monotonic_ns;
use conch_engine::request::batch_stages;
use conch_engine::{
    Batch, Error, Instance, InstanceSpec, PendingResponses, Progress, ReadinessCheck,
};
use conch_log as log;

use super::child_processes::ChildProcesses;
use super::execution;
use super::library::StreamExecution;
use super::model::LoadedModel;
use super::readiness_check::HookGuard;
use super::request::BackendRequest;
use crate::boundary::{HandleTag, as_handle, c_string, handles};
use crate::guard;
use crate::objects::JsonMessage;

handles! {
    TRITONBACKEND_ModelInstance => LoadedInstance, "model instance", tagged;
}

/// One initialised instance.
#[repr(C)]
pub(crate) struct LoadedInstance {
    tag: HandleTag<abi::TRITONBACKEND_ModelInstance>,
    spec: InstanceSpec,
    c_name: CString,
    c_profiles: Vec<CString>,
    c_secondary_devices: Vec<(CString, i64)>,
    /// Shared by all instances under this policy.
    host_policy: Arc<JsonMessage>,
    state: AtomicPtr<c_void>,
    model: Arc<LoadedModel>,
    /// Unique in the process, above 0: names it as the executor of a batch and as an owner of
    /// memory.
    number: u64,
}

impl LoadedInstance {
    pub(crate) fn spec(&self) -> &InstanceSpec {
        &self.spec
    }

    pub(crate) fn c_name(&self) -> &CString {
        &self.c_name
    }

    pub(crate) fn profiles(&self) -> &[CString] {
        &self.c_profiles
    }

    pub(crate) fn secondary_devices(&self) -> &[(CString, i64)] {
        &self.c_secondary_devices
    }

    pub(crate) fn host_policy(&self) -> &JsonMessage {
        &self.host_policy
    }

    pub(crate) fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }

    pub(crate) fn model(&self) -> &Arc<LoadedModel> {
        &self.model
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The ordinal of its device, if that is a GPU.
    pub(crate) fn gpu(&self) -> Option<i32> {
        (self.spec.kind == InstanceKind::Gpu).then_some(self.spec.device_id)
    }

    /// The number of its kind in the C API, whose order is not the configuration's.
    pub(crate) fn kind(&self) -> u32 {
        match self.spec.kind {
            InstanceKind::Cpu => abi::TRITONSERVER_INSTANCEGROUPKIND_CPU,
            InstanceKind::Gpu => abi::TRITONSERVER_INSTANCEGROUPKIND_GPU,
            InstanceKind::Model => abi::TRITONSERVER_INSTANCEGROUPKIND_MODEL,
        }
    }
}

impl Drop for LoadedInstance {
    fn drop(&mut self) {
        self.finalize();
        // Its version may serve on with others.
        if let Some(version) = self.model.registered() {
            version.statistics.forget_memory(self.number);
        }
    }
}

impl LoadedInstance {
    fn finalize(&self) {
        let Some(finalize) = self.model.backend().entry_points().instance_finalize else {
            return;
        };
        // SAFETY: the entry point of this instance's backend, with its handle, which is not
        // executing.
        if let Err(error) = unsafe {
            guard::call1(
                finalize,
                as_handle::<abi::TRITONBACKEND_ModelInstance>(self),
            )
        } {
            log::error!(
                "failed finalizing model instance '{}': {error}",
                self.spec.name
            );
        }
    }
}

/// The engine's side of an instance, with what its batches reuse.
pub(crate) struct InstanceHandle {
    /// First, so that it is dropped before the instance.
    hook_guard: Option<HookGuard>,
    /// Where the backend has no hook.
    child_processes: Option<Arc<ChildProcesses>>,
    /// The backend holds its address. Counted and not boxed, though nobody shares it: a box that
    /// moves promises that nobody else uses what is in it.
    loaded: Arc<LoadedInstance>,
    /// Shells of earlier requests, at most as many as were ever lent at once.
    spare: Vec<Arc<BackendRequest>>,
    source: Vec<Arc<BackendRequest>>,
    handles: RequestArray,
    /// How many batches it may have in flight; none: it blocks.
    depth_max: Option<NonZeroUsize>,
    /// The requests of batches in flight, in order.
    in_flight: VecDeque<Vec<Arc<BackendRequest>>>,
    /// Vectors of earlier batches.
    spare_batches: Vec<Vec<Arc<BackendRequest>>>,
}

/// The array that Execute receives, kept between batches for its capacity.
#[derive(Default)]
struct RequestArray(Vec<*mut abi::TRITONBACKEND_Request>);

// SAFETY: empty whenever the instance moves between threads: `execute`, `begin` and `enqueue` fill
// and clear it.
unsafe impl Send for RequestArray {}

impl RequestArray {
    /// The array and its length.
    fn as_arguments(&mut self) -> (&mut [*mut abi::TRITONBACKEND_Request], u32) {
        // Batches are bounded by max_batch_size, which is an i32 in the configuration.
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        (&mut self.0, count)
    }
}

impl InstanceHandle {
    /// Initialises an instance. Blocks as long as the backend does.
    ///
    /// # Errors
    /// What the backend returned.
    pub(crate) fn create(
        model: Arc<LoadedModel>,
        spec: InstanceSpec,
    ) -> Result<InstanceHandle, Error> {
        let loaded = Arc::new(LoadedInstance {
            tag: HandleTag::default(),
            c_name: c_string(&spec.name),
            c_profiles: spec
                .profiles
                .iter()
                .map(|profile| c_string(profile))
                .collect(),
            c_secondary_devices: spec
                .secondary_devices
                .iter()
                .map(|(kind, id)| (c_string(kind), *id))
                .collect(),
            host_policy: model.server().host_policy(&spec.host_policy),
            state: AtomicPtr::new(ptr::null_mut()),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            spec,
            model,
        });
        if let Some(initialize) = loaded.model.backend().entry_points().instance_initialize {
            // SAFETY: the entry point of this instance's backend, with its handle.
            unsafe {
                guard::call1(
                    initialize,
                    as_handle::<abi::TRITONBACKEND_ModelInstance>(&loaded),
                )
            }?;
        }
        let hook = loaded.model().backend().entry_points().ready;
        let handle = as_handle::<abi::TRITONBACKEND_ModelInstance>(&*loaded);
        let hook_guard = hook.map(|hook| HookGuard::on(hook, handle));
        let child_processes = match hook_guard {
            Some(_) => None,
            None => ChildProcesses::of_this_thread(&loaded.spec.name).map(Arc::new),
        };
        let depth_max = match loaded.model().backend().entry_points().streams {
            // SAFETY: this instance's entry point and handle, used by this thread alone.
            Some(streams) => unsafe {
                let depth = guard::batch_count(streams.depth_max, handle)?;
                NonZeroUsize::new(depth as usize)
            },
            None => None,
        };
        Ok(InstanceHandle {
            depth_max,
            in_flight: VecDeque::new(),
            spare_batches: Vec::new(),
            hook_guard,
            child_processes,
            loaded,
            spare: Vec::new(),
            source: Vec::new(),
            handles: RequestArray::default(),
        })
    }

    /// Turns the batch into handles that the backend owns.
    fn lend(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let facts = self.loaded.model.facts()?;
        batch_stages::note_executing(batch, &self.loaded.spec.name, monotonic_ns);
        for live in batch.drain(..) {
            let mut request = self.spare.pop().unwrap_or_default();
            let shell = Arc::get_mut(&mut request).expect("a shell has one holder");
            shell.lend(live, facts, self.loaded.number);
            self.handles
                .0
                .push(Arc::into_raw(Arc::clone(&request)).cast_mut().cast());
            self.source.push(request);
        }
        Ok(())
    }

    /// Keeps the shells of requests that came back.
    fn collect(&mut self) {
        keep_shells(&mut self.source, &mut self.spare);
        self.handles.0.clear();
    }

    fn streams(&self) -> Option<StreamExecution> {
        self.loaded.model.backend().entry_points().streams
    }
}

/// Makes shells of the requests that nobody holds any more.
fn keep_shells(source: &mut Vec<Arc<BackendRequest>>, spare: &mut Vec<Arc<BackendRequest>>) {
    for mut request in source.drain(..) {
        if let Some(shell) = Arc::get_mut(&mut request) {
            shell.reset();
            spare.push(request);
        }
    }
}

impl Instance for InstanceHandle {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        if !self.try_lend(batch, pending) {
            return;
        }
        let instance = as_handle::<abi::TRITONBACKEND_ModelInstance>(&*self.loaded);
        let function = self.loaded.model.backend().entry_points().execute;
        let (handles, count) = self.handles.as_arguments();
        let result = execution::run(self.loaded.number, pending, || {
            // SAFETY: this instance's entry point and handle, executed by this thread alone; each
            // handle is live and owns an `Arc`.
            unsafe { guard::execute(function, instance, handles, count) }
        });
        self.conclude(result, pending);
    }

    fn can_begin(&self) -> bool {
        let entry_points = self.loaded.model.backend().entry_points();
        // What lies on a GPU takes copies, which are waited for.
        entry_points.execute_open.is_some() && self.loaded.gpu().is_none()
    }

    fn begin(
        &mut self,
        batch: &mut Batch,
        pending: &mut PendingResponses,
        limit: Duration,
    ) -> Progress {
        let Some(functions) = self.loaded.model.backend().entry_points().execute_open else {
            self.execute(batch, pending);
            return Progress::Done;
        };
        if !self.try_lend(batch, pending) {
            return Progress::Done;
        }
        let instance = as_handle::<abi::TRITONBACKEND_ModelInstance>(&*self.loaded);
        let wait_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let (handles, count) = self.handles.as_arguments();
        let result = execution::run(self.loaded.number, pending, || {
            // SAFETY: as in `execute`.
            unsafe { guard::execute_begin(functions.begin, instance, handles, count, wait_ns) }
        });
        if let Ok(true) = result {
            self.handles.0.clear();
            return Progress::Open;
        }
        self.conclude(result.map(|_| ()), pending);
        Progress::Done
    }

    fn end(&mut self, pending: &mut PendingResponses) {
        let Some(functions) = self.loaded.model.backend().entry_points().execute_open else {
            return;
        };
        let instance = as_handle::<abi::TRITONBACKEND_ModelInstance>(&*self.loaded);
        let result = execution::run(self.loaded.number, pending, || {
            // SAFETY: this instance's entry point and handle, executed by this thread alone; it has
            // begun a batch and left it open.
            unsafe { guard::call1(functions.end, instance) }
        });
        self.conclude(result, pending);
    }

    fn depth_max(&self) -> Option<NonZeroUsize> {
        self.depth_max
    }

    fn enqueue(&mut self, batch: &mut Batch, pending: &mut PendingResponses) -> bool {
        let Some(streams) = self.streams() else {
            self.execute(batch, pending);
            return false;
        };
        if !self.try_lend(batch, pending) {
            return false;
        }
        let instance = as_handle::<abi::TRITONBACKEND_ModelInstance>(&*self.loaded);
        let (handles, count) = self.handles.as_arguments();
        let result = execution::run(self.loaded.number, pending, || {
            // SAFETY: as in `execute`, whose type this function has.
            unsafe { guard::execute(streams.enqueue, instance, handles, count) }
        });
        if result.is_err() {
            self.conclude(result, pending);
            return false;
        }
        self.handles.0.clear();
        let empty = self.spare_batches.pop().unwrap_or_default();
        self.in_flight
            .push_back(std::mem::replace(&mut self.source, empty));
        true
    }

    fn poll(&mut self, pending: &mut PendingResponses) -> Result<usize, Error> {
        let Some(streams) = self.streams() else {
            return Ok(0);
        };
        let instance = as_handle::<abi::TRITONBACKEND_ModelInstance>(&*self.loaded);
        let left = execution::run(self.loaded.number, pending, || {
            // SAFETY: this instance's entry point and handle, executed by this thread alone.
            unsafe { guard::batch_count(streams.poll, instance) }
        })?;
        while self.in_flight.len() > left as usize
            && let Some(mut ended) = self.in_flight.pop_front()
        {
            keep_shells(&mut ended, &mut self.spare);
            self.spare_batches.push(ended);
        }
        Ok(self.in_flight.len())
    }

    fn abandon(&mut self, error: &Error, pending: &mut PendingResponses) {
        for request in self.in_flight.iter().flatten() {
            request.abandon(error, pending);
        }
    }

    fn readiness_check(&self) -> Option<Arc<dyn ReadinessCheck>> {
        let child_processes =
            || Some(Arc::clone(self.child_processes.as_ref()?) as Arc<dyn ReadinessCheck>);
        self.hook_guard
            .as_ref()
            .map(HookGuard::readiness_check)
            .or_else(child_processes)
    }
}

impl InstanceHandle {
    /// Lends the batch, or answers its requests with what keeps it from that.
    fn try_lend(&mut self, batch: &mut Batch, pending: &mut PendingResponses) -> bool {
        let Err(error) = self.lend(batch) else {
            return true;
        };
        for live in batch.drain(..) {
            pending.push(live.shared(), Some(Err(error.clone())), true);
        }
        false
    }

    /// Takes back what an execution left, after its last call.
    fn conclude(&mut self, result: Result<(), Error>, pending: &mut PendingResponses) {
        if let Err(error) = result {
            let count = self.source.len();
            if let Ok(facts) = self.loaded.model.facts() {
                facts.log_limiter.tell(
                    monotonic_ns(),
                    format_args!(
                        "backend '{}' failed to execute {count} requests (instance '{}'): {error}",
                        facts.backend, self.loaded.spec.name
                    ),
                );
            }
            for request in &self.source {
                if request.recall(&error, pending) {
                    // SAFETY: the backend's `Arc`, made in `lend`; ownership of the handle returned
                    // with the error, once.
                    unsafe { Arc::decrement_strong_count(Arc::as_ptr(request)) };
                }
            }
        }
        self.collect();
    }
}

/// The next instance's number.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

// The thread of the readiness hook reaches the instance through exported functions while its core
// does.
const _: () = {
    const fn shared<T: Sync>() {}
    shared::<LoadedInstance>();
};
