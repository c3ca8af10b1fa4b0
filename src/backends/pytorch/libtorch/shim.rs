//! The shim for TorchScript, `libconch_torch.so`. Its contracts are in `shim/conch_torch.cpp`.

use std::ffi::c_char;
use std::path::Path;

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::text_at;

use super::library::{RawTensor, Version, open};

/// What a shim has in it before the number of its interface.
const MARK: &[u8] = b"conch-torch-shim ";

/// The interface that this file knows.
const INTERFACE: &str = "2";

/// Largest file that is read in search of the mark; the shim has 120 KB.
const SHIM_BYTES_MAX: u64 = 64 << 20;

sdk::opaque_types! { RawModule RawOutputs }

#[repr(C)]
pub struct RawInput {
    pub tensor: *mut RawTensor,
    pub key: *const c_char,
    pub text: *const c_char,
    pub lengths: *const usize,
    pub count: usize,
}

/// How forward is run; `None` leaves what the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    pub inference_mode: bool,
    pub optimized_execution: bool,
    /// These three belong to the process, not the model.
    pub jit_profiling: Option<bool>,
    pub jit_executor: Option<bool>,
    pub tensor_fuser: Option<bool>,
    pub cudnn: Option<bool>,
    /// Gives unused memory of the GPU back after a run.
    pub cleans_cache: bool,
}

#[repr(C)]
pub struct RawOptions {
    inference_mode: i32,
    optimized_execution: i32,
    jit_profiling: i32,
    jit_executor: i32,
    tensor_fuser: i32,
    cudnn: i32,
    cleans_cache: i32,
    gpu: i32,
}

impl RawOptions {
    /// Of a run on the GPU of this number, if there is one.
    pub fn new(options: RunOptions, gpu: Option<i32>) -> Self {
        let choice = |value: Option<bool>| value.map_or(-1, i32::from);
        RawOptions {
            inference_mode: i32::from(options.inference_mode),
            optimized_execution: i32::from(options.optimized_execution),
            jit_profiling: choice(options.jit_profiling),
            jit_executor: choice(options.jit_executor),
            tensor_fuser: choice(options.tensor_fuser),
            cudnn: gpu.and(options.cudnn).map_or(-1, i32::from),
            cleans_cache: i32::from(gpu.is_some() && options.cleans_cache),
            gpu: gpu.unwrap_or(-1),
        }
    }
}

/// Null, or a text for [`Shim::check`].
type Failure = *mut c_char;

sdk::functions! {
    /// The shim's functions.
    pub struct Shim;

    unsafe extern "C" {
        conch_torch_free_text as free_text(*mut c_char);
        conch_torch_load as load(*const c_char, i32, i32, *mut *mut RawModule) -> Failure;
        conch_torch_free_module as free_module(*mut RawModule);
        conch_torch_arguments as arguments(*mut RawModule, *mut *mut c_char) -> Failure;
        conch_torch_set_interop_threads as set_interop_threads(i32) -> Failure;
        conch_torch_forward as forward(
            *mut RawModule, *const RawOptions, *const RawInput, usize, i32, *mut *mut RawOutputs
        ) -> Failure;
        conch_torch_output_count as output_count(*const RawOutputs) -> usize;
        conch_torch_output_key as output_key(*const RawOutputs, usize) -> *const c_char;
        conch_torch_take_tensor as take_tensor(*mut RawOutputs, usize) -> *mut RawTensor;
        conch_torch_output_strings as output_strings(
            *const RawOutputs, usize, *mut usize, *mut usize
        ) -> *const c_char;
        conch_torch_free_outputs as free_outputs(*mut RawOutputs);
    }
}

impl Shim {
    /// Opens the shim at `path`, which must be compiled for this version of torch.
    ///
    /// # Errors
    /// `Unavailable` if it is not, or cannot be opened.
    pub fn open(path: &Path, torch: Version) -> Result<Self, Error> {
        check_mark(path, torch)?;
        // SAFETY: by its mark it is a shim that links against this torch.
        let library = unsafe { open(path)? };
        // SAFETY: the functions have these types in this interface.
        unsafe { Self::read(library) }.map_err(|symbol| {
            Error::unavailable(format!(
                "the shim {} has no function {symbol}",
                path.display()
            ))
        })
    }

