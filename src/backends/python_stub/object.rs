//! References to objects of the interpreter's, and what is done with them.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::ffi::{self, Pointer, PyObject};

/// An exception of the interpreter's is set.
#[derive(Debug)]
pub(crate) struct Raised;

/// This thread is attached to the interpreter: it holds the interpreter's lock where there is one.
#[derive(Clone, Copy)]
pub(crate) struct Python(PhantomData<*mut ()>);

/// A counted reference. Only threads that are attached have any.
pub(crate) struct Object(NonNull<PyObject>);

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and the thread is attached.
        unsafe { ffi::Py_DecRef(self.pointer()) };
    }
}

impl Clone for Object {
    fn clone(&self) -> Object {
        // SAFETY: the object lives, and the thread is attached.
        unsafe { ffi::Py_IncRef(self.pointer()) };
        Object(self.0)
    }
}

impl Object {
    pub(crate) fn pointer(&self) -> Pointer {
        self.0.as_ptr()
    }

    /// Gives the reference away.
    pub(crate) fn into_pointer(self) -> Pointer {
        let pointer = self.pointer();
        std::mem::forget(self);
        pointer
    }

    /// A reference to what is referred to elsewhere.
    ///
    /// # Safety
    /// `pointer` is an object that lives, and the thread is attached.
    pub(crate) unsafe fn borrowed(pointer: Pointer) -> Option<Object> {
        let object = NonNull::new(pointer)?;
        // SAFETY: by this function's contract.
        unsafe { ffi::Py_IncRef(pointer) };
        Some(Object(object))
    }

    pub(crate) fn is(&self, other: &Object) -> bool {
        self.0 == other.0
    }

    pub(crate) fn is_none(&self) -> bool {
        self.pointer() == none_address()
    }
}

fn none_address() -> Pointer {
    &raw mut ffi::_Py_NoneStruct
}

impl Python {
    /// # Safety
    /// The thread is attached while the value is used.
    pub(crate) unsafe fn attached() -> Python {
        Python(PhantomData)
    }

    /// Does what may take long, while other threads of the interpreter run.
    pub(crate) fn detached<T>(self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the thread is attached.
        let state = unsafe { ffi::PyEval_SaveThread() };
        let outcome = work();
        // SAFETY: the state of this thread, from above.
        unsafe { ffi::PyEval_RestoreThread(state) };
        outcome
    }

    /// # Safety
    /// `pointer` came as a new reference from a function that raises when it returns null.
    pub(crate) unsafe fn made(self, pointer: Pointer) -> Result<Object, Raised> {
        NonNull::new(pointer).map(Object).ok_or(Raised)
    }

    fn done(self, outcome: c_int) -> Result<(), Raised> {
        match outcome {
            0.. => Ok(()),
            _ => Err(Raised),
        }
    }

