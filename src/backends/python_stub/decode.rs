//! Messages of the backend's, as objects of the interpreter's.

use conch_python_ipc::wire::{self, Correlation, MessageReader, TensorPlace, TensorRow};

use crate::hooks::Hooks;
use crate::memory::StubMemory;
use crate::object::{Object, Python, Raised};
use crate::state::{self, malformed};
use crate::{block, request_handle, tensor};

/// A message with the object of its block.
struct Received {
    message: Vec<u8>,
    tensors_at: u64,
    block: Object,
}

fn receive(py: Python, memory: &StubMemory, offset: u64) -> Result<Received, Raised> {
    let block = block::new(py, &state::types()?.block, offset)?;
    let (message, tensors_at) = memory
        .message(offset)
        .ok_or_else(|| py.raise_memory("no memory for a message"))?;
    Ok(Received {
        message,
        tensors_at,
        block,
    })
}

/// A list of requests, or the text of another command.
pub(crate) fn command(py: Python, memory: &StubMemory, offset: u64) -> Result<Object, Raised> {
    let received = receive(py, memory, offset)?;
    match received.message.first() {
        Some(&wire::EXECUTE) => requests(py, memory, &received),
        _ => text(py, &received.message),
    }
}

/// The text of an answer; None if there is none.
pub(crate) fn answer(py: Python, memory: &StubMemory, offset: u64) -> Result<Object, Raised> {
    match offset {
        0 => Ok(py.none()),
        offset => text(py, &receive(py, memory, offset)?.message),
    }
}

fn text(py: Python, message: &[u8]) -> Result<Object, Raised> {
    let text = std::str::from_utf8(message).map_err(|_| py.raise("malformed message"))?;
    py.text(text)
}

fn requests(py: Python, memory: &StubMemory, received: &Received) -> Result<Object, Raised> {
    let hooks = state::hooks(py)?;
    let mut reader = MessageReader::new(&received.message);
    let mut tensors_end = received.tensors_at;
    let _kind = reader.byte();
    let count = reader.count().map_err(malformed(py))?;
    let made = py.list_of(
        (0..count).map(|_| request(py, hooks, memory, received, &mut reader, &mut tensors_end)),
    )?;
    memory.set_command_tensors(received.tensors_at, tensors_end);
    Ok(made)
}

fn request(
    py: Python,
    hooks: &Hooks,
    memory: &StubMemory,
    received: &Received,
    reader: &mut MessageReader<'_>,
    tensors_end: &mut u64,
) -> Result<Object, Raised> {
    let malformed = malformed(py);
    let names = &hooks.names;
    let request = py.allocated(&hooks.request, &hooks.no_arguments)?;
    let set = |name: &Object, value: &Object| py.set_attribute(&request, name, value);
    let number = reader.u64().map_err(&malformed)?;
    let handle = py.unsigned(number)?;
    set(&names.handle, &handle)?;
    set(
        &names.request_handle,
        &request_handle::new(py, &state::types()?.request_handle, number)?,
    )?;
    match reader.u32().map_err(&malformed)? {
        0 => {}
        flags => set(&names.flags, &py.number(i64::from(flags))?)?,
    }
    match reader.u64().map_err(&malformed)? {
        0 => {}
        timeout => set(&names.timeout, &py.unsigned(timeout)?)?,
    }
    match reader.text().map_err(&malformed)? {
        "" => {}
        id => set(&names.id, &py.text(id)?)?,
    }
    match reader.correlation().map_err(&malformed)? {
        Correlation::Number(0) => {}
        Correlation::Number(id) => set(&names.correlation_id, &py.unsigned(id)?)?,
        Correlation::Text(id) => set(&names.correlation_id, &py.text(id)?)?,
    }
    let is_traced = reader.flag().map_err(&malformed)?;
    let context = reader.text().map_err(&malformed)?;
    if is_traced {
        let arguments = py.tuple([handle, py.text(context)?])?;
        set(&names.trace, &py.call(&hooks.trace, &arguments)?)?;
    }
    match reader.text().map_err(&malformed)? {
        "" => {}
        parameters => set(&names.parameters, &py.text(parameters)?)?,
    }
    let count = reader.count().map_err(&malformed)?;
    let outputs = py.list_of((0..count).map(|_| {
        let name = reader.text().map_err(&malformed)?;
        py.text(name)
    }))?;
    set(&names.outputs, &outputs)?;
    let count = reader.count().map_err(&malformed)?;
    let inputs = py.list_of((0..count).map(|_| {
        let row = reader.tensor().map_err(&malformed)?;
        *tensors_end = (*tensors_end).max(end_of(&row, received.tensors_at));
        tensor_of(py, hooks, memory, received, &row)
    }))?;
    set(&names.inputs, &inputs)?;
    Ok(request)
}

