//! What there is one of in a process: the connection, the types, and what Python gave.

use std::ptr;
use std::sync::OnceLock;

use conch_python_ipc::wire;

use crate::ffi::Pointer;
use crate::hooks::Hooks;
use crate::memory::StubMemory;
use crate::object::{Object, Python, Raised};

/// The connection of this process to the backend.
#[derive(Debug)]
pub(crate) struct Stub {
    pub(crate) memory: StubMemory,
}

static STUB: OnceLock<Stub> = OnceLock::new();
static TYPES: OnceLock<Shared<Types>> = OnceLock::new();
static HOOKS: OnceLock<Shared<Hooks>> = OnceLock::new();

/// Objects that live as long as the process.
pub(crate) struct Shared<T>(pub(crate) T);

// SAFETY: references are counted only by threads that are attached, and these never go.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

/// The types that this library makes.
pub(crate) struct Types {
    pub(crate) block: Object,
    pub(crate) request_handle: Object,
    pub(crate) tensor: Object,
}

/// The connection; none in a process that the backend did not start.
pub(crate) fn stub() -> Option<&'static Stub> {
    STUB.get()
}

/// Takes the connection in; false if there is one.
pub(crate) fn connect(memory: StubMemory) -> bool {
    STUB.set(Stub { memory }).is_ok()
}

/// The types that this library made; raises before it did.
pub(crate) fn types() -> Result<&'static Types, Raised> {
    TYPES.get().map(|types| &types.0).ok_or(Raised)
}

/// Takes the types in.
pub(crate) fn set_types(types: Types) {
    let _ = TYPES.set(Shared(types));
}

/// Takes in what Python gave. The first is taken.
pub(crate) fn set_hooks(hooks: Hooks) {
    let _ = HOOKS.set(Shared(hooks));
}

/// What Python gave; raises before it did.
pub(crate) fn hooks(py: Python) -> Result<&'static Hooks, Raised> {
    let hooks = HOOKS.get().map(|hooks| &hooks.0);
    hooks.ok_or_else(|| py.raise("the package of models was not imported"))
}

/// The connection; raises if there is none.
pub(crate) fn connected(py: Python) -> Result<&'static StubMemory, Raised> {
    let stub = stub().map(|stub| &stub.memory);
    stub.ok_or_else(|| py.raise("this process was not started by the Python backend"))
}

/// As the interpreter wants what a function returns.
pub(crate) fn result(outcome: Result<Object, Raised>) -> Pointer {
    outcome.map_or(ptr::null_mut(), Object::into_pointer)
}

/// Raises for a message that the backend cannot have meant.
pub(crate) fn malformed(py: Python) -> impl Fn(wire::Malformed) -> Raised {
    move |error| py.raise(&error.to_string())
}
