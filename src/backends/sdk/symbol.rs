//! Functions of the server that older servers lack. A reference by name would keep the whole
//! plug-in from being loaded there, so they are looked up when they are first needed.

use std::ffi::{CStr, c_void};
use std::mem;
use std::sync::OnceLock;

use crate::Error;

/// A function of the server by its name; `F` is a pointer to it.
pub(crate) struct ServerFunction<F> {
    name: &'static CStr,
    found: OnceLock<Option<F>>,
}

impl<F: Copy> ServerFunction<F> {
    /// # Safety
    /// `F` is a function pointer of the type that Triton's headers give the function `name`.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        ServerFunction {
            name,
            found: OnceLock::new(),
        }
    }

    /// The function; none if the server has none.
    pub(crate) fn find(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        *self.found.get_or_init(|| {
            // SAFETY: the name is NUL-terminated; nothing is called.
            let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) };
            // SAFETY: the address of a function that has this type, by the contract of `new`.
            (!address.is_null()).then(|| unsafe { mem::transmute_copy::<*mut c_void, F>(&address) })
        })
    }

    /// # Errors
    /// `Unsupported` if the server has no such function.
    pub(crate) fn require(&self) -> Result<F, Error> {
        self.find().ok_or_else(|| {
            Error::unsupported(format!(
                "the server has no function {}",
                self.name.to_string_lossy()
            ))
        })
    }
}

// Miri has no dynamic linker.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::ffi::{c_char, c_int};

    use super::*;

    #[test]
    fn finds_what_the_process_has() {
        type Length = unsafe extern "C" fn(*const c_char) -> usize;
        // SAFETY: the type of the C library's function.
        static KNOWN: ServerFunction<Length> = unsafe { ServerFunction::new(c"strlen") };
        // SAFETY: there is no such function.
        static UNKNOWN: ServerFunction<unsafe extern "C" fn() -> c_int> =
            unsafe { ServerFunction::new(c"TRITONSERVER_NoSuchFunction") };
        let length = KNOWN.require().unwrap();
        // SAFETY: the text is NUL-terminated.
        assert_eq!(unsafe { length(c"four".as_ptr()) }, 4);
        assert!(UNKNOWN.find().is_none());
        let error = UNKNOWN.require().unwrap_err();
        assert_eq!(error.code(), crate::Code::Unsupported);
        assert_eq!(
            error.message(),
            "the server has no function TRITONSERVER_NoSuchFunction"
        );
    }
}