    pub(crate) fn none(self) -> Object {
        let none = none_address();
        // SAFETY: it always lives.
        unsafe { ffi::Py_IncRef(none) };
        Object(NonNull::new(none).unwrap_or(NonNull::dangling()))
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<Object, Raised> {
        let len = isize::try_from(bytes.len()).unwrap_or(0);
        // SAFETY: that many bytes are readable.
        unsafe { self.made(ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), len)) }
    }

    pub(crate) fn text(self, text: &str) -> Result<Object, Raised> {
        let len = isize::try_from(text.len()).unwrap_or(0);
        // SAFETY: readable for its length.
        unsafe { self.made(ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), len)) }
    }

    pub(crate) fn interned(self, text: &CStr) -> Result<Object, Raised> {
        // SAFETY: a C string.
        unsafe { self.made(ffi::PyUnicode_InternFromString(text.as_ptr())) }
    }

    /// The text of a `str`, as long as the object lives.
    pub(crate) fn str_of(self, object: &Object) -> Result<&str, Raised> {
        let mut len = 0;
        // SAFETY: the object lives; one that is no `str` raises.
        let text = unsafe { ffi::PyUnicode_AsUTF8AndSize(object.pointer(), &raw mut len) };
        if text.is_null() {
            return Err(Raised);
        }
        let len = usize::try_from(len).unwrap_or(0);
        // SAFETY: the object keeps the text, which is UTF-8 of that length.
        Ok(unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(text.cast(), len)) })
    }

    pub(crate) fn number(self, value: i64) -> Result<Object, Raised> {
        // SAFETY: any value will do.
        unsafe { self.made(ffi::PyLong_FromLongLong(value)) }
    }

    pub(crate) fn unsigned(self, value: u64) -> Result<Object, Raised> {
        // SAFETY: any value will do.
        unsafe { self.made(ffi::PyLong_FromUnsignedLongLong(value)) }
    }

    pub(crate) fn flag(self, value: bool) -> Object {
        // SAFETY: it cannot fail.
        let object = unsafe { self.made(ffi::PyBool_FromLong(i64::from(value))) };
        object.unwrap_or_else(|Raised| self.none())
    }

    pub(crate) fn i64_of(self, object: &Object) -> Result<i64, Raised> {
        // SAFETY: the object lives; one that is no number raises.
        let value = unsafe { ffi::PyLong_AsLongLong(object.pointer()) };
        match value {
            -1 => self.unless_raised(value),
            value => Ok(value),
        }
    }

    /// A number's last 64 bits.
    pub(crate) fn u64_of(self, object: &Object) -> Result<u64, Raised> {
        // SAFETY: as above.
        let value = unsafe { ffi::PyLong_AsUnsignedLongLongMask(object.pointer()) };
        match value {
            u64::MAX => self.unless_raised(value),
            value => Ok(value),
        }
    }

    fn unless_raised<T>(self, value: T) -> Result<T, Raised> {
        // SAFETY: the thread is attached.
        match unsafe { ffi::PyErr_Occurred() }.is_null() {
            true => Ok(value),
            false => Err(Raised),
        }
    }

    pub(crate) fn attribute(self, object: &Object, name: &Object) -> Result<Object, Raised> {
        // SAFETY: both live.
        unsafe { self.made(ffi::PyObject_GetAttr(object.pointer(), name.pointer())) }
    }

    pub(crate) fn set_attribute(
        self,
        object: &Object,
        name: &Object,
        value: &Object,
    ) -> Result<(), Raised> {
        // SAFETY: all live.
        let outcome =
            unsafe { ffi::PyObject_SetAttr(object.pointer(), name.pointer(), value.pointer()) };
        self.done(outcome)
    }

    pub(crate) fn is_instance(self, object: &Object, kind: &Object) -> Result<bool, Raised> {
        // SAFETY: both live.
        let outcome = unsafe { ffi::PyObject_IsInstance(object.pointer(), kind.pointer()) };
        self.done(outcome).map(|()| outcome == 1)
    }

    pub(crate) fn type_of(self, object: &Object) -> Result<Object, Raised> {
        // SAFETY: it lives.
        unsafe { self.made(ffi::PyObject_Type(object.pointer())) }
    }

    pub(crate) fn call(self, function: &Object, arguments: &Object) -> Result<Object, Raised> {
        // SAFETY: both live; arguments that are no tuple raise.
        unsafe {
            self.made(ffi::PyObject_Call(
                function.pointer(),
                arguments.pointer(),
                ptr::null_mut(),
            ))
        }
    }

    pub(crate) fn call_method(self, object: &Object, name: &Object) -> Result<Object, Raised> {
        let method = self.attribute(object, name)?;
        // SAFETY: it lives.
        unsafe { self.made(ffi::PyObject_CallNoArgs(method.pointer())) }
    }

    pub(crate) fn tuple<const N: usize>(self, items: [Object; N]) -> Result<Object, Raised> {
        self.tuple_of(items.into_iter())
    }

    pub(crate) fn tuple_of(
        self,
        items: impl ExactSizeIterator<Item = Object>,
    ) -> Result<Object, Raised> {
        let len = isize::try_from(items.len()).unwrap_or(0);
        // SAFETY: any length will do.
        let tuple = unsafe { self.made(ffi::PyTuple_New(len)) }?;
        for (index, item) in (0..len).zip(items) {
            // SAFETY: the tuple is new and nobody else's; it takes the reference over.
            unsafe { ffi::PyTuple_SetItem(tuple.pointer(), index, item.into_pointer()) };
        }
        Ok(tuple)
    }

    pub(crate) fn list_of(
        self,
        items: impl ExactSizeIterator<Item = Result<Object, Raised>>,
    ) -> Result<Object, Raised> {
        let len = isize::try_from(items.len()).unwrap_or(0);
        // SAFETY: any length will do.
        let list = unsafe { self.made(ffi::PyList_New(len)) }?;
        for (index, item) in (0..len).zip(items) {
            // SAFETY: the list is new and nobody else's; it takes the reference over.
            unsafe { ffi::PyList_SetItem(list.pointer(), index, item?.into_pointer()) };
        }
        Ok(list)
    }

    pub(crate) fn len(self, sequence: &Object) -> Result<usize, Raised> {
        // SAFETY: it lives; what is no sequence raises.
        let len = unsafe { ffi::PySequence_Size(sequence.pointer()) };
        usize::try_from(len).map_err(|_| Raised)
    }

    pub(crate) fn item(self, sequence: &Object, index: usize) -> Result<Object, Raised> {
        let index = isize::try_from(index).unwrap_or(isize::MAX);
        // SAFETY: it lives; an index outside raises.
        unsafe { self.made(ffi::PySequence_GetItem(sequence.pointer(), index)) }
    }

    pub(crate) fn contains(self, sequence: &Object, item: &Object) -> Result<bool, Raised> {
        // SAFETY: both live.
        let outcome = unsafe { ffi::PySequence_Contains(sequence.pointer(), item.pointer()) };
        self.done(outcome).map(|()| outcome == 1)
    }

    pub(crate) fn dict(self) -> Result<Object, Raised> {
        // SAFETY: it takes nothing.
        unsafe { self.made(ffi::PyDict_New()) }
    }

    pub(crate) fn insert(self, dict: &Object, key: &CStr, item: &Object) -> Result<(), Raised> {
        // SAFETY: both live.
        let outcome =
            unsafe { ffi::PyDict_SetItemString(dict.pointer(), key.as_ptr(), item.pointer()) };
        self.done(outcome)
    }

    /// An item of a dict; raises if there is none.
    pub(crate) fn entry(self, dict: &Object, key: &CStr) -> Result<Object, Raised> {
        // SAFETY: it lives; the item is the dict's, which nobody changes meanwhile.
        let item =
            unsafe { Object::borrowed(ffi::PyDict_GetItemString(dict.pointer(), key.as_ptr())) };
        item.ok_or_else(|| self.raise(&format!("'{}' is missing", key.to_string_lossy())))
    }

    /// A new object of a class, whose `__init__` is not called.
    pub(crate) fn allocated(self, class: &Object, no_arguments: &Object) -> Result<Object, Raised> {
        // SAFETY: a class lives, and every class has the slot, which is of this type.
        let new = unsafe {
            let slot = ffi::PyType_GetSlot(class.pointer(), ffi::SLOT_NEW);
            std::mem::transmute::<*mut c_void, Option<ffi::New>>(slot)
        };
        let new = new.ok_or_else(|| self.raise("the class has no objects"))?;
        // SAFETY: as the interpreter calls it.
        unsafe {
            self.made(new(
                class.pointer(),
                no_arguments.pointer(),
                ptr::null_mut(),
            ))
        }
    }

    /// Raises `RuntimeError`.
    pub(crate) fn raise(self, text: &str) -> Raised {
        // SAFETY: a class that always lives.
        self.raise_kind(unsafe { ffi::PyExc_RuntimeError }, text)
    }

    /// Raises `MemoryError`.
    pub(crate) fn raise_memory(self, text: &str) -> Raised {
        // SAFETY: as above.
        self.raise_kind(unsafe { ffi::PyExc_MemoryError }, text)
    }

    /// Raises `TypeError`.
    pub(crate) fn raise_type(self, text: &str) -> Raised {
        // SAFETY: as above.
        self.raise_kind(unsafe { ffi::PyExc_TypeError }, text)
    }

    fn raise_kind(self, kind: Pointer, text: &str) -> Raised {
        match self.text(text) {
            // SAFETY: both live.
            Ok(text) => unsafe { ffi::PyErr_SetObject(kind, text.pointer()) },
            // SAFETY: a class and a C string.
            Err(Raised) => unsafe { ffi::PyErr_SetString(kind, c"no memory".as_ptr()) },
        }
        Raised
    }

    /// Forgets the exception that is set.
    pub(crate) fn clear(self) {
        // SAFETY: the thread is attached.
        unsafe { ffi::PyErr_Clear() };
    }
}
