//! Requests of a model to other models of the server.
//!
//! Inputs are read where they lie in the stub's segment (but for texts), and outputs are written
//! into ours: each is copied once, by the called model. A block of inputs goes back to the stub
//! when the server has released the request, whether its response came before or after.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_backend_sdk as sdk;
use conch_python_ipc::BlockHeader;
use conch_python_ipc::wire::{self, Malformed, MessageWriter, TensorPlace};
use sdk::{
    DataType, Error, MemoryPlace, OutputMemory, Server, ServerCall, ServerDelivery, ServerRequest,
    ServerResponse, TensorMemory, TraceParent,
};
use serde_json::{Map, Value};

use crate::call_text::{CallText, error_number};
use crate::child_request::InferMessage;
use crate::decode::check_sum;
use crate::encode::parameter;
use crate::process::{Reply, StubProcess};
use crate::shared_tensor;

/// Calls of decoupled models that one stub may have under way, and as many of others.
const CALLS_MAX: usize = 4096;

/// The calls of one stub.
pub(crate) struct Children {
    server: Server,
    /// Of decoupled models, by the stub's numbers.
    calls: Arc<Mutex<HashMap<u64, PendingCall>>>,
    /// Of others.
    once: Arc<Mutex<OneToOneCalls>>,
}

/// Calls with one response, by numbers of ours. None: the call is being made.
#[derive(Default)]
struct OneToOneCalls {
    last: u64,
    calls: HashMap<u64, Option<ServerCall>>,
}

/// A call of a decoupled model, whose responses the stub fetches.
#[derive(Default)]
struct PendingCall {
    call: Option<ServerCall>,
    /// Blocks of ours with responses, and whether each is the last.
    ready: VecDeque<u64>,
    /// The stub's message that waits for the next.
    waiting: Option<u64>,
}

impl Children {
    pub(crate) fn new(server: &Server) -> Children {
        Children {
            server: server.clone(),
            calls: Arc::default(),
            once: Arc::default(),
        }
    }

    /// Sends a request to another model. A one-to-one call is answered with the response; one of a
    /// decoupled model is known by the number that the stub gave it.
    pub(crate) fn infer(
        &self,
        process: &Arc<StubProcess>,
        mut message: Reply<'_>,
        trace: impl FnOnce(u64) -> Option<TraceParent>,
    ) -> Result<(), Malformed> {
        let text = std::mem::take(&mut message.text);
        let call = InferMessage::read(&text)?;
        let block = InputBlock::new(process, message);
        let mut request = self.request(process, &block, &call);
        if let (Ok(request), Some(parent)) = (&mut request, trace(call.trace))
            && let Err(error) = request.set_trace_parent(&parent)
        {
            sdk::verbose!("a call is not traced: {error}");
        }
        let model = call.model;
        match (request, call.number) {
            (Ok(request), 0) => self.call_once(process, model, block, request),
            (Ok(request), number) => self.begin_call(process, model, number, request),
            (Err(error), number) => {
                let error = Err(refusal(model, &error));
                match number {
                    0 => block.set_reply(write_outcome(process, error, true)),
                    number => self.fail_call(process, number, error),
                }
            }
        }
        Ok(())
    }

    fn call_once(
        &self,
        process: &Arc<StubProcess>,
        model: &str,
        block: Arc<InputBlock>,
        request: ServerRequest,
    ) {
        let Some(number) = self.add_once() else {
            let error = Err(too_many());
            return block.set_reply(write_outcome(process, error, true));
        };
        let process = Arc::clone(process);
        let model = model.to_owned();
        // One response is all that is wanted.
        let mut block = Some(block);
        let once = Arc::clone(&self.once);
        let call = self.server.infer(request, move |_, delivery| {
            let Some(block) = block.take() else { return };
            lock(&once).calls.remove(&number);
            let outcome = outcome_of(&model, delivery)
                .unwrap_or_else(|| Err(Error::internal("Unexpected empty response.")));
            block.set_reply(write_outcome(&process, outcome, true));
        });
        if let Some(made) = lock(&self.once).calls.get_mut(&number) {
            *made = Some(call);
        }
    }

