//! The functions of CPython that this library calls: only such as every version from 3.9 on
//! exports, free-threaded ones too, and structures that are equal in all of them. The interpreter
//! that loads the library has them; nothing is linked.

use std::ffi::{c_char, c_int, c_long, c_longlong, c_uint, c_ulonglong, c_void};

/// An object of the interpreter's. Its layout differs between builds, so only its address is used.
#[repr(C)]
pub(crate) struct PyObject {
    _private: [u8; 0],
}

pub(crate) type Pointer = *mut PyObject;
pub(crate) type FastFunction = unsafe extern "C" fn(Pointer, *const Pointer, isize) -> Pointer;
pub(crate) type New = unsafe extern "C" fn(Pointer, Pointer, Pointer) -> Pointer;
pub(crate) type Free = unsafe extern "C" fn(*mut c_void);
pub(crate) type Getter = unsafe extern "C" fn(Pointer, *mut c_void) -> Pointer;

#[repr(C)]
pub(crate) struct MethodDefinition {
    pub(crate) name: *const c_char,
    pub(crate) function: Option<FastFunction>,
    pub(crate) flags: c_int,
    pub(crate) doc: *const c_char,
}

#[repr(C)]
pub(crate) struct GetterDefinition {
    pub(crate) name: *const c_char,
    pub(crate) get: Option<Getter>,
    pub(crate) set: *const c_void,
    pub(crate) doc: *const c_char,
    pub(crate) closure: *mut c_void,
}

#[repr(C)]
pub(crate) struct TypeSlot {
    pub(crate) slot: c_int,
    pub(crate) function: *mut c_void,
}

#[repr(C)]
pub(crate) struct TypeSpec {
    pub(crate) name: *const c_char,
    pub(crate) basic_size: c_int,
    pub(crate) item_size: c_int,
    pub(crate) flags: c_uint,
    pub(crate) slots: *mut TypeSlot,
}

#[repr(C)]
pub(crate) struct BufferView {
    pub(crate) address: *mut c_void,
    pub(crate) object: Pointer,
    pub(crate) bytes: isize,
    pub(crate) item_size: isize,
    pub(crate) is_read_only: c_int,
    pub(crate) rank: c_int,
    pub(crate) format: *mut c_char,
    pub(crate) shape: *mut isize,
    pub(crate) strides: *mut isize,
    pub(crate) suboffsets: *mut isize,
    pub(crate) internal: *mut c_void,
}

pub(crate) const METH_FASTCALL: c_int = 0x80;
pub(crate) const TYPE_FLAGS: c_uint = (1 << 18) | (1 << 10);
pub(crate) const BUFFER_C_CONTIGUOUS: c_int = 0x38;
pub(crate) const SLOT_GET_BUFFER: c_int = 1;
pub(crate) const SLOT_DEALLOC: c_int = 52;
pub(crate) const SLOT_METHODS: c_int = 64;
pub(crate) const SLOT_NEW: c_int = 65;
pub(crate) const SLOT_GETTERS: c_int = 73;
pub(crate) const SLOT_FREE: c_int = 74;

#[allow(non_snake_case, non_upper_case_globals)]
unsafe extern "C" {
    pub(crate) static mut _Py_NoneStruct: PyObject;
    pub(crate) static PyExc_TypeError: Pointer;
    pub(crate) static PyExc_MemoryError: Pointer;
    pub(crate) static PyExc_RuntimeError: Pointer;
    pub(crate) fn Py_IncRef(object: Pointer);
    pub(crate) fn Py_DecRef(object: Pointer);
    pub(crate) fn PyErr_SetString(kind: Pointer, text: *const c_char);
    pub(crate) fn PyErr_SetObject(kind: Pointer, value: Pointer);
    pub(crate) fn PyErr_Clear();
    pub(crate) fn PyErr_Occurred() -> Pointer;
    pub(crate) fn PyEval_SaveThread() -> *mut c_void;
    pub(crate) fn PyEval_RestoreThread(state: *mut c_void);
    pub(crate) fn PyObject_GetAttr(object: Pointer, name: Pointer) -> Pointer;
    pub(crate) fn PyObject_SetAttr(object: Pointer, name: Pointer, value: Pointer) -> c_int;
    pub(crate) fn PyObject_IsInstance(object: Pointer, kind: Pointer) -> c_int;
    pub(crate) fn PyObject_Call(function: Pointer, arguments: Pointer, named: Pointer) -> Pointer;
    pub(crate) fn PyObject_CallNoArgs(function: Pointer) -> Pointer;
    pub(crate) fn PyObject_Type(object: Pointer) -> Pointer;
    pub(crate) fn PyObject_GetBuffer(object: Pointer, view: *mut BufferView, flags: c_int)
    -> c_int;
    pub(crate) fn PyBuffer_Release(view: *mut BufferView);
    pub(crate) fn PyBuffer_FillInfo(
        view: *mut BufferView,
        exporter: Pointer,
        address: *mut c_void,
        bytes: isize,
        is_read_only: c_int,
        flags: c_int,
    ) -> c_int;
    pub(crate) fn PyTuple_New(len: isize) -> Pointer;
    pub(crate) fn PyTuple_SetItem(tuple: Pointer, index: isize, item: Pointer) -> c_int;
    pub(crate) fn PyList_New(len: isize) -> Pointer;
    pub(crate) fn PyList_SetItem(list: Pointer, index: isize, item: Pointer) -> c_int;
    pub(crate) fn PySequence_Size(sequence: Pointer) -> isize;
    pub(crate) fn PySequence_GetItem(sequence: Pointer, index: isize) -> Pointer;
    pub(crate) fn PySequence_Contains(sequence: Pointer, item: Pointer) -> c_int;
    pub(crate) fn PyDict_New() -> Pointer;
    pub(crate) fn PyDict_SetItemString(dict: Pointer, key: *const c_char, item: Pointer) -> c_int;
    pub(crate) fn PyDict_GetItemString(dict: Pointer, key: *const c_char) -> Pointer;
    pub(crate) fn PyLong_FromLongLong(value: c_longlong) -> Pointer;
    pub(crate) fn PyLong_FromUnsignedLongLong(value: c_ulonglong) -> Pointer;
    pub(crate) fn PyLong_AsLongLong(object: Pointer) -> c_longlong;
    pub(crate) fn PyLong_AsUnsignedLongLongMask(object: Pointer) -> c_ulonglong;
    pub(crate) fn PyBool_FromLong(value: c_long) -> Pointer;
    pub(crate) fn PyBytes_FromStringAndSize(bytes: *const c_char, len: isize) -> Pointer;
    pub(crate) fn PyUnicode_FromStringAndSize(text: *const c_char, len: isize) -> Pointer;
    pub(crate) fn PyUnicode_InternFromString(text: *const c_char) -> Pointer;
    pub(crate) fn PyUnicode_AsUTF8AndSize(object: Pointer, len: *mut isize) -> *const c_char;
    pub(crate) fn PyCFunction_NewEx(
        definition: *mut MethodDefinition,
        this: Pointer,
        module: Pointer,
    ) -> Pointer;
    pub(crate) fn PyArg_ParseTupleAndKeywords(
        arguments: Pointer,
        named: Pointer,
        format: *const c_char,
        names: *const *const c_char,
        ...
    ) -> c_int;
    pub(crate) fn PyType_FromSpec(spec: *mut TypeSpec) -> Pointer;
    pub(crate) fn PyType_GetSlot(kind: Pointer, slot: c_int) -> *mut c_void;
    pub(crate) fn PyType_GenericAlloc(kind: Pointer, items: isize) -> Pointer;
}
