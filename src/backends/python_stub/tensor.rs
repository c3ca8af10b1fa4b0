//! What tensors in Python are made of: a name, a type, dimensions, and bytes somewhere. The class
//! that models see is a subclass, with what is rarely used.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use conch_python_ipc::wire::{RANK_MAX, TensorRow};

use crate::ffi::{self, BufferView, Pointer, PyObject};
use crate::hooks::Hooks;
use crate::object::{Object, Python, Raised};
use crate::state::{self, stub};
use crate::types::{self, TypeParts};

const CPU: (i32, i32) = (1, 0);
const CUDA: i32 = 2;

/// The value behind a tensor.
pub(crate) struct Tensor {
    pub(crate) name: Object,
    /// The server's number of the data type.
    pub(crate) data_type: u32,
    dims: Vec<i64>,
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// Kind and number, as DLPack has them.
    device: (i32, i32),
    /// What the bytes belong to.
    owner: Option<Object>,
    /// The array that `as_numpy` returned; null before.
    array: AtomicPtr<PyObject>,
    /// Keeps the array's memory where it is.
    #[expect(dead_code, reason = "it is only held")]
    view: Option<View>,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        let array = *self.array.get_mut();
        if !array.is_null() {
            // SAFETY: the reference is ours.
            unsafe { ffi::Py_DecRef(array) };
        }
    }
}

impl Tensor {
    pub(crate) fn dims(&self) -> &[i64] {
        &self.dims
    }

    pub(crate) fn is_cpu(&self) -> bool {
        self.device.0 != CUDA
    }
}

/// The bytes of an object, if it has exactly so many.
pub(crate) fn bytes_of<const N: usize>(py: Python, object: &Object) -> Result<[u8; N], Raised> {
    let view = View::of(object)?;
    if usize::try_from(view.0.bytes) != Ok(N) {
        return Err(py.raise(&format!("{N} bytes are wanted")));
    }
    let bytes = view.0.address.cast::<[u8; N]>();
    // SAFETY: the view has as many bytes as it says, as long as it lives.
    Ok(unsafe { bytes.read_unaligned() })
}

/// A buffer that another object exports.
struct View(BufferView);

impl View {
    /// Raises if the elements do not lie one after the other.
    fn of(object: &Object) -> Result<View, Raised> {
        let mut view = MaybeUninit::<BufferView>::zeroed();
        // SAFETY: the object lives, and a view of zeros is as good as any to be filled in.
        let outcome = unsafe {
            ffi::PyObject_GetBuffer(
                object.pointer(),
                view.as_mut_ptr(),
                ffi::BUFFER_C_CONTIGUOUS,
            )
        };
        match outcome {
            // SAFETY: filled in.
            0 => Ok(View(unsafe { view.assume_init() })),
            _ => Err(Raised),
        }
    }

    fn dims(&self) -> Vec<i64> {
        let rank = usize::try_from(self.0.rank).unwrap_or(0);
        if rank == 0 || self.0.shape.is_null() {
            return Vec::new();
        }
        // SAFETY: a view has as many dimensions as it says.
        let dims = unsafe { std::slice::from_raw_parts(self.0.shape, rank) };
        dims.iter().map(|dim| *dim as i64).collect()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: ours, and released once.
        unsafe { ffi::PyBuffer_Release(&raw mut self.0) };
    }
}

pub(crate) fn make_type(py: Python) -> Result<Object, Raised> {
    let new: ffi::New = new;
    types::make::<Tensor>(
        py,
        TypeParts {
            name: c"conch_python_stub.TensorBase",
            slots: vec![
                types::slot(ffi::SLOT_NEW, new as *mut c_void),
                types::methods(vec![
                    types::method(c"name", name),
                    types::method(c"triton_dtype", triton_dtype),
                    types::method(c"shape", shape),
                    types::method(c"is_cpu", is_cpu),
                    types::method(c"as_numpy", as_numpy),
                ]),
                types::getters(&[
                    (c"_name", get_name),
                    (c"_number", get_number),
                    (c"_shape", get_shape),
                    (c"_address", get_address),
                    (c"_byte_size", get_byte_size),
                    (c"_device", get_device),
                    (c"_owner", get_owner),
                ]),
            ],
        },
    )
}

/// The tensor of an object, if it is one.
pub(crate) fn of(py: Python, object: &Object) -> Result<Option<&Tensor>, Raised> {
    Ok(match py.is_instance(object, &state::types()?.tensor)? {
        // SAFETY: just checked.
        true => Some(unsafe { types::value::<Tensor>(object.pointer()) }),
        false => None,
    })
}

