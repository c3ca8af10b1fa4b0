//! The engine that runs models: ONNX Runtime where its library is found, else the embedded one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Contents, Feed, Signature, Target};
use sdk::{DeviceWork, Error, Interrupt, engine};

use crate::ort::{self, Gpu, Runtime, SessionOptions};

#[cfg(feature = "embedded")]
use crate::embedded;

/// Value of a library setting that asks for the embedded engine.
pub const EMBEDDED: &str = "embedded";

/// Which engine to use, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The library at this path.
    Library(PathBuf),
    Embedded,
}

impl Choice {
    /// The choice that a setting makes.
    pub fn of_setting(setting: PathBuf) -> Self {
        match setting == Path::new(EMBEDDED) {
            true => Choice::Embedded,
            false => Choice::Library(setting),
        }
    }
}

/// An opened engine.
#[derive(Clone, Debug)]
pub enum Engine {
    OnnxRuntime(Arc<Runtime>),
    #[cfg(feature = "embedded")]
    Embedded,
}

impl Engine {
    /// # Errors
    /// `Unavailable` if the library cannot be used, or the embedded engine was left out of this
    /// build.
    pub fn open(choice: &Choice, threads: Option<ort::GlobalThreads>) -> Result<Self, Error> {
        match choice {
            Choice::Library(path) => {
                Ok(Engine::OnnxRuntime(Arc::new(Runtime::open(path, threads)?)))
            }
            #[cfg(feature = "embedded")]
            Choice::Embedded => Ok(Engine::Embedded),
            #[cfg(not(feature = "embedded"))]
            Choice::Embedded => Err(Error::unavailable(
                "no ONNX Runtime library was found, and this build has no embedded engine; name a \
                 library with --backend-config=onnxruntime,onnxruntime-library=<path>",
            )),
        }
    }

    /// One line for the log: which engine this is, and what it cannot do.
    pub fn describe(&self) -> String {
        match self {
            Engine::OnnxRuntime(runtime) => format!("{runtime:?}"),
            #[cfg(feature = "embedded")]
            Engine::Embedded => embedded::DESCRIPTION.to_owned(),
        }
    }
}

/// A loaded model.
pub enum Session {
    OnnxRuntime(ort::Session),
    #[cfg(feature = "embedded")]
    Embedded(Box<embedded::Session>),
}

impl Session {
    /// Loads a model for CPUs, or for a GPU.
    ///
    /// # Errors
    /// What the engine says; `Unavailable` if it has no providers for the GPU.
    pub fn load(
        engine: &Engine,
        model: &Path,
        options: &SessionOptions,
        gpu: Option<&Gpu>,
    ) -> Result<Self, Error> {
        match engine {
            Engine::OnnxRuntime(runtime) => {
                check_providers(options, |name| runtime.has_provider(name))?;
                if let Some(gpu) = gpu {
                    check_gpu(gpu, runtime)?;
                }
                ort::Session::load(runtime, model, options, gpu).map(Session::OnnxRuntime)
            }
            #[cfg(feature = "embedded")]
            Engine::Embedded if gpu.is_some() => Err(Error::unavailable(format!(
                "no ONNX Runtime library was found, and the engine embedded in this backend runs \
                 on CPUs only; {GPU_ADVICE}"
            ))),
            #[cfg(feature = "embedded")]
            Engine::Embedded => {
                check_providers(options, |_| false)?;
                embedded::Session::load(model, options.intra_op_threads)
                    .map(|session| Session::Embedded(Box::new(session)))
            }
        }
    }
}

impl engine::Session for Session {
    type Output = Output;

    fn signature(&self) -> &Signature {
        match self {
            Session::OnnxRuntime(session) => session.signature(),
            #[cfg(feature = "embedded")]
            Session::Embedded(session) => session.signature(),
        }
    }

    fn writes_in_place(&self) -> bool {
        match self {
            Session::OnnxRuntime(session) => session.writes_in_place(),
            #[cfg(feature = "embedded")]
            Session::Embedded(_) => false,
        }
    }

    fn interrupt(&self) -> Option<Arc<dyn Interrupt>> {
        match self {
            Session::OnnxRuntime(session) => Some(session.interrupt()),
            #[cfg(feature = "embedded")]
            Session::Embedded(_) => None,
        }
    }