fn end_of(row: &TensorRow<'_>, tensors_at: u64) -> u64 {
    match row.place {
        TensorPlace::Behind(offset) => tensors_at.saturating_add(offset).saturating_add(row.bytes),
        _ => 0,
    }
}

fn tensor_of(
    py: Python,
    hooks: &Hooks,
    memory: &StubMemory,
    received: &Received,
    row: &TensorRow<'_>,
) -> Result<Object, Raised> {
    let own;
    let (offset, owner) = match row.place {
        TensorPlace::Behind(offset) => (received.tensors_at + offset, &received.block),
        TensorPlace::Senders { block: 0, offset } => (offset, &received.block),
        TensorPlace::Senders { block, offset } => {
            own = block::new(py, &state::types()?.block, block)?;
            (offset, &own)
        }
        TensorPlace::Device(place) => return device_tensor(py, hooks, row, place),
        TensorPlace::Receivers(_) => return Err(py.raise("a tensor lies nowhere")),
    };
    let address = memory.requests_address() + usize::try_from(offset).unwrap_or(0);
    tensor::received(py, hooks, row, address, owner)
}

/// A tensor in memory of a GPU that the backend exports.
fn device_tensor(
    py: Python,
    hooks: &Hooks,
    row: &TensorRow<'_>,
    place: &[u8],
) -> Result<Object, Raised> {
    let shape: Result<Vec<Object>, Raised> = row.dims.iter().map(|dim| py.number(dim)).collect();
    let arguments = [
        py.text(row.name)?,
        py.number(i64::from(row.data_type))?,
        py.tuple_of(shape?.into_iter())?,
        py.unsigned(row.bytes)?,
        py.bytes(place)?,
    ];
    py.call(&hooks.received_on_device, &py.tuple(arguments)?)
}

/// What a called model sent.
pub(crate) struct Delivery {
    /// None at the end of a call that sends no more.
    pub(crate) response: Object,
    pub(crate) is_last: bool,
}

/// The answer to a call; raises if there is none.
pub(crate) fn delivery(py: Python, memory: &StubMemory, offset: u64) -> Result<Delivery, Raised> {
    if offset == 0 {
        return Err(py.raise_memory(
            "the shared memory of the model has no room for the answer (shm-max-byte-size)",
        ));
    }
    let hooks = state::hooks(py)?;
    let malformed = malformed(py);
    let received = receive(py, memory, offset)?;
    let mut reader = MessageReader::new(&received.message);
    let kind = reader.byte().map_err(&malformed)?;
    if kind != wire::DELIVERY {
        return Err(py.raise("malformed message"));
    }
    let is_last = reader.flag().map_err(&malformed)?;
    if !reader.flag().map_err(&malformed)? {
        let response = py.none();
        return Ok(Delivery { response, is_last });
    }
    let names = &hooks.names;
    let response = py.allocated(&hooks.response, &hooks.no_arguments)?;
    let set = |name: &Object, value: &Object| py.set_attribute(&response, name, value);
    let is_error = reader.flag().map_err(&malformed)?;
    if is_error {
        let code = reader.u32().map_err(&malformed)?;
        let message = py.text(reader.text().map_err(&malformed)?)?;
        let arguments = py.tuple([message, py.number(i64::from(code))?])?;
        set(&names.error, &py.call(&hooks.error, &arguments)?)?;
        set(&names.parameters, &py.text("")?)?;
        set(&names.outputs, &py.list_of([].into_iter())?)?;
        return Ok(Delivery { response, is_last });
    }
    set(&names.error, &py.none())?;
    let parameters = reader.text().map_err(&malformed)?;
    set(&names.parameters, &py.text(parameters)?)?;
    let count = reader.count().map_err(&malformed)?;
    let outputs = py.list_of((0..count).map(|_| {
        let row = reader.tensor().map_err(&malformed)?;
        tensor_of(py, hooks, memory, &received, &row)
    }))?;
    set(&names.outputs, &outputs)?;
    Ok(Delivery { response, is_last })
}
