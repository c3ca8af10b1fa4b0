//! The shapes that a model declares, by which outputs have a size before the run.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use crate::real::{Failure, Raw, RealLibrary, Status, check, real};

/// A dimension as the model declares it.
#[derive(Clone, Debug, PartialEq)]
enum Dimension {
    Fixed(i64),
    Named(CString),
    Unknown,
}

/// What a tensor is, but for what depends on a run.
#[derive(Clone, Debug)]
struct Declaration {
    element: c_int,
    dims: Vec<Dimension>,
}

/// The tensors of a model by name.
#[derive(Clone, Debug, Default)]
pub struct Signature {
    inputs: HashMap<CString, Declaration>,
    outputs: HashMap<CString, Declaration>,
}

impl Signature {
    /// # Errors
    /// The real library's own.
    ///
    /// # Safety
    /// The session is live.
    pub unsafe fn of(session: Raw) -> Result<Self, Failure> {
        let real = real()?;
        // SAFETY: by this function's contract.
        unsafe {
            Ok(Signature {
                inputs: declarations(
                    |count| real.input_count(session, count),
                    |index, info| real.input_type(session, index, info),
                    |index, allocator, name| real.input_name(session, index, allocator, name),
                )?,
                outputs: declarations(
                    |count| real.output_count(session, count),
                    |index, info| real.output_type(session, index, info),
                    |index, allocator, name| real.output_name(session, index, allocator, name),
                )?,
            })
        }
    }

    /// Element type and shape of an output of a run with inputs of these shapes; none where they do
    /// not tell.
    pub fn output(&self, name: &CStr, inputs: &[(&CStr, Vec<i64>)]) -> Option<(c_int, Vec<i64>)> {
        let mut known: HashMap<&CStr, i64> = HashMap::new();
        for (input, shape) in inputs {
            let declared = &self.inputs.get(*input)?.dims;
            for (dimension, length) in declared.iter().zip(shape) {
                if let Dimension::Named(symbol) = dimension {
                    known.insert(symbol, *length);
                }
            }
        }
        let output = self.outputs.get(name)?;
        let shape = output.dims.iter().map(|dimension| match dimension {
            Dimension::Fixed(length) => Some(*length),
            Dimension::Named(symbol) => known.get(symbol.as_c_str()).copied(),
            Dimension::Unknown => None,
        });
        Some((output.element, shape.collect::<Option<_>>()?))
    }
}

unsafe fn declarations(
    count_of: impl Fn(*mut usize) -> Status,
    type_of: impl Fn(usize, *mut Raw) -> Status,
    name_of: impl Fn(usize, Raw, *mut *mut c_char) -> Status,
) -> Result<HashMap<CString, Declaration>, Failure> {
    let real = real()?;
    let (mut count, mut allocator) = (0, ptr::null_mut());
    check(count_of(&raw mut count))?;
    // SAFETY: the result is writable.
    unsafe { check(real.default_allocator(&raw mut allocator))? };
    let mut found = HashMap::new();
    for index in 0..count {
        let (mut name, mut info) = (ptr::null_mut(), ptr::null_mut());
        check(name_of(index, allocator, &raw mut name))?;
        // SAFETY: a C string of the allocator, freed after it was copied.
        let key = unsafe {
            let key = CStr::from_ptr(name).to_owned();
            check(real.free(allocator, name.cast()))?;
            key
        };
        check(type_of(index, &raw mut info))?;
        // SAFETY: the information is live, and ours to release.
        let declared = unsafe {
            let declared = declaration(real, info);
            real.release_type_info(info);
            declared?
        };
        if let Some(declared) = declared {
            found.insert(key, declared);
        }
    }
    Ok(found)
}

/// None: it is no tensor.
unsafe fn declaration(real: &RealLibrary, info: Raw) -> Result<Option<Declaration>, Failure> {
    let (mut tensor, mut element, mut rank) = (ptr::null_mut(), 0, 0);
    // SAFETY: the information is live, the results are writable and as long as said.
    unsafe {
        check(real.cast_to_tensor_info(info, &raw mut tensor))?;
        if tensor.is_null() {
            return Ok(None);
        }
        check(real.element_type(tensor, &raw mut element))?;
        check(real.dimension_count(tensor, &raw mut rank))?;
        let mut lengths = vec![0; rank];
        let mut symbols = vec![ptr::null(); rank];
        check(real.dimensions(tensor, lengths.as_mut_ptr(), rank))?;
        check(real.symbolic_dimensions(tensor, symbols.as_mut_ptr(), rank))?;
        let dims = lengths.into_iter().zip(symbols).map(|(length, symbol)| {
            if length >= 0 {
                return Dimension::Fixed(length);
            }
            let symbol: *const c_char = symbol;
            if symbol.is_null() || *symbol == 0 {
                return Dimension::Unknown;
            }
            Dimension::Named(CStr::from_ptr(symbol).to_owned())
        });
        Ok(Some(Declaration {
            element,
            dims: dims.collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(dims: &[Dimension]) -> Declaration {
        Declaration {
            element: 1,
            dims: dims.to_vec(),
        }
    }

    #[test]
    fn shapes_follow_from_names() {
        let named = |name: &CStr| Dimension::Named(name.to_owned());
        let signature = Signature {
            inputs: [(
                c"X".to_owned(),
                declared(&[named(c"rows"), Dimension::Fixed(4)]),
            )]
            .into(),
            outputs: [
                (
                    c"Y".to_owned(),
                    declared(&[named(c"rows"), Dimension::Fixed(2)]),
                ),
                (c"Z".to_owned(), declared(&[named(c"pairs")])),
                (c"U".to_owned(), declared(&[Dimension::Unknown])),
            ]
            .into(),
        };
        let inputs = [(c"X", vec![3, 4])];
        assert_eq!(signature.output(c"Y", &inputs), Some((1, vec![3, 2])));
        for other in [c"Z", c"U", c"none"] {
            assert_eq!(signature.output(other, &inputs), None);
        }
        assert_eq!(signature.output(c"Y", &[]), None);
    }
}
