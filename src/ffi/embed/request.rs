//! A request in an embedder's hands: what `TRITONSERVER_InferenceRequest*` points to.
//!
//! Setters change what the next inference sends. They are called by one thread at a time and not
//! during an inference; only [`InferenceRequest::cancel`] and [`InferenceRequest::is_cancelled`]
//! may come from any thread. Data is not copied: it must stay until the release callback.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_abi as abi;
use conch_config::{DataType, Scheduling};
use conch_control::Server;
use conch_engine::clock::monotonic_ns;
use conch_engine::gpus::GpuHost;
use conch_engine::private_copy::to_private;
use conch_engine::request::messages::RequestIdPrefix;
use conch_engine::request::trace::Trace;
use conch_engine::threads::timer_thread::TimerThread;
use conch_engine::{
    Code, Completion, CorrelationId, Draft, DraftInput, Error, InlineOffer, ModelVersion,
    Parameter, ParameterValue, RequestHandle, RequestObserver, RequestPermits, RequestTarget,
    SequenceFlags, Shape, Timestamps, WeakRequestHandle,
};
use conch_memory::{Budget, ByteView, MemoryKind, MemoryPlace};
use smallvec::SmallVec;

use super::callbacks::EmbedderCallback;
use super::caller;
use super::embedded_request::{EmbeddedRequest, InputExtra, RequestAddress};
use super::placement::RequestAllocator;
use super::trace::CarriedTrace;
use crate::boundary::{HandleTag, handles};
use crate::objects::{BufferAttributes, BufferPlace, CudaIpcHandle};

handles! {
    TRITONSERVER_InferenceRequest => InferenceRequest, "request", tagged;
}

/// The target of `TRITONSERVER_InferenceRequest*`.
#[repr(C)]
pub(crate) struct InferenceRequest {
    tag: HandleTag<abi::TRITONSERVER_InferenceRequest>,
    model: Arc<ModelVersion>,
    /// As asked for: none is the latest that is ready.
    version: Option<i64>,
    pub(crate) id: CString,
    pub(crate) flags: u32,
    pub(crate) correlation_id: CorrelationText,
    priority: u64,
    pub(crate) timeout_us: u64,
    parameters: Vec<Parameter>,
    inputs: Vec<InputSlot>,
    /// The name of the input that is the whole body.
    raw_input: Option<String>,
    requested_outputs: Vec<String>,
    release: Option<EmbedderCallback<abi::TRITONSERVER_InferenceRequest>>,
    respond: Option<(
        RequestAllocator,
        EmbedderCallback<abi::TRITONSERVER_InferenceResponse>,
    )>,
    /// The last inference.
    run: Mutex<Option<Arc<RequestRun>>>,
}

/// A sequence's id, with the text as C wants it back.
pub(crate) enum CorrelationText {
    Unsigned(u64),
    Text(CString),
}

/// One inference of a request.
struct RequestRun {
    embedded: Weak<EmbeddedRequest>,
    handle: WeakRequestHandle,
    timer_thread: Arc<TimerThread>,
    is_cancelled: AtomicBool,
}

/// An inference that is ready. It is sent apart from its request: that may be released on another
/// thread, and deleted, before the call returns, so no reference to it may be an argument of the
/// call.
pub(crate) struct Submission {
    model: Arc<ModelVersion>,
    handle: RequestHandle,
}

impl Submission {
    /// Sends the request to its model, or executes it, where the model lets callers do that. After
    /// success it belongs to the server until its release callback, which may have come already.
    ///
    /// # Errors
    /// Why the model takes no request.
    pub(crate) fn submit(self) -> Result<(), Error> {
        let mut offer = InlineOffer::new(caller::may_execute(&self.model));
        let submitted = self.model.submit(self.handle, &mut offer);
        if let Some(turn) = offer.into_turn() {
            caller::execute(turn);
        }
        submitted
    }
}

