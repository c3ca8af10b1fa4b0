//! The plug-in's own shared library.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};
use std::sync::Once;

/// The folder of the shared library that holds the caller's code.
///
/// [`BackendContext::directory`](crate::BackendContext::directory) is another folder where the
/// backend's files are those of a language's backend, as with models of a Python-based backend.
/// None if the loader does not know the library's file.
pub fn library_directory() -> Option<PathBuf> {
    let library = path::absolute(library_path()?).ok()?;
    library.parent().map(Path::to_owned)
}

/// Keeps the library in memory until the process ends, also after the server closed it. For code
/// that the server may still return through then: a thread is inside of a callback until the very
/// last instruction, which nothing in the callback can report.
pub(crate) fn keep_loaded() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let path = library_path().and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: the path is NUL-terminated; the library is loaded, so none of its code runs.
        let kept =
            path.is_some_and(|path| unsafe { !libc::dlopen(path.as_ptr(), flags).is_null() });
        if !kept {
            crate::warning!("cannot keep the library of a backend in memory");
        }
    });
}

/// The file of the library, as the loader names it.
fn library_path() -> Option<PathBuf> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    let address = library_path as *const () as *const c_void;
    // SAFETY: any address may be asked for, and the result is writable.
    if unsafe { libc::dladdr(address, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: filled in, as the call succeeded.
    let found = unsafe { found.assume_init() };
    if found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: NUL-terminated, and there as long as the library is loaded, which runs this.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

// Miri has no dynamic linker.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_that_of_the_file_that_holds_this_code() {
        let program = std::env::current_exe().unwrap();
        let directory = library_directory().unwrap();
        assert!(directory.is_absolute());
        assert_eq!(
            directory.canonicalize().unwrap(),
            program.parent().unwrap().canonicalize().unwrap()
        );
    }
}
