//! An opened TensorFlow library.

use std::fmt;
use std::path::{Path, PathBuf};

use conch_backend_sdk as sdk;
use prost::Message;
use sdk::Error;
use sdk::engine::{self, LibraryPlace, c_path, text_at};

use super::table::{Table, contents};
use crate::messages::OpList;

/// Where TensorFlow's library is.
pub const PLACE: LibraryPlace = LibraryPlace {
    backend: "tensorflow",
    product: "TensorFlow",
    variable: "CONCH_TENSORFLOW_LIBRARY",
    settings: &["library", "tensorflow-library"],
    stem: "libtensorflow_cc.so",
    package: None,
};

/// The oldest version that is served.
const VERSION_MIN: (u32, u32) = (2, 12);

/// TensorFlow, opened. It stays loaded when this is dropped: its threads outlive every session.
pub struct Library {
    pub(super) table: Table,
    version: String,
    path: PathBuf,
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(formatter, "TensorFlow {} at {path}", self.version)
    }
}

impl Library {
    /// # Errors
    /// `Unavailable` if the file is no such library, is too old, or wants another CPU.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // Packages of TensorFlow for this architecture are built for AVX, and end the process when
        // they are loaded without it.
        #[cfg(target_arch = "x86_64")]
        if !std::arch::is_x86_feature_detected!("avx") {
            return Err(PLACE.unusable(path, "needs a CPU with AVX"));
        }
        // SAFETY: the operator names this library to be run in the process; its initialisers are
        // TensorFlow's.
        let library = unsafe { engine::Library::open_engine(&PLACE, path) }?;
        // SAFETY: it has TensorFlow's functions, or the first lookup fails; never unloaded.
        let table = unsafe { Table::read(library) }.map_err(|symbol| {
            PLACE.unusable(
                path,
                format_args!("is not TensorFlow: it has no '{symbol}'"),
            )
        })?;
        // SAFETY: a static NUL-terminated string.
        let version = unsafe { text_at((table.version)()) };
        if parse(&version).is_none_or(|version| version < VERSION_MIN) {
            let (major, minor) = VERSION_MIN;
            return Err(PLACE.unusable(
                path,
                format_args!("is version {version}, this backend needs {major}.{minor} or later"),
            ));
        }
        Ok(Library {
            table,
            version,
            path: path.to_owned(),
        })
    }

    /// Adds the operators of a library to all graphs of the process.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's own words.
    pub fn add_operators(&self, path: &Path) -> Result<(), Error> {
        let path = c_path(path)?;
        // SAFETY: the path is NUL-terminated. What comes back describes the library, which stays
        // loaded, and is kept by TensorFlow as long.
        unsafe {
            self.table
                .check(|status| (self.table.load_library)(path.as_ptr(), status))?;
        }
        Ok(())
    }

    /// All operators that graphs may have.
    ///
    /// # Errors
    /// `Internal` if TensorFlow gives none.
    pub fn operators(&self) -> Result<OpList, Error> {
        // SAFETY: the buffer is ours, read while it lives, and deleted afterwards.
        let list = unsafe {
            let buffer = (self.table.all_operators)();
            if buffer.is_null() {
                return Err(Error::internal("TensorFlow gave no list of its operators"));
            }
            let list = OpList::decode(contents(buffer));
            (self.table.delete_buffer)(buffer);
            list
        };
        list.map_err(|error| Error::internal(format!("TensorFlow's list of operators: {error}")))
    }
}

/// Major and minor number.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        for (text, expected) in [
            ("2.21.0", Some((2, 21))),
            ("2.12.0-rc1", Some((2, 12))),
            ("1.15.5", Some((1, 15))),
            ("2", None),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        assert!((2, 9) < VERSION_MIN && (3, 0) > VERSION_MIN);
    }

    #[test]
    fn refuses_what_is_not_tensorflow() {
        let error = Library::open(Path::new("/nowhere/libtensorflow_cc.so.2")).unwrap_err();
        assert!(error.message().contains("cannot be loaded"), "{error:?}");
        // A library that is everywhere, and is something else.
        let error = Library::open(Path::new("libc.so.6")).unwrap_err();
        assert!(error.message().contains("is not TensorFlow"), "{error:?}");
    }
}