/// One input as set.
struct InputSlot {
    name: String,
    /// The C API's number, which may be none.
    data_type: u32,
    shape: Shape,
    chunks: Vec<MemoryChunk>,
    policies: Vec<(String, Vec<MemoryChunk>)>,
}

/// A piece of the embedder's memory.
#[derive(Clone, Copy)]
pub(crate) struct MemoryChunk {
    pub(crate) base: *const c_void,
    pub(crate) length: usize,
    pub(crate) place: MemoryPlace,
    pub(crate) cuda_ipc_handle: Option<CudaIpcHandle>,
}

impl InferenceRequest {
    /// A request to `model`, which was found as `version`.
    pub(crate) fn new(model: Arc<ModelVersion>, version: Option<i64>) -> InferenceRequest {
        let mut request = InferenceRequest {
            tag: HandleTag::new(),
            model,
            version,
            id: CString::default(),
            flags: 0,
            correlation_id: CorrelationText::Unsigned(0),
            priority: 0,
            timeout_us: 0,
            parameters: Vec::new(),
            inputs: Vec::new(),
            raw_input: None,
            requested_outputs: Vec::new(),
            release: None,
            respond: None,
            run: Mutex::default(),
        };
        request.set_priority(0);
        request
    }

    pub(crate) fn priority(&self) -> u64 {
        self.priority
    }

    /// 0, and more than the model has levels: the model's default.
    pub(crate) fn set_priority(&mut self, priority: u64) {
        let (levels, default) = match &self.model.config.scheduling {
            Scheduling::Dynamic(settings) => {
                (settings.priority_levels, settings.default_priority_level)
            }
            _ => (0, 0),
        };
        self.priority = if (1..=levels).contains(&priority) {
            priority
        } else {
            default
        };
    }

    pub(crate) fn add_parameter(&mut self, name: &str, value: ParameterValue) {
        self.parameters.push(Parameter {
            name: name.into(),
            value,
        });
    }

    /// # Errors
    /// INVALID_ARG if it is there already.
    pub(crate) fn add_input(
        &mut self,
        name: &str,
        data_type: u32,
        shape: &[i64],
    ) -> Result<(), Error> {
        if self.inputs.iter().any(|input| input.name == name) {
            return Err(self.invalid(&format!("input '{name}' already exists in request")));
        }
        self.inputs.push(InputSlot {
            name: name.to_owned(),
            data_type,
            shape: Shape::from_slice(shape),
            chunks: Vec::new(),
            policies: Vec::new(),
        });
        Ok(())
    }

    /// # Errors
    /// INVALID_ARG beside other inputs.
    pub(crate) fn add_raw_input(&mut self, name: &str) -> Result<(), Error> {
        if !self.inputs.is_empty() {
            return Err(self.invalid(&format!(
                "raw input '{name}' can't be added to request with other inputs"
            )));
        }
        self.add_input(name, abi::TRITONSERVER_TYPE_INVALID, &[])?;
        self.raw_input = Some(name.to_owned());
        Ok(())
    }

    /// # Errors
    /// INVALID_ARG if there is none such.
    pub(crate) fn remove_input(&mut self, name: &str) -> Result<(), Error> {
        let Some(place) = self.inputs.iter().position(|input| input.name == name) else {
            return Err(self.no_input(name));
        };
        self.inputs.remove(place);
        if self.raw_input.as_deref() == Some(name) {
            self.raw_input = None;
        }
        Ok(())
    }

    pub(crate) fn remove_all_inputs(&mut self) {
        self.inputs.clear();
        self.raw_input = None;
    }

    /// Adds a piece to an input's data, for a host policy or for all. Empty pieces are left out.
    ///
    /// # Errors
    /// INVALID_ARG if there is no such input.
    pub(crate) fn append_data(
        &mut self,
        name: &str,
        chunk: MemoryChunk,
        policy: Option<&str>,
    ) -> Result<(), Error> {
        let Some(place) = self.inputs.iter().position(|input| input.name == name) else {
            return Err(self.no_input(name));
        };
        let input = &mut self.inputs[place];
        let chunks = match policy {
            None => &mut input.chunks,
            Some(policy) => {
                let known = input.policies.iter().position(|(known, _)| known == policy);
                let place = known.unwrap_or_else(|| {
                    input.policies.push((policy.to_owned(), Vec::new()));
                    input.policies.len() - 1
                });
                &mut input.policies[place].1
            }
        };
        if chunk.length > 0 {
            chunks.push(chunk);
        }
        Ok(())
    }

