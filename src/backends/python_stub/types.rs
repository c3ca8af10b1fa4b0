//! Types of our own: objects with a value of Rust's behind what the interpreter keeps in front of
//! every object.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ffi::{self, GetterDefinition, MethodDefinition, Pointer, TypeSlot, TypeSpec};
use crate::object::{Object, Python, Raised};

/// Where the value of an object begins.
static VALUE_AT: AtomicUsize = AtomicUsize::new(0);

/// Takes in how long the interpreter's part of an object is, which differs between its builds.
pub(crate) fn set_head_bytes(bytes: usize) {
    VALUE_AT.store(bytes.next_multiple_of(16), Ordering::Relaxed);
}

/// Parts of a type. Slots and definitions live as long as the process.
pub(crate) struct TypeParts {
    pub(crate) name: &'static CStr,
    pub(crate) slots: Vec<TypeSlot>,
}

/// Makes the type of objects with a `T`, which ends with its object.
pub(crate) fn make<T>(py: Python, parts: TypeParts) -> Result<Object, Raised> {
    let head = VALUE_AT.load(Ordering::Relaxed);
    let mut slots = parts.slots;
    let dealloc: unsafe extern "C" fn(Pointer) = dealloc::<T>;
    slots.push(slot(ffi::SLOT_DEALLOC, dealloc as *mut c_void));
    slots.push(slot(0, std::ptr::null_mut()));
    let mut spec = TypeSpec {
        name: parts.name.as_ptr(),
        basic_size: c_int::try_from(head + size_of::<T>()).unwrap_or(0),
        item_size: 0,
        flags: ffi::TYPE_FLAGS,
        slots: slots.leak().as_mut_ptr(),
    };
    // SAFETY: the spec is as the interpreter wants it, and its slots end with a zero.
    unsafe { py.made(ffi::PyType_FromSpec(&raw mut spec)) }
}

pub(crate) fn slot(slot: c_int, function: *mut c_void) -> TypeSlot {
    TypeSlot { slot, function }
}

/// The slot of methods.
pub(crate) fn methods(definitions: Vec<MethodDefinition>) -> TypeSlot {
    let mut definitions = definitions;
    definitions.push(MethodDefinition {
        name: std::ptr::null(),
        function: None,
        flags: 0,
        doc: std::ptr::null(),
    });
    slot(ffi::SLOT_METHODS, definitions.leak().as_mut_ptr().cast())
}

pub(crate) fn method(name: &'static CStr, function: ffi::FastFunction) -> MethodDefinition {
    MethodDefinition {
        name: name.as_ptr(),
        function: Some(function),
        flags: ffi::METH_FASTCALL,
        doc: std::ptr::null(),
    }
}

/// The slot of attributes that can be read.
pub(crate) fn getters(named: &[(&'static CStr, ffi::Getter)]) -> TypeSlot {
    let definition = |name, get| GetterDefinition {
        name,
        get,
        set: std::ptr::null(),
        doc: std::ptr::null(),
        closure: std::ptr::null_mut(),
    };
    let mut definitions: Vec<_> = named
        .iter()
        .map(|(name, get)| definition(name.as_ptr(), Some(*get)))
        .collect();
    definitions.push(definition(std::ptr::null(), None));
    slot(ffi::SLOT_GETTERS, definitions.leak().as_mut_ptr().cast())
}

/// A new object of a type that [`make`] made for `T`, or of a subclass.
///
/// # Safety
/// The type is one.
pub(crate) unsafe fn instance<T>(py: Python, kind: Pointer, value: T) -> Result<Object, Raised> {
    // SAFETY: it has room for the value, and is nobody else's yet.
    unsafe {
        let object = py.made(ffi::PyType_GenericAlloc(kind, 0))?;
        value_at::<T>(object.pointer()).write(value);
        Ok(object)
    }
}

/// The value of an object.
///
/// # Safety
/// It is of a type that [`make`] made for `T`, and lives as long as the reference.
pub(crate) unsafe fn value<'o, T>(object: Pointer) -> &'o T {
    // SAFETY: by this function's contract; values change only through shared references.
    unsafe { &*value_at::<T>(object) }
}

fn value_at<T>(object: Pointer) -> *mut T {
    let head = VALUE_AT.load(Ordering::Relaxed);
    object.wrapping_byte_add(head).cast()
}

unsafe extern "C" fn dealloc<T>(object: Pointer) {
    // SAFETY: the interpreter calls it once, with the last reference gone. The object holds a
    // reference to its type, which is asked how memory goes back.
    unsafe {
        value_at::<T>(object).drop_in_place();
        let kind = ffi::PyObject_Type(object);
        let free = ffi::PyType_GetSlot(kind, ffi::SLOT_FREE);
        if let Some(free) = std::mem::transmute::<*mut c_void, Option<ffi::Free>>(free) {
            free(object.cast());
        }
        ffi::Py_DecRef(kind);
        ffi::Py_DecRef(kind);
    }
}