    fn run(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Output>>, Error> {
        match self {
            Session::OnnxRuntime(session) => {
                let values = session.run(feeds, targets)?;
                Ok(values
                    .into_iter()
                    .map(|value| value.map(Output::OnnxRuntime))
                    .collect())
            }
            #[cfg(feature = "embedded")]
            Session::Embedded(session) => {
                let outputs = session.run(feeds, targets)?;
                Ok(outputs
                    .into_iter()
                    .map(|output| Some(Output::Embedded(output)))
                    .collect())
            }
        }
    }
}

impl engine::EnqueueSession for Session {
    fn in_flight_obstacle(&self) -> Option<String> {
        match self {
            Session::OnnxRuntime(session) => session.in_flight_obstacle(),
            #[cfg(feature = "embedded")]
            Session::Embedded(_) => Some("the embedded engine runs on CPUs".to_owned()),
        }
    }

    fn enqueue<'m>(
        &mut self,
        work: &mut DeviceWork<'m>,
        feeds: &[Feed<'m>],
        targets: &mut [Target<'_, 'm>],
    ) -> Result<Vec<Option<Output>>, Error> {
        match self {
            Session::OnnxRuntime(session) => {
                let values = session.enqueue(work, feeds, targets)?.into_iter();
                Ok(values.map(|value| value.map(Output::OnnxRuntime)).collect())
            }
            #[cfg(feature = "embedded")]
            Session::Embedded(_) => Err(Error::internal("the embedded engine enqueues nothing")),
        }
    }
}

/// Upstream's words for an accelerator that its build does not have, and what to do.
fn check_providers(options: &SessionOptions, has: impl Fn(&str) -> bool) -> Result<(), Error> {
    let mut names = options
        .providers
        .iter()
        .map(|one| one.name.to_string_lossy());
    match names.find(|name| !has(name)) {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!(
            "unknown Execution Accelerator '{0}' is requested: this ONNX Runtime library is \
             without {name}; run scripts/fetch-runtime onnxruntime_{0}, and name the library that \
             it prints in the model parameter library",
            name.to_lowercase()
        ))),
    }
}

/// What to do where a GPU is asked for and the library has no provider for it.
const GPU_ADVICE: &str = "run scripts/fetch-runtime onnxruntime_gpu, and name the library that it \
                          prints in --backend-config=onnxruntime,onnxruntime-library=<path> or in \
                          the model parameter library, or set kind: KIND_CPU in the model's \
                          instance_group";

/// The first minor version with a graph for each shape.
const FIRST_WITH_GRAPHS: u32 = 18;

/// That a library can run models on GPUs, and has the accelerator that is asked for.
fn check_gpu(gpu: &Gpu, runtime: &Runtime) -> Result<(), Error> {
    if !runtime.has_provider(ort::CUDA) {
        return Err(Error::unavailable(format!(
            "{runtime:?} is a build for CPUs, without the CUDA execution provider; {GPU_ADVICE}"
        )));
    }
    if gpu.graphs.is_some() && runtime.minor_version() < FIRST_WITH_GRAPHS {
        return Err(Error::unavailable(format!(
            "enable_cuda_graph needs ONNX Runtime 1.{FIRST_WITH_GRAPHS} or later, and this is \
             {runtime:?}"
        )));
    }
    if gpu.tensorrt.is_some() && !runtime.has_provider(ort::TENSORRT) {
        return Err(Error::invalid(format!(
            "unknown Execution Accelerator 'tensorrt' is requested: {runtime:?} is without the \
             TensorRT execution provider"
        )));
    }
    Ok(())
}

/// An output in the engine's memory.
pub enum Output {
    OnnxRuntime(ort::Value<'static>),
    #[cfg(feature = "embedded")]
    Embedded(embedded::Output),
}

impl engine::Output for Output {
    fn read(&self) -> Result<Contents<'_>, Error> {
        match self {
            Output::OnnxRuntime(value) => value.contents(),
            #[cfg(feature = "embedded")]
            Output::Embedded(output) => Ok(Contents {
                data_type: output.data_type,
                shape: output.shape.clone(),
                data: output.bytes.as_slice().into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_a_path_or_the_embedded_engine() {
        let choice = |setting| Choice::of_setting(PathBuf::from(setting));
        assert_eq!(choice("embedded"), Choice::Embedded);
        let path = "/opt/libonnxruntime.so";
        assert_eq!(choice(path), Choice::Library(PathBuf::from(path)));
    }
}