    /// # Errors
    /// INVALID_ARG if there is no such input.
    pub(crate) fn remove_all_data(&mut self, name: &str) -> Result<(), Error> {
        let Some(place) = self.inputs.iter().position(|input| input.name == name) else {
            return Err(self.no_input(name));
        };
        self.inputs[place].chunks.clear();
        self.inputs[place].policies.clear();
        Ok(())
    }

    /// # Errors
    /// INVALID_ARG if it is there already.
    pub(crate) fn add_requested_output(&mut self, name: &str) -> Result<(), Error> {
        if self.requested_outputs.iter().any(|known| known == name) {
            return Err(self.invalid(&format!("output '{name}' already exists in request")));
        }
        self.requested_outputs.push(name.to_owned());
        Ok(())
    }

    pub(crate) fn remove_requested_output(&mut self, name: &str) {
        self.requested_outputs.retain(|known| known != name);
    }

    pub(crate) fn remove_all_requested_outputs(&mut self) {
        self.requested_outputs.clear();
    }

    pub(crate) fn set_release(
        &mut self,
        callback: EmbedderCallback<abi::TRITONSERVER_InferenceRequest>,
    ) {
        self.release = Some(callback);
    }

    pub(crate) fn set_respond(
        &mut self,
        allocator: RequestAllocator,
        callback: EmbedderCallback<abi::TRITONSERVER_InferenceResponse>,
    ) {
        self.respond = Some((allocator, callback));
    }

    /// Asks for the inference to be given up.
    ///
    /// # Errors
    /// INTERNAL before the first inference.
    pub(crate) fn cancel(&self) -> Result<(), Error> {
        let run = self.last_run().ok_or_else(|| {
            Error::internal(
                "It is not possible to cancel an inference request before calling \
                 TRITONSERVER_InferAsync.",
            )
        })?;
        run.is_cancelled.store(true, Ordering::Relaxed);
        if let Some(handle) = run.handle.upgrade() {
            conch_engine::cancel(&handle).deliver_on(&run.timer_thread);
        }
        Ok(())
    }

    /// Whether someone asked for that.
    ///
    /// # Errors
    /// INTERNAL before the first inference.
    pub(crate) fn is_cancelled(&self) -> Result<bool, Error> {
        let run = self.last_run().ok_or_else(|| {
            Error::internal(
                "It is not possible to query cancellation status before calling \
                 TRITONSERVER_InferAsync.",
            )
        })?;
        Ok(run.is_cancelled.load(Ordering::Relaxed))
    }