/// A tensor whose bytes lie in the backend's segment, as long as `owner` does.
pub(crate) fn received(
    py: Python,
    hooks: &Hooks,
    row: &TensorRow<'_>,
    address: usize,
    owner: &Object,
) -> Result<Object, Raised> {
    let tensor = Tensor {
        name: py.text(row.name)?,
        data_type: row.data_type,
        dims: row.dims.iter().collect(),
        address,
        bytes: usize::try_from(row.bytes).map_err(|_| py.raise("a tensor is too long"))?,
        device: CPU,
        owner: Some(owner.clone()),
        array: AtomicPtr::default(),
        view: None,
    };
    // SAFETY: the class is a subclass of the type of `make_type`.
    unsafe { types::instance(py, hooks.tensor.pointer(), tensor) }
}

/// `Tensor(name, numpy_array)`.
unsafe extern "C" fn new(class: Pointer, arguments: Pointer, named: Pointer) -> Pointer {
    // SAFETY: the interpreter calls it.
    let py = unsafe { Python::attached() };
    let names: [*const c_char; 3] = [c"name".as_ptr(), c"numpy_array".as_ptr(), ptr::null()];
    let (mut name, mut array): (Pointer, Pointer) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: two objects are asked for, and two pointers given.
    let is_read = unsafe {
        ffi::PyArg_ParseTupleAndKeywords(
            arguments,
            named,
            c"OO:Tensor".as_ptr(),
            names.as_ptr(),
            &raw mut name,
            &raw mut array,
        )
    };
    if is_read == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the arguments live during the call.
    let (name, array) = unsafe { (Object::borrowed(name), Object::borrowed(array)) };
    let (Some(name), Some(array)) = (name, array) else {
        return ptr::null_mut();
    };
    let made = of_array(py, name, array).and_then(|tensor| {
        // SAFETY: the class is this type, or a subclass.
        unsafe { types::instance(py, class, tensor) }
    });
    state::result(made)
}

fn of_array(py: Python, name: Object, array: Object) -> Result<Tensor, Raised> {
    let hooks = state::hooks(py)?;
    let is_plain = py.type_of(&array)?.is(&hooks.ndarray)
        && !py
            .str_of(&name)
            .inspect_err(|_| py.clear())
            .unwrap_or("")
            .is_empty();
    let data_type = match is_plain {
        true => hooks.data_type(&py.attribute(&array, &hooks.names.dtype)?),
        false => None,
    };
    let view = data_type.and_then(|_| View::of(&array).inspect_err(|_| py.clear()).ok());
    let (Some(data_type), Some(view)) = (data_type, view) else {
        return prepared(py, hooks, name, array);
    };
    Ok(Tensor {
        name,
        data_type,
        dims: view.dims(),
        address: view.0.address.addr(),
        bytes: usize::try_from(view.0.bytes).unwrap_or(0),
        device: CPU,
        owner: None,
        array: AtomicPtr::new(array.into_pointer()),
        view: Some(view),
    })
}

/// A tensor of what is no plain array of numbers: Python says what its bytes are.
fn prepared(py: Python, hooks: &Hooks, name: Object, array: Object) -> Result<Tensor, Raised> {
    let arguments = py.tuple([name.clone(), array])?;
    let parts = py.call(&hooks.prepare, &arguments)?;
    let (array, encoded) = (py.item(&parts, 2)?, py.item(&parts, 3)?);
    let view = View::of(&encoded)?;
    Ok(Tensor {
        name,
        data_type: data_type_of(py, &py.item(&parts, 0)?)?,
        dims: dims_of(py, &py.item(&parts, 1)?)?,
        address: view.0.address.addr(),
        bytes: usize::try_from(view.0.bytes).unwrap_or(0),
        device: CPU,
        owner: None,
        array: AtomicPtr::new(array.into_pointer()),
        view: Some(view),
    })
}

fn data_type_of(py: Python, number: &Object) -> Result<u32, Raised> {
    u32::try_from(py.i64_of(number)?).map_err(|_| py.raise("no data type"))
}

fn dims_of(py: Python, shape: &Object) -> Result<Vec<i64>, Raised> {
    let rank = py.len(shape)?;
    if rank > RANK_MAX {
        return Err(py.raise("a tensor has at most 64 dimensions"));
    }
    (0..rank)
        .map(|index| py.i64_of(&py.item(shape, index)?))
        .collect()
}

/// `tensor_at(class, name, number, shape, address, byte_size, owner, device)`: the tensor whose
/// bytes lie at an address as long as `owner` lives.
pub(crate) fn at(py: Python, arguments: &[Object]) -> Result<Object, Raised> {
    let [class, name, number, shape, address, bytes, owner, device] = arguments else {
        return Err(py.raise_type("tensor_at takes 8 arguments"));
    };
    let part = |index| -> Result<i32, Raised> {
        let value = py.i64_of(&py.item(device, index)?)?;
        i32::try_from(value).map_err(|_| py.raise("no device"))
    };
    let tensor = Tensor {
        name: name.clone(),
        data_type: data_type_of(py, number)?,
        dims: dims_of(py, shape)?,
        address: usize::try_from(py.u64_of(address)?).unwrap_or(0),
        bytes: usize::try_from(py.u64_of(bytes)?).unwrap_or(0),
        device: (part(0)?, part(1)?),
        owner: Some(owner.clone()),
        array: AtomicPtr::default(),
        view: None,
    };
    // SAFETY: callers give the class of tensors.
    unsafe { types::instance(py, class.pointer(), tensor) }
}

