//! An opened OpenVINO library.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::{Library, LibraryPlace, text_at};

use super::element_types::ElementTypes;
use super::table::{Functions, Shape, Status, Version};

/// Where OpenVINO's library is.
pub const PLACE: LibraryPlace = LibraryPlace {
    backend: "openvino",
    product: "OpenVINO",
    variable: "CONCH_OPENVINO_LIBRARY",
    settings: &["library"],
    stem: "libopenvino_c.so",
    package: None,
};

/// OpenVINO's C library. It stays loaded when this is dropped, since its threads and those of the
/// plug-ins that it loads outlive whatever was made from it.
pub struct Runtime {
    pub(super) functions: Functions,
    pub(super) element_types: ElementTypes,
    version: String,
    path: PathBuf,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "OpenVINO {} at {}",
            self.version,
            self.path.display()
        )
    }
}

impl Runtime {
    /// # Errors
    /// `Unavailable` if the file is no such library, or not one that can be used.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // SAFETY: the operator names this library to be run in the process; its initialisers are
        // OpenVINO's.
        let library = unsafe { Library::open_engine(&PLACE, path) }?;
        // SAFETY: the library is OpenVINO's, or lacks the functions.
        let functions = unsafe { Functions::read(library) }.map_err(|symbol| {
            let why = format_args!("is not OpenVINO, or too old: it has no '{symbol}'");
            PLACE.unusable(path, why)
        })?;
        let element_types = ElementTypes::find(|element| byte_count_of_8(&functions, element))
            .map_err(|error| PLACE.unusable(path, error))?;
        Ok(Runtime {
            version: version(&functions),
            functions,
            element_types,
            path: path.to_owned(),
        })
    }

    /// `Err` with OpenVINO's own words unless `status` is success. `doing` says what was done.
    pub(super) fn check(&self, status: Status, doing: &str) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        Err(Error::internal(format!(
            "openvino error in {doing} : {}",
            self.last_error(status)
        )))
    }

    /// The text of the last error in one line, or what its status means.
    fn last_error(&self, status: Status) -> String {
        if let Some(last) = self.functions.get_last_err_msg {
            // SAFETY: takes nothing; returns null, or a text that the caller frees.
            let text = self.owned_text(unsafe { last() });
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let line = lines.collect::<Vec<_>>().join(" ");
            if !line.is_empty() {
                return line;
            }
        }
        // SAFETY: any number may be asked for; the text is static.
        let meaning = unsafe { (self.functions.get_error_info)(status) };
        match meaning.is_null() {
            true => format!("status {status}"),
            // SAFETY: NUL-terminated.
            false => unsafe { text_at(meaning) },
        }
    }

    /// Copies and frees a text that OpenVINO made; "" for null.
    pub(super) fn owned_text(&self, text: *const c_char) -> String {
        self.owned_c_string(text).to_string_lossy().into_owned()
    }

    /// The same, as it is.
    pub(super) fn owned_c_string(&self, text: *const c_char) -> CString {
        if text.is_null() {
            return CString::default();
        }
        // SAFETY: made for the caller, NUL-terminated, and freed once after it was copied.
        unsafe {
            let copy = CStr::from_ptr(text).to_owned();
            (self.functions.free)(text);
            copy
        }
    }
}

fn version(functions: &Functions) -> String {
    let mut version = Version {
        build_number: ptr::null(),
        description: ptr::null(),
    };
    // SAFETY: the result is writable; its texts are NUL-terminated, and freed after they were
    // copied.
    unsafe {
        if (functions.get_openvino_version)(&raw mut version) != 0 || version.build_number.is_null()
        {
            return "of an unknown version".to_owned();
        }
        let number = text_at(version.build_number);
        (functions.version_free)(&raw mut version);
        number
    }
}

/// How many bytes a tensor of 8 elements has.
fn byte_count_of_8(functions: &Functions, element: c_int) -> Option<usize> {
    let mut dims = [8];
    let shape = Shape {
        rank: 1,
        dims: dims.as_mut_ptr(),
    };
    let mut tensor = ptr::null_mut();
    let mut byte_count = 0;
    // SAFETY: the shape is as long as it says, the results are writable; the tensor is ours and
    // freed once. The library answers numbers that are no element type with an error.
    unsafe {
        if (functions.tensor_create)(element, shape, &raw mut tensor) != 0 || tensor.is_null() {
            return None;
        }
        let status = (functions.tensor_get_byte_size)(tensor, &raw mut byte_count);
        (functions.tensor_free)(tensor);
        (status == 0).then_some(byte_count)
    }
}