    /// Makes the request ready to be sent to its model.
    ///
    /// # Errors
    /// INTERNAL while it belongs to the server. What does not agree with the model (the trace stays
    /// the caller's then), or why the model takes no request (the trace is released).
    ///
    /// # Safety
    /// `address` is this request's handle; `trace` is null or live and nobody else's; data and
    /// callbacks are as the header demands.
    pub(crate) unsafe fn prepare(
        &self,
        address: *mut abi::TRITONSERVER_InferenceRequest,
        server: &Arc<Server>,
        trace: *mut abi::TRITONSERVER_InferenceTrace,
    ) -> Result<Submission, Error> {
        if let Some(run) = self.last_run().filter(|run| run.is_held_by_backend()) {
            return Err(Error::internal(format!(
                "{}Invalid request state transition from {} to INITIALIZED",
                RequestIdPrefix(&self.id.to_string_lossy()),
                run.state()
            )));
        }
        let release = self.release.ok_or_else(|| missing("release"))?;
        let (allocator, respond) = self.respond.clone().ok_or_else(|| missing("response"))?;
        // SAFETY: by this function's contract.
        let carried = unsafe { CarriedTrace::carry(trace) };
        let id = self.id.to_string_lossy();
        let target = RequestTarget {
            model: &self.model,
            version: self.version,
            id: &id,
            tenant: None,
            correlation_id: &self.sequence(),
            sequence_flags: SequenceFlags::from_bits(self.flags),
            keeps_kind: false,
        };
        let permit = server.engine().enter(target, RequestPermits::default())?;
        let model = Arc::clone(&permit);
        if let Some(carried) = &carried {
            carried.trace().begin(&model, &self.id);
        }
        let embedded = Arc::new(EmbeddedRequest {
            request: RequestAddress(address),
            release,
            respond,
            allocator,
            id: self.id.clone(),
            model: Arc::clone(&model),
            trace: Mutex::new(carried.clone().map(|carried| Trace::new(carried))),
            // A raw input's bytes are rearranged, and it goes by the model's name.
            extras: match self.raw_input {
                Some(_) => Vec::new(),
                None => self.extras(),
            },
            is_released: AtomicBool::new(false),
            outbox: Mutex::default(),
        });
        let timestamps = Timestamps {
            request_start_ns: monotonic_ns(),
            ..Timestamps::default()
        };
        let completion = Arc::clone(&embedded) as Arc<dyn Completion>;
        let admitted = self
            .draft(
                server.budget(),
                Arc::clone(&embedded) as Arc<dyn RequestObserver>,
            )
            .and_then(|mut draft| {
                conch_engine::admission::admit(permit, &mut draft, &completion, 0, timestamps)
            });
        let handle = match admitted {
            Ok(handle) => handle,
            Err(error) => {
                if let Some(carried) = carried.filter(|_| error.code != Code::Unavailable) {
                    carried.return_to_maker();
                }
                return Err(error);
            }
        };
        *self.run() = Some(Arc::new(RequestRun {
            embedded: Arc::downgrade(&embedded),
            handle: Arc::downgrade(&handle),
            timer_thread: Arc::clone(server.timer_thread()),
            is_cancelled: AtomicBool::new(false),
        }));
        Ok(Submission { model, handle })
    }

    fn sequence(&self) -> CorrelationId {
        match &self.correlation_id {
            CorrelationText::Unsigned(number) => CorrelationId::Unsigned(*number),
            CorrelationText::Text(text) => {
                CorrelationId::Text(text.to_string_lossy().into_owned().into())
            }
        }
    }