fn shape_tuple(py: Python, tensor: &Tensor) -> Result<Object, Raised> {
    let dims: Result<Vec<Object>, Raised> = tensor.dims.iter().map(|dim| py.number(*dim)).collect();
    py.tuple_of(dims?.into_iter())
}

/// The array of a tensor that has none yet: a view of its memory where that is possible.
fn array_of(py: Python, object: &Object, tensor: &Tensor) -> Result<Object, Raised> {
    let hooks = state::hooks(py)?;
    let types = state::types()?;
    let plain = hooks.dtype(tensor.data_type).zip(tensor.owner.as_ref());
    let Some((dtype, owner)) = plain.filter(|_| tensor.bytes > 0) else {
        return py.call(&hooks.as_array, &py.tuple([object.clone()])?);
    };
    if !py.is_instance(owner, &types.block)? {
        return py.call(&hooks.as_array, &py.tuple([object.clone()])?);
    }
    let base = stub().map_or(0, |stub| stub.memory.requests_address());
    let offset = py.unsigned((tensor.address - base) as u64)?;
    let arguments = [
        shape_tuple(py, tensor)?,
        dtype.clone(),
        owner.clone(),
        offset,
    ];
    py.call(&hooks.ndarray, &py.tuple(arguments)?)
}

unsafe extern "C" fn as_numpy(this: Pointer, _: *const Pointer, _: isize) -> Pointer {
    // SAFETY: a method of the type; the object lives during the call.
    let (py, tensor, object) = unsafe {
        (
            Python::attached(),
            types::value::<Tensor>(this),
            Object::borrowed(this),
        )
    };
    let Some(object) = object else {
        return ptr::null_mut();
    };
    let known = tensor.array.load(Ordering::Acquire);
    // SAFETY: once there, it stays as long as the tensor.
    if let Some(array) = unsafe { Object::borrowed(known) } {
        return array.into_pointer();
    }
    let array = match array_of(py, &object, tensor) {
        Ok(array) => array,
        Err(Raised) => return ptr::null_mut(),
    };
    let kept = array.clone().into_pointer();
    let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
    match tensor
        .array
        .compare_exchange(ptr::null_mut(), kept, success, failure)
    {
        Ok(_) => array.into_pointer(),
        Err(other) => {
            // Another thread was first: all get the same.
            // SAFETY: the reference that was not kept is ours; the other stays.
            unsafe {
                ffi::Py_DecRef(kept);
                Object::borrowed(other).map_or(ptr::null_mut(), Object::into_pointer)
            }
        }
    }
}

/// A function of the type: from the object's value to what it returns.
macro_rules! readers {
    ($kind:ident: $($name:ident => $read:expr;)*) => { $(
        readers!(@$kind $name => $read);
    )* };
    (@method $name:ident => $read:expr) => {
        unsafe extern "C" fn $name(this: Pointer, _: *const Pointer, _: isize) -> Pointer {
            // SAFETY: a method of the type; the thread is attached.
            let (py, tensor) = unsafe { (Python::attached(), types::value::<Tensor>(this)) };
            let read: fn(Python, &Tensor) -> Result<Object, Raised> = $read;
            state::result(read(py, tensor))
        }
    };
    (@getter $name:ident => $read:expr) => {
        unsafe extern "C" fn $name(this: Pointer, _: *mut c_void) -> Pointer {
            // SAFETY: an attribute of the type; the thread is attached.
            let (py, tensor) = unsafe { (Python::attached(), types::value::<Tensor>(this)) };
            let read: fn(Python, &Tensor) -> Result<Object, Raised> = $read;
            state::result(read(py, tensor))
        }
    };
}

readers! { method:
    name => |_, tensor| Ok(tensor.name.clone());
    triton_dtype => |py, tensor| py.number(i64::from(tensor.data_type));
    shape => |py, tensor| py.list_of(tensor.dims.iter().map(|dim| py.number(*dim)));
    is_cpu => |py, tensor| Ok(py.flag(tensor.is_cpu()));
}
readers! { getter:
    get_name => |_, tensor| Ok(tensor.name.clone());
    get_number => |py, tensor| py.number(i64::from(tensor.data_type));
    get_shape => shape_tuple;
    get_address => |py, tensor| py.unsigned(tensor.address as u64);
    get_byte_size => |py, tensor| py.unsigned(tensor.bytes as u64);
    get_owner => |py, tensor| Ok(tensor.owner.clone().unwrap_or_else(|| py.none()));
    get_device => |py, tensor| {
        let (kind, number) = tensor.device;
        py.tuple([py.number(i64::from(kind))?, py.number(i64::from(number))?])
    };
}
