//! Objects of the interpreter's as messages to the backend.

use conch_python_ipc::MESSAGE_BYTES_MAX;
use conch_python_ipc::wire::{self, Correlation, MessageWriter, TensorPlace};

use crate::hooks::Hooks;
use crate::memory::{Part, StubMemory};
use crate::object::{Object, Python, Raised};
use crate::request_handle;
use crate::state;
use crate::tensor::{self, Tensor};

/// Tensors that take up so many bytes are copied while other threads run.
const DETACHED_BYTES: u64 = 64 << 10;

/// `TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`
const RELEASE_RESCHEDULE: i64 = 2;

/// A message whose tensors are collected on the way.
struct TensorMessage<'m> {
    memory: &'m StubMemory,
    kind: u8,
    writer: MessageWriter,
    parts: Vec<Part>,
    /// Where the next tensor lies, behind the message.
    end: u64,
    /// Memory that the message refers to, until it is done with.
    kept: Vec<Object>,
    /// Tensors lie on GPUs: they have to stay until the message is done with.
    has_device_tensors: bool,
}

impl<'m> TensorMessage<'m> {
    fn new(memory: &'m StubMemory, kind: u8) -> TensorMessage<'m> {
        TensorMessage {
            memory,
            kind,
            writer: MessageWriter::new(kind),
            parts: Vec::new(),
            end: 0,
            kept: Vec::new(),
            has_device_tensors: false,
        }
    }

    fn tensor(
        &mut self,
        py: Python,
        hooks: &Hooks,
        object: &Object,
        tensor: &Tensor,
    ) -> Result<(), Raised> {
        if !tensor.is_cpu() && tensor.bytes > 0 {
            return self.device_tensor(py, hooks, object, tensor);
        }
        let bytes = tensor.bytes as u64;
        // Tensors of the last command may stay where they are.
        let inside = match self.kind == wire::REPLY && bytes > 0 {
            true => self.memory.offset_in_command(tensor.address, bytes),
            false => None,
        };
        let place = match inside {
            Some(offset) => TensorPlace::Receivers(offset),
            None => TensorPlace::Behind(self.end),
        };
        let name = py.str_of(&tensor.name)?;
        self.writer
            .tensor(name, tensor.data_type, tensor.dims(), place, bytes);
        if inside.is_none() {
            self.add(py, tensor)?;
        }
        Ok(())
    }

    /// Outputs are read where they are; inputs of calls pass through main memory.
    fn device_tensor(
        &mut self,
        py: Python,
        hooks: &Hooks,
        object: &Object,
        tensor: &Tensor,
    ) -> Result<(), Raised> {
        let arguments = py.tuple([object.clone()])?;
        if self.kind == wire::INFER {
            let copy = py.call(&hooks.to_host, &arguments)?;
            self.kept.push(copy.clone());
            let made = tensor::of(py, &copy)?.filter(|made| made.is_cpu());
            let made = made.ok_or_else(|| py.raise_type("a Tensor is wanted"))?;
            return self.tensor(py, hooks, &copy, made);
        }
        let exported = py.call(&hooks.export_device, &arguments)?;
        let place = tensor::bytes_of(py, &py.item(&exported, 0)?)?;
        let (name, place) = (py.str_of(&tensor.name)?, TensorPlace::Device(&place));
        let bytes = tensor.bytes as u64;
        self.writer
            .tensor(name, tensor.data_type, tensor.dims(), place, bytes);
        self.kept.push(exported);
        self.has_device_tensors = true;
        Ok(())
    }

    fn add(&mut self, py: Python, tensor: &Tensor) -> Result<(), Raised> {
        let part = part_of(tensor);
        let room = part.room().and_then(|room| self.end.checked_add(room));
        self.end = room.ok_or_else(|| py.raise_memory("a tensor is too long"))?;
        self.parts.push(part);
        Ok(())
    }

    /// The tensors of a list, or those of them that are wanted.
    fn tensors(
        &mut self,
        py: Python,
        hooks: &Hooks,
        tensors: &Object,
        wanted: Option<&Object>,
    ) -> Result<(), Raised> {
        let at = self.writer.count_later();
        let mut count = 0;
        for index in 0..py.len(tensors)? {
            let object = py.item(tensors, index)?;
            let tensor = tensor::of(py, &object)?;
            let tensor = tensor.ok_or_else(|| py.raise_type("a Tensor is wanted"))?;
            let is_wanted = match wanted {
                Some(wanted) => py.contains(wanted, &tensor.name)?,
                None => true,
            };
            if is_wanted {
                count += 1;
                self.tensor(py, hooks, &object, tensor)?;
            }
        }
        self.writer.set_count(at, count);
        Ok(())
    }

    fn response(
        &mut self,
        py: Python,
        hooks: &Hooks,
        response: &Object,
        wanted: &Object,
    ) -> Result<(), Raised> {
        let names = &hooks.names;
        let error = py.attribute(response, &names.error)?;
        if !error.is_none() {
            let code = py.i64_of(&py.attribute(&error, &names.code)?)?;
            let message = py.attribute(&error, &names.message)?;
            self.writer.byte(1);
            self.writer.u32(u32::try_from(code).unwrap_or(0));
            self.writer.text(py.str_of(&message)?);
            return Ok(());
        }
        self.writer.byte(0);
        self.text(py, &py.attribute(response, &names.parameters)?)?;
        let outputs = py.attribute(response, &names.outputs)?;
        self.tensors(py, hooks, &outputs, Some(wanted))
    }

    fn text(&mut self, py: Python, text: &Object) -> Result<(), Raised> {
        self.writer.text(py.str_of(text)?);
        Ok(())
    }

    fn write(&self, py: Python) -> Result<u64, Raised> {
        write(py, self.memory, self.writer.bytes(), &self.parts)
    }
}

fn part_of(tensor: &Tensor) -> Part {
    // SAFETY: whoever made the tensor said that its bytes are readable as long as it lives, and
    // its object is referred to until the message is written.
    unsafe {
        Part::new(
            std::ptr::with_exposed_provenance(tensor.address),
            tensor.bytes,
        )
    }
}

/// The bytes of the tensors of a list.
pub(crate) fn parts(py: Python, tensors: &Object) -> Result<Vec<Part>, Raised> {
    (0..py.len(tensors)?)
        .map(|index| {
            let object = py.item(tensors, index)?;
            let tensor = tensor::of(py, &object)?;
            tensor
                .map(part_of)
                .ok_or_else(|| py.raise_type("a Tensor is wanted"))
        })
        .collect()
}

/// A block with a message; raises without room.
pub(crate) fn write(
    py: Python,
    memory: &StubMemory,
    message: &[u8],
    parts: &[Part],
) -> Result<u64, Raised> {
    if message.len() as u64 > MESSAGE_BYTES_MAX {
        return Err(py.raise_memory(&format!(
            "a message has {} bytes beside its tensors, more than {MESSAGE_BYTES_MAX}",
            message.len()
        )));
    }
    let bytes = parts.iter().filter_map(|part| part.room()).sum::<u64>();
    if bytes < DETACHED_BYTES
        && let Some(offset) = memory.write(message, parts)
    {
        return Ok(offset);
    }
    let written = py.detached(|| memory.write_waiting(message, parts));
    written.ok_or_else(|| {
        py.raise_memory(&format!(
            "the shared memory of the model has no room for {} bytes (shm-max-byte-size)",
            bytes.saturating_add(message.len() as u64)
        ))
    })
}

/// Answers the command to execute requests: each with its response, or as it is to be.
pub(crate) fn reply(
    py: Python,
    memory: &StubMemory,
    requests: &Object,
    responses: &Object,
) -> Result<(), Raised> {
    let hooks = state::hooks(py)?;
    let names = &hooks.names;
    let handle_type = &state::types()?.request_handle;
    let mut message = TensorMessage::new(memory, wire::REPLY);
    let count = py.len(requests)?;
    message.writer.u32(u32::try_from(count).unwrap_or(0));
    // Closed once the message is written: until then the requests may still fail.
    let mut answered = Vec::with_capacity(count);
    for index in 0..count {
        let (request, response) = (py.item(requests, index)?, py.item(responses, index)?);
        let flags = py.attribute(&request, &names.release_flags)?;
        let is_again = py.i64_of(&flags)? == RELEASE_RESCHEDULE;
        let sender = py.attribute(&request, &names.sender)?;
        if response.is_none() {
            match is_again {
                true => {
                    message.writer.byte(wire::ROW_AGAIN);
                    if !sender.is_none() {
                        py.call(&hooks.settle, &py.tuple([request.clone()])?)?;
                    }
                    answered.push((request, sender));
                }
                // Its sender answers it, or it is given up.
                false => message.writer.byte(wire::ROW_LATER),
            }
            continue;
        }
        if is_again || !sender.is_none() || !py.is_instance(&response, &hooks.response)? {
            let arguments = py.tuple([request.clone(), response.clone()])?;
            py.call(&hooks.check, &arguments)?;
        }
        message.writer.byte(wire::ROW_RESPONSE);
        let wanted = py.attribute(&request, &names.outputs)?;
        message.response(py, hooks, &response, &wanted)?;
        answered.push((request, sender));
    }
    let offset = message.write(py)?;
    for (request, sender) in &answered {
        if sender.is_none() {
            let request_handle = py.attribute(request, &names.request_handle)?;
            request_handle::close_object(py, handle_type, &request_handle)?;
        } else {
            py.call_method(request, &names.close)?;
        }
    }
    match message.has_device_tensors {
        true => py.detached(|| memory.reply_waiting(offset)),
        false => memory.reply(offset),
    }
    Ok(())
}

/// Posts a response of a request, or its end. Waits until the backend has it if tensors lie on
/// GPUs.
pub(crate) fn send(
    py: Python,
    memory: &StubMemory,
    request: &Object,
    response: &Object,
    flags: &Object,
) -> Result<(), Raised> {
    let hooks = state::hooks(py)?;
    let names = &hooks.names;
    let mut message = TensorMessage::new(memory, wire::SEND);
    let number = py.u64_of(&py.attribute(request, &names.handle)?)?;
    message.writer.u64(number);
    let flags = u32::try_from(py.i64_of(flags)?).unwrap_or(0);
    message.writer.u32(flags);
    message.writer.byte(u8::from(!response.is_none()));
    if !response.is_none() {
        let wanted = py.attribute(request, &names.outputs)?;
        message.response(py, hooks, response, &wanted)?;
    }
    let offset = message.write(py)?;
    match message.has_device_tensors {
        true => py.detached(|| {
            memory.call(offset);
        }),
        false => py.detached(|| memory.post(offset)),
    }
    Ok(())
}

/// A request to another model, as a message to post.
pub(crate) fn infer(
    py: Python,
    memory: &StubMemory,
    request: &Object,
    number: u64,
) -> Result<u64, Raised> {
    let hooks = state::hooks(py)?;
    let names = &hooks.names;
    let attribute = |name| py.attribute(request, name);
    let mut message = TensorMessage::new(memory, wire::INFER);
    message.writer.u64(number);
    message.text(py, &attribute(&names.model_name)?)?;
    let version = py.i64_of(&attribute(&names.model_version)?)?;
    message.writer.i64(version);
    message.text(py, &attribute(&names.id)?)?;
    let correlation = attribute(&names.correlation_id)?;
    match py.str_of(&correlation) {
        Ok(text) => message.writer.correlation(Correlation::Text(text)),
        Err(Raised) => {
            py.clear();
            let number = Correlation::Number(py.u64_of(&correlation)?);
            message.writer.correlation(number);
        }
    }
    let flags = py.u64_of(&attribute(&names.flags)?)?;
    message.writer.u32(u32::try_from(flags).unwrap_or(0));
    for name in [&names.timeout, &names.priority] {
        message.writer.u64(py.u64_of(&attribute(name)?)?);
    }
    let trace = py.attribute(&attribute(&names.trace)?, &names.handle)?;
    message.writer.u64(py.u64_of(&trace)?);
    message.text(py, &attribute(&names.parameters)?)?;
    let outputs = attribute(&names.outputs)?;
    let count = py.len(&outputs)?;
    message.writer.u32(u32::try_from(count).unwrap_or(0));
    for index in 0..count {
        message.text(py, &py.item(&outputs, index)?)?;
    }
    message.tensors(py, hooks, &attribute(&names.inputs)?, None)?;
    message.write(py)
}