    /// The text of a failure, freed.
    pub fn check(&self, failure: Failure) -> Result<(), String> {
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: the shim gave it, NUL-terminated, and nobody else has it.
        let text = unsafe { text_at(failure) }.trim_end().to_owned();
        // SAFETY: as above, and not used any more.
        unsafe { (self.free_text)(failure) };
        Err(text)
    }
}

/// Reads in the shim's file what it was compiled for, before any of it runs.
fn check_mark(path: &Path, torch: Version) -> Result<(), Error> {
    let unreadable = |error: String| {
        Error::unavailable(format!("cannot read the shim {}: {error}", path.display()))
    };
    let size = path
        .metadata()
        .map_err(|error| unreadable(error.to_string()))?
        .len();
    if size > SHIM_BYTES_MAX {
        return Err(unreadable("it is too large for one".to_owned()));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    let (interface, version) =
        mark(&bytes).ok_or_else(|| unreadable("it is not one".to_owned()))?;
    if interface != INTERFACE {
        return Err(Error::unavailable(format!(
            "the shim {} is of another version of this backend; run scripts/build-torch-shim again",
            path.display()
        )));
    }
    if Version::parse(&version).is_some_and(|version| version.is_compatible(torch)) {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "the shim {} was compiled for torch {version}, and the torch library is {torch}: run \
         scripts/build-torch-shim with the folder of that torch",
        path.display()
    )))
}

/// Interface and torch's version in a shim's file.
fn mark(bytes: &[u8]) -> Option<(String, String)> {
    let start = bytes
        .windows(MARK.len())
        .position(|window| window == MARK)?;
    let text = bytes
        .get(start + MARK.len()..)?
        .split(|&byte| byte == 0)
        .next()?;
    let (interface, version) = std::str::from_utf8(text).ok()?.split_once(" for torch ")?;
    Some((interface.to_owned(), version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_shim_was_compiled_for() {
        let both =
            |interface: &str, version: &str| Some((interface.to_owned(), version.to_owned()));
        for (bytes, expected) in [
            (
                &b"\x7fELF..conch-torch-shim 1 for torch 2.15.0\0rest"[..],
                both("1", "2.15.0"),
            ),
            (
                b"conch-torch-shim 2 for torch 2.9.1a0\0",
                both("2", "2.9.1a0"),
            ),
            (b"conch-torch-shim 1\0 for torch 2.9.1a0\0", None),
            (b"conch-torch-shim", None),
            (b"", None),
        ] {
            assert_eq!(mark(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn refuses_a_shim_of_another_torch() {
        let path = std::env::temp_dir().join(format!("conch-shim-{}", std::process::id()));
        let torch = Version::parse("2.15.0").unwrap();
        for (mark, expected) in [
            ("conch-torch-shim 2 for torch 2.15.1\0", None),
            (
                "conch-torch-shim 2 for torch 2.10.0\0",
                Some("was compiled for torch 2.10.0, and the torch library is 2.15.0: run"),
            ),
            (
                "conch-torch-shim 7 for torch 2.15.0\0",
                Some("another version of this backend"),
            ),
            ("ELF", Some("it is not one")),
        ] {
            std::fs::write(&path, mark).unwrap();
            match (check_mark(&path, torch), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(text)) => assert!(error.message().contains(text), "{error}"),
                (got, _) => panic!("{mark}: {got:?}"),
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(check_mark(&path, torch).is_err());
    }

    #[test]
    fn options_of_the_process_may_be_left() {
        let given = RunOptions {
            inference_mode: true,
            optimized_execution: false,
            jit_profiling: None,
            jit_executor: Some(false),
            tensor_fuser: Some(true),
            cudnn: Some(false),
            cleans_cache: true,
        };
        for (gpu, expected) in [
            (None, [1, 0, -1, 0, 1, -1, 0, -1]),
            (Some(3), [1, 0, -1, 0, 1, 0, 1, 3]),
        ] {
            let RawOptions {
                inference_mode,
                optimized_execution,
                jit_profiling,
                jit_executor,
                tensor_fuser,
                cudnn,
                cleans_cache,
                gpu,
            } = RawOptions::new(given, gpu);
            assert_eq!(
                [
                    inference_mode,
                    optimized_execution,
                    jit_profiling,
                    jit_executor,
                    tensor_fuser,
                    cudnn,
                    cleans_cache,
                    gpu
                ],
                expected
            );
        }
    }
}