    /// Takes a call in; none if there are too many.
    fn add_once(&self) -> Option<u64> {
        let mut once = lock(&self.once);
        if once.calls.len() >= CALLS_MAX {
            return None;
        }
        once.last += 1;
        let number = once.last;
        once.calls.insert(number, None);
        Some(number)
    }

    fn begin_call(
        &self,
        process: &Arc<StubProcess>,
        model: &str,
        number: u64,
        request: ServerRequest,
    ) {
        if !self.add_call(number) {
            return self.fail_call(process, number, Err(too_many()));
        }
        let calls = Arc::clone(&self.calls);
        let receiver = Arc::clone(process);
        let model = model.to_owned();
        let call = self.server.infer(request, move |_, delivery| {
            let is_final = delivery.is_final;
            let outcome = outcome_of(&model, delivery);
            deliver(&receiver, &calls, number, outcome, is_final);
        });
        if let Some(pending) = self.lock().get_mut(&number) {
            pending.call = Some(call);
        }
    }

    /// Takes a call in; false if there are too many, or the number is taken.
    fn add_call(&self, number: u64) -> bool {
        let mut calls = self.lock();
        if calls.len() >= CALLS_MAX || calls.contains_key(&number) {
            return false;
        }
        calls.insert(number, PendingCall::default());
        true
    }

    /// The call's only response is an error.
    fn fail_call(
        &self,
        process: &Arc<StubProcess>,
        number: u64,
        error: Result<ServerResponse, Error>,
    ) {
        // A stub that never fetches them has its last errors dropped.
        let mut calls = self.lock();
        if calls.len() < 2 * CALLS_MAX {
            calls.entry(number).or_default();
        }
        drop(calls);
        deliver(process, &self.calls, number, Some(error), true);
    }

    /// Answers with the next response of a call, once there is one.
    pub(crate) fn next(&self, process: &Arc<StubProcess>, message: Reply<'_>, number: u64) {
        let mut calls = self.lock();
        let Some(pending) = calls.get_mut(&number) else {
            drop(calls);
            let unknown = Err(Error::invalid("the call is over"));
            return message.answer(write_outcome(process, unknown, true));
        };
        match pending.ready.pop_front() {
            Some(block) => message.answer(block),
            None => pending.waiting = Some(message.defer()),
        }
    }

    /// Asks the called model to stop.
    pub(crate) fn cancel(&self, number: u64) {
        let call = self.lock().get(&number).and_then(|it| it.call.clone());
        if let Some(call) = call {
            let _ = call.cancel();
        }
    }

    /// The stub fetches no more of a call.
    pub(crate) fn drop_call(&self, number: u64) {
        let pending = self.lock().remove(&number);
        if let Some(call) = pending.and_then(|pending| pending.call) {
            let _ = call.cancel();
        }
    }

    /// The stub is gone.
    pub(crate) fn close(&self) {
        let left: Vec<PendingCall> = self.lock().drain().map(|(_, pending)| pending).collect();
        let once: Vec<ServerCall> = {
            let mut once = lock(&self.once);
            once.calls.drain().filter_map(|(_, call)| call).collect()
        };
        let left = left.into_iter().filter_map(|pending| pending.call);
        for call in left.chain(once) {
            let _ = call.cancel();
        }
    }

