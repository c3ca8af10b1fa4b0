//! What Python calls: a dict of functions and types, made once.

use std::ffi::CStr;
use std::ptr;
use std::sync::OnceLock;

use crate::ffi::{self, MethodDefinition, Pointer};
use crate::hooks::Hooks;
use crate::object::{Object, Python, Raised};
use crate::state::{self, Shared, Types, connected, result};
use crate::{block, decode, encode, request_handle, tensor, types};

static MODULE: OnceLock<Shared<Object>> = OnceLock::new();

/// The dict of functions and types. `head_bytes` is `object.__basicsize__`.
pub(crate) fn module(py: Python, head_bytes: usize) -> Result<Object, Raised> {
    if let Some(module) = MODULE.get() {
        return Ok(module.0.clone());
    }
    types::set_head_bytes(head_bytes);
    let made = Types {
        block: block::make_type(py)?,
        request_handle: request_handle::make_type(py)?,
        tensor: tensor::make_type(py)?,
    };
    let module = py.dict()?;
    py.insert(&module, c"TensorBase", &made.tensor)?;
    for (name, function) in FUNCTIONS {
        let definition = Box::leak(Box::new(MethodDefinition {
            name: name.as_ptr(),
            function: Some(*function),
            flags: ffi::METH_FASTCALL,
            doc: ptr::null(),
        }));
        // SAFETY: the definition lives as long as the process.
        let function = unsafe {
            py.made(ffi::PyCFunction_NewEx(
                definition,
                ptr::null_mut(),
                ptr::null_mut(),
            ))
        };
        py.insert(&module, name, &function?)?;
    }
    // Of several threads the first one's is taken; the import system lets only one through.
    state::set_types(made);
    let _ = MODULE.set(Shared(module.clone()));
    Ok(module)
}

const FUNCTIONS: &[(&CStr, ffi::FastFunction)] = &[
    (c"configure", configure),
    (c"tensor_at", tensor_at),
    (c"next", next),
    (c"reply", reply),
    (c"reply_requests", reply_requests),
    (c"post", post),
    (c"call", call),
    (c"send", send),
    (c"infer", infer),
    (c"fetch", fetch),
];

/// A function of the module: from its arguments to what it returns.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($py:ident, $arguments:ident) $body:block)*) => { $(
        $(#[$doc])*
        unsafe extern "C" fn $name(_: Pointer, arguments: *const Pointer, count: isize) -> Pointer {
            fn run($py: Python, $arguments: &[Object]) -> Result<Object, Raised> $body
            // SAFETY: the interpreter calls it, with that many arguments.
            let (py, arguments) = unsafe { (Python::attached(), borrowed(arguments, count)) };
            result(run(py, &arguments))
        }
    )* };
}

/// # Safety
/// There are that many, and they live.
unsafe fn borrowed(arguments: *const Pointer, count: isize) -> Vec<Object> {
    let count = usize::try_from(count).unwrap_or(0);
    (0..count)
        // SAFETY: by this function's contract.
        .filter_map(|index| unsafe { Object::borrowed(*arguments.add(index)) })
        .collect()
}

fn one<const N: usize>(py: Python, arguments: &[Object]) -> Result<&[Object; N], Raised> {
    arguments
        .try_into()
        .map_err(|_| py.raise_type(&format!("{N} arguments are wanted")))
}

functions! {
    /// `configure(hooks)`.
    fn configure(py, arguments) {
        let [given] = one(py, arguments)?;
        state::set_hooks(Hooks::new(py, given)?);
        Ok(py.none())
    }

    fn tensor_at(py, arguments) {
        tensor::at(py, arguments)
    }

    /// `next()`: blocks until there is a command. A list of requests to execute, or the text of
    /// another command.
    fn next(py, _arguments) {
        let memory = connected(py)?;
        let offset = py.detached(|| memory.next());
        decode::command(py, memory, offset)
    }

    /// `reply(text)`: answers a command that is not to execute requests.
    fn reply(py, arguments) {
        let [text] = one(py, arguments)?;
        let memory = connected(py)?;
        let offset = encode::write(py, memory, py.str_of(text)?.as_bytes(), &[])?;
        memory.reply(offset);
        Ok(py.none())
    }

    /// `reply_requests(requests, responses)`: answers the command to execute requests.
    fn reply_requests(py, arguments) {
        let [requests, responses] = one(py, arguments)?;
        encode::reply(py, connected(py)?, requests, responses)?;
        Ok(py.none())
    }

    /// `post(text)`: sends what needs no answer.
    fn post(py, arguments) {
        let [text] = one(py, arguments)?;
        let memory = connected(py)?;
        let offset = encode::write(py, memory, py.str_of(text)?.as_bytes(), &[])?;
        py.detached(|| memory.post(offset));
        Ok(py.none())
    }

    /// `call(text, tensors)`: sends a text, with the bytes of tensors behind it in this order, and
    /// waits for the answer's text; None if there is none.
    fn call(py, arguments) {
        let [text, tensors] = one(py, arguments)?;
        let memory = connected(py)?;
        let parts = encode::parts(py, tensors)?;
        let offset = encode::write(py, memory, py.str_of(text)?.as_bytes(), &parts)?;
        let answer = py.detached(|| memory.call(offset));
        decode::answer(py, memory, answer)
    }

    /// `send(request, response, flags)`: sends a response of a request, or its end.
    fn send(py, arguments) {
        let [request, response, flags] = one(py, arguments)?;
        let memory = connected(py)?;
        encode::send(py, memory, request, response, flags)?;
        Ok(py.none())
    }

    /// `infer(request, number)`: sends a request to another model. With the number 0 the response;
    /// else None, and the responses are fetched by the number.
    fn infer(py, arguments) {
        let [request, number] = one(py, arguments)?;
        let memory = connected(py)?;
        let number = py.u64_of(number)?;
        let offset = encode::infer(py, memory, request, number)?;
        if number != 0 {
            py.detached(|| memory.post(offset));
            return Ok(py.none());
        }
        let answer = py.detached(|| memory.call(offset));
        Ok(decode::delivery(py, memory, answer)?.response)
    }

    /// `fetch(number)`: the next response of a call (or None), and whether it is the last.
    fn fetch(py, arguments) {
        let [number] = one(py, arguments)?;
        let memory = connected(py)?;
        let text = format!(r#"{{"k":"next","h":{}}}"#, py.u64_of(number)?);
        let offset = encode::write(py, memory, text.as_bytes(), &[])?;
        let answer = py.detached(|| memory.call(offset));
        let delivery = decode::delivery(py, memory, answer)?;
        py.tuple([delivery.response, py.flag(delivery.is_last)])
    }
}
