//! A loaded model.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::engine::{Feed, Signature, Target, TensorInfo, c_path};
use sdk::{Error, Interrupt};

use super::options::{RawOptions, SessionOptions};
use super::run_options::RunOptions;
use super::runtime::Runtime;
use super::table::{OrtSession, OrtTypeInfo, Status};
use super::value::{Value, data_type_from_onnx};

/// `ONNX_TYPE_TENSOR`.
const ONNX_TYPE_TENSOR: c_int = 1;

/// Held while a session with execution providers is made.
static WITH_PROVIDERS: Mutex<()> = Mutex::new(());

/// A model loaded into ONNX Runtime. Used by one thread at a time here.
pub struct Session {
    runtime: Arc<Runtime>,
    raw: NonNull<OrtSession>,
    run_options: Arc<RunOptions>,
    is_profiled: bool,
    signature: Signature,
    /// Where execution providers have a part.
    renewal: Option<Box<Renewal>>,
}

/// How a session is made anew. A run that fails in OpenVINO's provider, for the shapes of its
/// inputs, can leave them behind, and later runs fail or answer with them.
struct Renewal {
    path: CString,
    options: SessionOptions,
    is_due: bool,
}

// SAFETY: a session may be used from any thread.
unsafe impl Send for Session {}

impl Session {
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `Unsupported` if an input or output is no tensor
    /// that Triton knows.
    pub fn load(
        runtime: &Arc<Runtime>,
        model: &Path,
        options: &SessionOptions,
    ) -> Result<Self, Error> {
        let run_options = Arc::new(RunOptions::new(runtime, &options.run_entries)?);
        let path = c_path(model)?;
        let mut session = Session {
            runtime: Arc::clone(runtime),
            raw: create(runtime, &path, options)?,
            run_options,
            is_profiled: options.profile_prefix.is_some(),
            signature: Signature::default(),
            renewal: (!options.providers.is_empty()).then(|| {
                Box::new(Renewal {
                    path,
                    options: options.clone(),
                    is_due: false,
                })
            }),
        };
        session.signature = session.read_signature()?;
        Ok(session)
    }

    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// What ends a run that is going on.
    pub fn interrupt(&self) -> Arc<dyn Interrupt> {
        Arc::clone(&self.run_options) as Arc<dyn Interrupt>
    }

    /// Runs the model on `feeds` and returns the outputs of `targets`, in their order: `None` where
    /// a target had memory of its own. After a run that failed where execution providers have a
    /// part, the session is made anew first, which takes as long as loading the model.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `InvalidArgument` if a string tensor's bytes do
    /// not fit its shape.
    pub fn run(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        self.renew_if_due()?;
        let made = self.run_once(feeds, targets);
        if let Some(renewal) = &mut self.renewal {
            // A run that was ended was so between two nodes of the graph, not within a provider.
            renewal.is_due = made.is_err() && !self.run_options.is_interrupted();
        }
        made
    }

    fn renew_if_due(&mut self) -> Result<(), Error> {
        let Some(renewal) = self.renewal.as_mut().filter(|renewal| renewal.is_due) else {
            return Ok(());
        };
        let fresh = create(&self.runtime, &renewal.path, &renewal.options)?;
        renewal.is_due = false;
        self.release();
        self.raw = fresh;
        Ok(())
    }