    fn request(
        &self,
        process: &Arc<StubProcess>,
        block: &Arc<InputBlock>,
        call: &InferMessage<'_>,
    ) -> Result<ServerRequest, Error> {
        let model = call.model;
        // Not whether it is ready: its hook would hold this thread up, and a model whose process is
        // being started takes requests.
        let Ok(is_decoupled) = self.server.is_model_decoupled(model, call.version) else {
            return Err(Error::internal(format!(
                "Failed for execute the inference request. Model '{model}' is not ready."
            )));
        };
        if call.number == 0 && is_decoupled {
            return Err(Error::internal(format!(
                "Model {model} is using the decoupled. The current BLS request call doesn't \
                 support models using the decoupled transaction policy. Please use \
                 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled \
                 models.'"
            )));
        }
        let mut request = call.request()?;
        request.set_output_memory(Arc::new(SegmentMemory {
            process: Arc::clone(process),
        }));
        check_sum(call.inputs.iter().map(|row| row.bytes), &process.responses)?;
        for row in &call.inputs {
            let name = row.name;
            let wrong = || Error::invalid(format!("input '{name}' is no tensor"));
            let data_type = DataType::from_number(row.data_type).ok_or_else(wrong)?;
            let TensorPlace::Behind(offset) = row.place else {
                return Err(wrong());
            };
            let at = block.tensors_at.checked_add(offset).ok_or_else(wrong)?;
            let memory = match data_type.element_bytes() {
                Some(_) => {
                    let owner = Arc::clone(block) as _;
                    shared_tensor::memory(&process.responses, at, row.bytes, owner)
                }
                // Whoever reads texts trusts their lengths after a look at them: the stub could
                // change them meanwhile.
                None => process
                    .responses
                    .read(at, row.bytes)
                    .map(TensorMemory::from),
            };
            let shape: Vec<i64> = row.dims.iter().collect();
            let name = CString::new(name).map_err(|_| wrong())?;
            request.add_input(&name, data_type, &shape, memory.ok_or_else(wrong)?);
        }
        Ok(request)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, PendingCall>> {
        lock(&self.calls)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn too_many() -> Error {
    Error::new(
        sdk::Code::Unavailable,
        format!("a model has at most {CALLS_MAX} calls under way"),
    )
}

pub(crate) fn flag(text: &CallText, name: &str) -> bool {
    let value = text.others.get(name).and_then(Value::as_bool);
    value.unwrap_or(false)
}

/// The error of a request that was not sent, in upstream's words.
fn refusal(model: &str, error: &Error) -> Error {
    Error::internal(format!(
        "Model {model} - Error when running inference: {error}"
    ))
}

/// What came back; none for an end without a response.
fn outcome_of(model: &str, delivery: ServerDelivery) -> Option<Result<ServerResponse, Error>> {
    let outcome = delivery.response?;
    Some(match delivery.is_unsent {
        true => outcome.map_err(|error| refusal(model, &error)),
        false => outcome,
    })
}

/// Hands a response to the stub's thread that waits for it, or keeps it.
fn deliver(
    process: &Arc<StubProcess>,
    calls: &Mutex<HashMap<u64, PendingCall>>,
    number: u64,
    outcome: Option<Result<ServerResponse, Error>>,
    is_final: bool,
) {
    let block = match outcome {
        Some(outcome) => write_outcome(process, outcome, is_final),
        // An end without a response is a response without outputs, as upstream has it.
        None => {
            let mut writer = begin_delivery(true, true);
            writer.byte(0);
            writer.text("");
            writer.u32(0);
            write_delivery(process, &writer, &[])
        }
    };
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    match calls.get_mut(&number) {
        Some(pending) => match pending.waiting.take() {
            Some(waiting) => process.answer_later(waiting, block),
            None => pending.ready.push_back(block),
        },
        // Nobody fetches it.
        None if block != 0 => process.blocks.give_back(block),
        None => {}
    }
}

/// A block with a response or an error; 0 without room for even that.
fn write_outcome(
    process: &StubProcess,
    outcome: Result<ServerResponse, Error>,
    is_final: bool,
) -> u64 {
    let mut writer = begin_delivery(is_final, true);
    let response = match outcome {
        Ok(response) => response,
        Err(error) => {
            writer.byte(1);
            writer.u32(error_number(error.code()));
            writer.text(error.message());
            return write_delivery(process, &writer, &[]);
        }
    };
    writer.byte(0);
    let parameters: Map<String, Value> = response
        .parameters
        .iter()
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                parameter(value.borrow()),
            )
        })
        .collect();
    match parameters.is_empty() {
        true => writer.text(""),
        false => writer.text(&Value::Object(parameters).to_string()),
    }
    let base = process.blocks.segment().base().addr();
    let mut lent = Vec::new();
    writer.u32(u32::try_from(response.outputs.len()).unwrap_or(0));
    for output in &response.outputs {
        let len = output.memory.len() as u64;
        let offset = output.memory.address().addr().wrapping_sub(base) as u64;
        let (block, offset) = match len {
            0 => (0, 0),
            _ => (offset.saturating_sub(BlockHeader::BYTES), offset),
        };
        if block != 0 {
            lent.push(block);
        }
        let name = output.name.to_string_lossy();
        let place = TensorPlace::Senders { block, offset };
        let data_type = output.data_type.number();
        writer.tensor(&name, data_type, &output.shape, place, len);
    }
    write_delivery(process, &writer, &lent)
}

