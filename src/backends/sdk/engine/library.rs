//! Libraries that are opened at run time.

use std::path::Path;

use libloading::os::unix;

use super::library_place::LibraryPlace;
use crate::Error;

/// When the loader finds the functions of other libraries that a library calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Each at its first call. One that is missing ends the process then.
    Lazy,
    /// All at once. One that is missing is an error of [`Library::open`].
    Now,
}

/// An open library, closed when dropped.
#[derive(Debug)]
pub struct Library(unix::Library);

impl Library {
    /// Opens the library at a path, or the one of a name that the loader knows. Its symbols are not
    /// seen by libraries that are opened later.
    ///
    /// # Errors
    /// Why it cannot be opened, in one line of the loader's.
    ///
    /// # Safety
    /// Its initialisers run, and its finalisers when it is closed: whoever named it must mean it to
    /// be run in the process. Nothing of it is used once it is closed.
    pub unsafe fn open(path: &Path, binding: Binding) -> Result<Self, String> {
        let flags = unix::RTLD_LOCAL
            | match binding {
                Binding::Lazy => unix::RTLD_LAZY,
                Binding::Now => unix::RTLD_NOW,
            };
        // SAFETY: by this function's contract.
        match unsafe { unix::Library::open(Some(path), flags) } {
            Ok(library) => Ok(Library(library)),
            Err(error) => Err(loading_failure(&error)),
        }
    }

    /// Opens an engine's library for good: threads and thread-locals of an engine outlive what was
    /// made with it.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be opened.
    ///
    /// # Safety
    /// As [`open`](Self::open).
    pub unsafe fn open_engine(place: &LibraryPlace, path: &Path) -> Result<&'static Self, Error> {
        // SAFETY: by this function's contract.
        match unsafe { Self::open(path, Binding::Lazy) } {
            Ok(library) => Ok(library.keep_open()),
            Err(why) => Err(place.unusable(path, format_args!("cannot be loaded: {why}"))),
        }
    }

    /// Never closes the library.
    pub fn keep_open(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// The function of a symbol; `F` is a pointer to it.
    ///
    /// # Safety
    /// If the library has the symbol, it is a function of this type. It is not called once the
    /// library is closed.
    pub unsafe fn function<F: Copy>(&self, symbol: &str) -> Option<F> {
        // SAFETY: by this function's contract.
        unsafe { self.0.get::<F>(symbol) }
            .ok()
            .map(|function| *function)
    }
}

/// Why a library could not be opened, in one line: the error at the bottom, which is the loader's
/// own and names the file that is missing.
fn loading_failure(error: &dyn std::error::Error) -> String {
    let deepest = std::iter::successors(Some(error), |error| error.source()).last();
    deepest.unwrap_or(error).to_string().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_error_tells_why() {
        let inner = std::io::Error::other("libtbb.so.12: cannot open\nshared object file");
        let outer = std::io::Error::other(inner);
        let expected = "libtbb.so.12: cannot open shared object file";
        assert_eq!(loading_failure(&outer), expected);
    }

    // Miri has no dynamic linker.
    #[cfg(not(miri))]
    #[test]
    fn says_why_an_engine_cannot_be_opened() {
        const PLACE: LibraryPlace = LibraryPlace {
            backend: "engine",
            product: "Engine",
            variable: "CONCH_ENGINE_LIBRARY",
            settings: &["library"],
            stem: "libengine.so",
            package: None,
        };
        // SAFETY: there is no such library.
        let opened = unsafe { Library::open_engine(&PLACE, Path::new("/nowhere/libengine.so")) };
        let error = opened.unwrap_err();
        let expected = "Engine library /nowhere/libengine.so: cannot be loaded: /nowhere/";
        assert!(error.message().starts_with(expected), "{error}");
    }
}