    fn run_once(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        let table = &self.runtime.table;
        let inputs = feeds
            .iter()
            .map(|feed| Value::borrow(&self.runtime, feed))
            .collect::<Result<Vec<_>, _>>()?;
        let wanted: Vec<_> = targets.iter().map(|target| target.info).collect();
        let outputs = targets
            .iter_mut()
            .map(|target| {
                let info = target.info;
                target
                    .memory
                    .as_mut()
                    .map(|memory| {
                        Value::over(
                            &self.runtime,
                            info.data_type,
                            &memory.shape,
                            &mut memory.buffer,
                        )
                    })
                    .transpose()
            })
            .collect::<Result<Vec<_>, _>>()?;
        let input_names: Vec<_> = feeds.iter().map(|feed| feed.name.as_ptr()).collect();
        let output_names: Vec<_> = wanted.iter().map(|info| info.name.as_ptr()).collect();
        let input_values: Vec<_> = inputs
            .iter()
            .map(|value| value.as_ptr().cast_const())
            .collect();
        let mut output_values: Vec<_> = outputs
            .iter()
            .map(|value| value.as_ref().map_or(ptr::null_mut(), Value::as_ptr))
            .collect();
        // SAFETY: session, options and values are live; the arrays have the lengths given; input
        // values borrow memory that `feeds` keeps, output values memory that `targets` keep, until
        // after this call.
        let status = unsafe {
            (table.run)(
                self.raw.as_ptr(),
                self.run_options.as_ptr(),
                input_names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                output_values.as_mut_ptr(),
            )
        };
        // SAFETY: the status is ours. A failed run makes no values.
        unsafe { table.check(status)? };
        // Every value made by the run is owned before anything can fail, so that none leaks.
        let made: Vec<Option<Option<Value<'static>>>> = outputs
            .iter()
            .zip(output_values)
            .map(|(own, value)| match own {
                Some(_) => Some(None),
                // SAFETY: made by the run, ours from now on.
                None => NonNull::new(value)
                    .map(|value| Some(unsafe { Value::own(&self.runtime, value) })),
            })
            .collect();
        made.into_iter()
            .zip(wanted)
            .map(|(value, info)| {
                value.ok_or_else(|| {
                    Error::internal(format!(
                        "output tensor '{}' is not found",
                        info.name.to_string_lossy()
                    ))
                })
            })
            .collect()
    }

    /// Gives the session back, which is not used afterwards.
    fn release(&mut self) {
        if self.is_profiled {
            self.end_profiling();
        }
        // SAFETY: ours, and no run is going on.
        unsafe { (self.runtime.table.release_session)(self.raw.as_ptr()) };
    }

    /// Has the profile written, and tells where.
    fn end_profiling(&self) {
        let table = &self.runtime.table;
        let allocator = self.runtime.allocator.as_ptr();
        let mut name = ptr::null_mut();
        // SAFETY: session and allocator are live, the result is writable.
        let ended = unsafe {
            table.check((table.end_profiling)(
                self.raw.as_ptr(),
                allocator,
                &raw mut name,
            ))
        };
        if let Err(error) = ended {
            sdk::error!("failed to end a profile: {error}");
            return;
        }
        if name.is_null() {
            return;
        }
        // SAFETY: allocated for us, NUL-terminated, and freed after it was read.
        unsafe {
            sdk::info!(
                "onnxruntime wrote a profile to {}",
                CStr::from_ptr(name).to_string_lossy()
            );
            let _ = table.check((table.allocator_free)(allocator, name.cast()));
        }
    }

    fn read_signature(&self) -> Result<Signature, Error> {
        let table = &self.runtime.table;
        Ok(Signature {
            inputs: self.read_infos(table.input_count, table.input_name, table.input_type)?,
            outputs: self.read_infos(table.output_count, table.output_name, table.output_type)?,
            initializers: self.read_infos(
                table.initializer_count,
                table.initializer_name,
                table.initializer_type,
            )?,
        })
    }