/// The beginning of a message for the stub.
fn begin_delivery(is_final: bool, has_response: bool) -> MessageWriter {
    let mut writer = MessageWriter::new(wire::DELIVERY);
    writer.byte(u8::from(is_final));
    writer.byte(u8::from(has_response));
    writer
}

/// A block with a message; the stub gives the blocks of `outputs` back when it is done with them.
fn write_delivery(process: &StubProcess, writer: &MessageWriter, outputs: &[u64]) -> u64 {
    let Some((block, _)) = process.write(writer.bytes(), 0) else {
        return 0;
    };
    for output in outputs {
        process.keep_for_stub(*output);
    }
    block
}

/// The stub's block with the inputs of a call. It goes back when nothing refers to it: the server
/// released the request, and, for a one-to-one call, the reply is there.
pub(crate) struct InputBlock {
    process: Arc<StubProcess>,
    offset: u64,
    tensors_at: u64,
    reply: Mutex<u64>,
}

impl InputBlock {
    fn new(process: &Arc<StubProcess>, message: Reply<'_>) -> Arc<InputBlock> {
        let tensors_at = message.tensors_at;
        Arc::new(InputBlock {
            process: Arc::clone(process),
            offset: message.defer(),
            tensors_at,
            reply: Mutex::new(0),
        })
    }

    fn set_reply(&self, reply: u64) {
        *self.reply.lock().unwrap_or_else(PoisonError::into_inner) = reply;
    }
}

impl Drop for InputBlock {
    fn drop(&mut self) {
        let reply = *self.reply.lock().unwrap_or_else(PoisonError::into_inner);
        self.process.answer_later(self.offset, reply);
    }
}

/// Puts the outputs of called models into our segment, where the stub reads them.
struct SegmentMemory {
    process: Arc<StubProcess>,
}

impl OutputMemory for SegmentMemory {
    fn allocate(
        &self,
        name: &CStr,
        byte_count: usize,
        _preferred: MemoryPlace,
    ) -> Result<TensorMemory, Error> {
        let block = OutputBlock::new(&self.process, byte_count as u64);
        let block = block.ok_or_else(|| {
            Error::new(
                sdk::Code::Unavailable,
                format!(
                    "the shared memory of the calling model has no room for {byte_count} bytes of \
                     output '{}' (shm-max-byte-size)",
                    name.to_string_lossy()
                ),
            )
        })?;
        let at = block.offset + BlockHeader::BYTES;
        let segment = Arc::clone(self.process.blocks.segment());
        let memory = shared_tensor::memory(&segment, at, byte_count as u64, Arc::new(block));
        memory.ok_or_else(|| Error::internal("an output block lies outside"))
    }
}

/// A block of ours that a called model writes. It is given back with its last reference, unless the
/// stub was told of it: then by the stub.
struct OutputBlock {
    process: Arc<StubProcess>,
    offset: u64,
}

impl OutputBlock {
    fn new(process: &Arc<StubProcess>, len: u64) -> Option<OutputBlock> {
        let offset = process.blocks.take(BlockHeader::BYTES.checked_add(len)?)?;
        BlockHeader::at(process.blocks.segment(), offset)?.begin(0);
        Some(OutputBlock {
            process: Arc::clone(process),
            offset,
        })
    }
}

impl Drop for OutputBlock {
    fn drop(&mut self) {
        self.process.release_output(self.offset);
    }
}