    fn draft(
        &self,
        budget: &Arc<Budget>,
        observer: Arc<dyn RequestObserver>,
    ) -> Result<Draft<'_>, Error> {
        let mut draft = Draft {
            id: self.id.to_str().unwrap_or_default(),
            correlation_id: self.sequence(),
            sequence_flags: SequenceFlags::from_bits(self.flags),
            priority: self.priority,
            timeout_us: self.timeout_us,
            parameters: self.parameters.clone(),
            requested_outputs: self.requested_outputs.iter().map(String::as_str).collect(),
            is_raw: self.raw_input.is_some(),
            observer: Some(observer),
            ..Draft::default()
        };
        draft.features.budget = Some(Arc::clone(budget));
        for input in &self.inputs {
            let data_type = match DataType::from_number(input.data_type) {
                Some(data_type) => data_type,
                // Admission gives it type and shape.
                None if draft.is_raw => DataType::Uint8,
                None => return Err(self.no_type(&input.name)),
            };
            self.check_devices(input)?;
            let mut chunks: SmallVec<[ByteView; 1]> =
                input.chunks.iter().map(MemoryChunk::view).collect();
            if draft.is_raw {
                // Its bytes are rearranged on the host.
                for chunk in chunks.iter_mut().filter(|chunk| !chunk.place().is_host()) {
                    *chunk = to_private(chunk, draft.features.budget.as_ref())?;
                }
            }
            draft.inputs.push(DraftInput {
                name: &input.name,
                data_type,
                shape: input.shape.clone(),
                chunks,
            });
        }
        Ok(draft)
    }

    fn extras(&self) -> Vec<InputExtra> {
        let is_extra = |input: &&InputSlot| {
            let mut chunks = input.chunks.iter();
            !input.policies.is_empty() || chunks.any(|chunk| chunk.cuda_ipc_handle.is_some())
        };
        let extra = |input: &InputSlot| InputExtra {
            input: input.name.as_str().into(),
            policies: input
                .policies
                .iter()
                .map(|(policy, chunks)| {
                    let views: SmallVec<[ByteView; 1]> =
                        chunks.iter().map(MemoryChunk::view).collect();
                    (policy.as_str().into(), views)
                })
                .collect(),
            attributes: input
                .chunks
                .iter()
                .any(|chunk| chunk.cuda_ipc_handle.is_some())
                .then(|| input.chunks.iter().map(MemoryChunk::attributes).collect()),
        };
        self.inputs.iter().filter(is_extra).map(extra).collect()
    }

    /// Whether the GPUs are there on which an input's data lies.
    fn check_devices(&self, input: &InputSlot) -> Result<(), Error> {
        let policies = input.policies.iter().flat_map(|(_, chunks)| chunks);
        let mut chunks = input.chunks.iter().chain(policies);
        let is_absent = |chunk: &&MemoryChunk| {
            chunk.place.kind == MemoryKind::Gpu && !GpuHost::has(chunk.place.id)
        };
        let Some(chunk) = chunks.find(is_absent) else {
            return Ok(());
        };
        let (name, id) = (&input.name, chunk.place.id);
        Err(self.invalid(&format!(
            "data of input '{name}' lies in memory of GPU {id}, which the server does not have"
        )))
    }

    fn last_run(&self) -> Option<Arc<RequestRun>> {
        self.run().clone()
    }

    fn run(&self) -> MutexGuard<'_, Option<Arc<RequestRun>>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn invalid(&self, message: &str) -> Error {
        let id = self.id.to_string_lossy();
        Error::invalid(format!("{}{message}", RequestIdPrefix(&id)))
    }

    fn no_input(&self, name: &str) -> Error {
        self.invalid(&format!("input '{name}' does not exist in request"))
    }

    /// The words of admission for a type that is not the model's; this one is none at all.
    fn no_type(&self, name: &str) -> Error {
        let model = &self.model.name;
        match self
            .model
            .config
            .inputs
            .iter()
            .find(|spec| &*spec.name == name)
        {
            Some(spec) => self.invalid(&format!(
                "inference input '{name}' data-type is '<invalid>', but model '{model}' expects \
                 '{}'",
                spec.data_type.name()
            )),
            None => Error::invalid(format!(
                "unexpected inference input '{name}' for model '{model}'"
            )),
        }
    }
}

impl RequestRun {
    /// The release callback has not been called.
    fn is_held_by_backend(&self) -> bool {
        let embedded = self.embedded.upgrade();
        embedded.is_some_and(|embedded| !embedded.is_released())
    }

    /// Upstream's word for how far it is.
    fn state(&self) -> &'static str {
        match self.handle.upgrade() {
            Some(handle) if handle.is_queued() => "PENDING",
            _ => "EXECUTING",
        }
    }
}

impl MemoryChunk {
    fn view(&self) -> ByteView {
        // SAFETY: the embedder keeps the memory until the release callback, which comes after the
        // last use of the view.
        unsafe { ByteView::foreign(self.base.cast(), self.length, self.place, None) }
    }

    fn attributes(&self) -> BufferAttributes {
        BufferAttributes::from(BufferPlace {
            byte_size: self.length as u64,
            memory_type: self.place.kind as u32,
            memory_type_id: self.place.id,
            cuda_ipc_handle: self.cuda_ipc_handle,
        })
    }
}

fn missing(callback: &str) -> Error {
    Error::invalid(format!("the request has no {callback} callback"))
}