    fn read_infos(
        &self,
        count_of: unsafe extern "C" fn(*const OrtSession, *mut usize) -> Status,
        name_of: unsafe extern "C" fn(
            *const OrtSession,
            usize,
            *mut super::table::OrtAllocator,
            *mut *mut c_char,
        ) -> Status,
        type_of: unsafe extern "C" fn(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> Status,
    ) -> Result<Vec<TensorInfo>, Error> {
        let table = &self.runtime.table;
        let mut count = 0;
        // SAFETY: the session is live, the result writable.
        unsafe { table.check(count_of(self.raw.as_ptr(), &raw mut count))? };
        (0..count)
            .map(|index| {
                let mut name = ptr::null_mut();
                let mut type_info = ptr::null_mut();
                // SAFETY: the session is live, the index in range, the results writable; the name
                // is allocated for us, NUL-terminated, and freed after it was copied; the type
                // information is owned by the wrapper.
                unsafe {
                    table.check(name_of(
                        self.raw.as_ptr(),
                        index,
                        self.runtime.allocator.as_ptr(),
                        &raw mut name,
                    ))?;
                    let owned = CStr::from_ptr(name).to_owned();
                    table.check((table.allocator_free)(
                        self.runtime.allocator.as_ptr(),
                        name.cast(),
                    ))?;
                    table.check(type_of(self.raw.as_ptr(), index, &raw mut type_info))?;
                    let type_info = TypeInfo {
                        runtime: &self.runtime,
                        raw: type_info,
                    };
                    type_info.tensor(owned)
                }
            })
            .collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.release();
    }
}

/// Has ONNX Runtime read a model.
fn create(
    runtime: &Runtime,
    path: &CStr,
    options: &SessionOptions,
) -> Result<NonNull<OrtSession>, Error> {
    let table = &runtime.table;
    let raw_options = RawOptions::new(runtime, options)?;
    let mut session = ptr::null_mut();
    // OpenVINO's provider does not stand two sessions being made at once, says upstream's backend.
    let _one_at_a_time = (!options.providers.is_empty()).then(|| {
        WITH_PROVIDERS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    });
    // SAFETY: environment and options are live, the path is NUL-terminated, the result writable.
    unsafe {
        table.check((table.create_session)(
            runtime.env.as_ptr(),
            path.as_ptr(),
            raw_options.raw,
            &raw mut session,
        ))?;
    }
    NonNull::new(session).ok_or_else(|| Error::internal("ONNX Runtime gave no session"))
}

struct TypeInfo<'r> {
    runtime: &'r Runtime,
    raw: *mut OrtTypeInfo,
}

impl TypeInfo<'_> {
    fn tensor(&self, name: CString) -> Result<TensorInfo, Error> {
        let table = &self.runtime.table;
        let mut kind = 0;
        let mut tensor = ptr::null();
        // SAFETY: the type information is live, the results writable; the cast borrows from it.
        let (element, dims) = unsafe {
            table.check((table.onnx_type)(self.raw, &raw mut kind))?;
            if kind != ONNX_TYPE_TENSOR {
                return Err(Error::unsupported(format!(
                    "Unsupported ONNX Type '{}' for I/O '{}', expected 'ONNX_TYPE_TENSOR'.",
                    onnx_type_name(kind),
                    name.to_string_lossy()
                )));
            }
            table.check((table.cast_to_tensor_info)(self.raw, &raw mut tensor))?;
            self.runtime.table.shape_of(tensor)?
        };
        let data_type = data_type_from_onnx(element).ok_or_else(|| {
            Error::unsupported(format!(
                "unsupported ONNX element type {element} of I/O '{}'",
                name.to_string_lossy()
            ))
        })?;
        Ok(TensorInfo {
            name,
            data_type,
            // Unknown dimensions come as -1; older libraries also say 0 for some symbolic ones,
            // which no tensor of use has.
            dims: dims
                .iter()
                .map(|&dim| if dim > 0 { dim } else { -1 })
                .collect(),
        })
    }
}

impl Drop for TypeInfo<'_> {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { (self.runtime.table.release_type_info)(self.raw) };
    }
}

fn onnx_type_name(kind: c_int) -> &'static str {
    match kind {
        1 => "ONNX_TYPE_TENSOR",
        2 => "ONNX_TYPE_SEQUENCE",
        3 => "ONNX_TYPE_MAP",
        4 => "ONNX_TYPE_OPAQUE",
        5 => "ONNX_TYPE_SPARSETENSOR",
        6 => "ONNX_TYPE_OPTIONAL",
        _ => "ONNX_TYPE_UNKNOWN",
    }
}
