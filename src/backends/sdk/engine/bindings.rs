//! Parts of a binding to an engine's C interface: opaque types, functions, texts.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Error;

/// Declares types of a C library that are only ever used behind pointers.
///
/// ```
/// conch_backend_sdk::opaque_types! {
///     /// A parsed model.
///     RawModel
///     RawSession
/// }
/// # fn takes(_: *mut RawModel, _: *mut RawSession) {}
/// ```
#[macro_export]
macro_rules! opaque_types {
    ($($(#[$attribute:meta])* $name:ident)*) => { $(
        $(#[$attribute])*
        #[repr(C)]
        pub struct $name {
            opaque: [u8; 0],
            // Who makes them says which threads may use them: the wrapper, not this type.
            marker: ::std::marker::PhantomData<(*mut u8, ::std::marker::PhantomPinned)>,
        }
    )* };
}

/// Declares a struct of functions of a C library, each found by its symbol.
///
/// The symbol is followed by the name of the struct's field, the types of the arguments, with
/// `; ...` behind them if there may be more, and the type of the result. The struct gets a function
/// `read(&Library)`, whose error is the symbol that the library lacks. Fields of `optional`
/// functions are `Option`s.
///
/// ```
/// use std::ffi::{c_char, c_int};
/// use std::path::Path;
///
/// use conch_backend_sdk::engine::{Binding, Library};
///
/// conch_backend_sdk::functions! {
///     /// What is used of the C library. Contracts are those of its manual.
///     pub struct Functions;
///
///     unsafe extern "C" {
///         strlen as length(*const c_char) -> usize;
///         snprintf as print(*mut c_char, usize, *const c_char; ...) -> c_int;
///     }
///     optional {
///         gnu_get_libc_version as version() -> *const c_char;
///     }
/// }
///
/// // SAFETY: its initialisers ran when the process started.
/// let library = unsafe { Library::open(Path::new("libc.so.6"), Binding::Lazy) }?;
/// // SAFETY: the C library's functions have these types.
/// let functions = unsafe { Functions::read(&library) }?;
/// // SAFETY: the text is NUL-terminated, and the library is open.
/// assert_eq!(unsafe { (functions.length)(c"four".as_ptr()) }, 4);
/// # Ok::<(), String>(())
/// ```
///
/// # Safety
/// `unsafe extern "C"` is a promise, as it is before Rust's own declarations: where a library that
/// `read` is given has a function of a name, the function has this type. A function may be called
/// as its header says, while its library is open.
#[macro_export]
macro_rules! functions {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident;

        unsafe extern "C" {
            $(
                $(#[$about:meta])*
                $symbol:ident as $name:ident($($argument:ty),* $(; $more:tt)?) $(-> $result:ty)?;
            )*
        }
        $(optional {
            $(
                $(#[$optional_about:meta])*
                $optional_symbol:ident as $optional:ident($($optional_argument:ty),*)
                    $(-> $optional_result:ty)?;
            )*
        })?
    ) => {
        $(#[$attribute])*
        $visibility struct $table {
            $(
                $(#[$about])*
                $visibility $name:
                    unsafe extern "C" fn($($argument),* $(, $more)?) $(-> $result)?,
            )*
            $($(
                $(#[$optional_about])*
                $visibility $optional: ::std::option::Option<
                    unsafe extern "C" fn($($optional_argument),*) $(-> $optional_result)?,
                >,
            )*)?
        }

        impl $table {
            /// # Errors
            /// The symbol of the first function that the library lacks.
            ///
            /// # Safety
            /// The library is the one whose functions are declared here, or lacks the first of
            /// them. They may be called while it is open.
            $visibility unsafe fn read(
                library: &$crate::engine::Library,
            ) -> ::std::result::Result<Self, &'static str> {
                ::std::result::Result::Ok($table {
                    $(
                        // SAFETY: the declaration gives the function exactly this type.
                        $name: unsafe {
                            library.function::<
                                unsafe extern "C" fn($($argument),* $(, $more)?) $(-> $result)?,
                            >(stringify!($symbol))
                        }
                        .ok_or(stringify!($symbol))?,
                    )*
                    $($(
                        // SAFETY: as above.
                        $optional: unsafe {
                            library.function::<
                                unsafe extern "C" fn($($optional_argument),*)
                                    $(-> $optional_result)?,
                            >(stringify!($optional_symbol))
                        },
                    )*)?
                })
            }
        }
    };
}

/// A copy of the text at an address; empty for null.
///
/// # Safety
/// Null, or NUL-terminated and not changed during the call.
pub unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// A text for C.
///
/// # Errors
/// `InvalidArgument` if there is a NUL in it.
pub fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::invalid(format!("'{text}' contains a NUL")))
}

/// A path for C.
///
/// # Errors
/// As [`c_string`].
pub fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid(format!("path {} contains a NUL", path.display())))
}

// Miri has no dynamic linker.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::ffi::{c_char, c_int};
    use std::path::Path;
    use std::ptr;

    use super::text_at;
    use crate::engine::{Binding, Library};

    crate::functions! {
        struct Known;

        unsafe extern "C" {
            strlen as length(*const c_char) -> usize;
            snprintf as print(*mut c_char, usize, *const c_char; ...) -> c_int;
        }
        optional {
            abs as magnitude(c_int) -> c_int;
            conch_no_such_function as no_such();
        }
    }

    crate::functions! {
        struct Unknown;

        unsafe extern "C" {
            strlen as _length(*const c_char) -> usize;
            conch_no_such_function as _no_such();
        }
    }

    fn c_library() -> Result<Library, String> {
        // SAFETY: the C library's initialisers ran when the process started.
        unsafe { Library::open(Path::new("libc.so.6"), Binding::Now) }
    }

    #[test]
    fn functions_are_found_by_their_symbols() {
        let library = c_library().unwrap();
        // SAFETY: the C library's functions have these types.
        let known = unsafe { Known::read(&library) }.unwrap();
        let mut text = [0; 16];
        // SAFETY: the texts are NUL-terminated, the buffer is as long as said, and as many
        // arguments follow as the format has.
        unsafe {
            assert_eq!((known.length)(c"four".as_ptr()), 4);
            let written = (known.print)(
                text.as_mut_ptr(),
                text.len(),
                c"%d-%d".as_ptr(),
                7_i32,
                8_i32,
            );
            assert_eq!(written, 3);
            assert_eq!(text_at(text.as_ptr()), "7-8");
            assert_eq!(known.magnitude.map(|magnitude| magnitude(-3)), Some(3));
        }
        assert!(known.no_such.is_none());
    }

    #[test]
    fn what_is_missing_is_named() {
        // SAFETY: as above; nothing is called.
        let read = unsafe { Unknown::read(&c_library().unwrap()) };
        assert_eq!(read.err(), Some("conch_no_such_function"));
    }

    #[test]
    fn no_text_is_an_empty_one() {
        // SAFETY: null.
        assert_eq!(unsafe { text_at(ptr::null()) }, "");
    }
}
