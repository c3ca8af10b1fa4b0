//! The engine that runs models: ONNX Runtime where its library is found, else the embedded one.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conch_backend_sdk::{DataType, Error};

use crate::ort::{self, Runtime, SessionOptions};
use crate::tensor::{Feed, Signature, Target};

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
    /// The choice that a setting's text makes.
    pub fn parse(text: &str) -> Self {
        if text == EMBEDDED {
            Choice::Embedded
        } else {
            Choice::Library(PathBuf::from(text))
        }
    }

    /// Where no setting says anything: a library beside the backend's own, else the embedded
    /// engine.
    pub fn find(directory: &Path) -> Self {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|name| is_library_name(&name.to_string_lossy()))
            .collect();
        // The bare name is what an administrator links to the version to be used; it sorts first.
        names.sort();
        match names.first() {
            Some(name) => Choice::Library(directory.join(name)),
            None => Choice::Embedded,
        }
    }
}

fn is_library_name(name: &str) -> bool {
    name.strip_prefix("libonnxruntime.so")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
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
    /// # Errors
    /// What the engine says.
    pub fn load(engine: &Engine, model: &Path, options: &SessionOptions) -> Result<Self, Error> {
        match engine {
            Engine::OnnxRuntime(runtime) => {
                ort::Session::load(runtime, model, options).map(Session::OnnxRuntime)
            }
            #[cfg(feature = "embedded")]
            Engine::Embedded => embedded::Session::load(model, options.intra_op_threads)
                .map(|session| Session::Embedded(Box::new(session))),
        }
    }

    pub fn signature(&self) -> &Signature {
        match self {
            Session::OnnxRuntime(session) => session.signature(),
            #[cfg(feature = "embedded")]
            Session::Embedded(session) => session.signature(),
        }
    }

    /// Whether outputs can be written into memory of the response.
    pub fn writes_in_place(&self) -> bool {
        match self {
            Session::OnnxRuntime(_) => true,
            #[cfg(feature = "embedded")]
            Session::Embedded(_) => false,
        }
    }

    /// Runs the model; outputs in the order of `targets`, `None` for those with memory of their
    /// own.
    ///
    /// # Errors
    /// What the engine says.
    pub fn run(
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

/// An output in the engine's memory.
pub enum Output {
    OnnxRuntime(ort::Value<'static>),
    #[cfg(feature = "embedded")]
    Embedded(embedded::Output),
}

impl Output {
    /// What it holds.
    ///
    /// # Errors
    /// What the engine says.
    pub fn read(&self) -> Result<Contents<'_>, Error> {
        match self {
            Output::OnnxRuntime(value) => {
                let (data_type, shape) = value.shape()?;
                let bytes = if data_type == DataType::Bytes {
                    Cow::Owned(value.string_bytes()?)
                } else {
                    Cow::Borrowed(value.bytes()?)
                };
                Ok(Contents {
                    data_type,
                    shape,
                    bytes,
                })
            }
            #[cfg(feature = "embedded")]
            Output::Embedded(output) => Ok(Contents {
                data_type: output.data_type,
                shape: output.shape.clone(),
                bytes: Cow::Borrowed(&output.bytes),
            }),
        }
    }
}

/// An output's tensor; bytes as on Triton's wire.
pub struct Contents<'o> {
    pub data_type: DataType,
    pub shape: Vec<i64>,
    pub bytes: Cow<'o, [u8]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_library_names() {
        for (name, expected) in [
            ("libonnxruntime.so", true),
            ("libonnxruntime.so.1.31.1", true),
            ("libonnxruntime.so.1", true),
            ("libonnxruntime.sox", false),
            ("libonnxruntime_providers_cuda.so", false),
            ("libtriton_onnxruntime.so", false),
        ] {
            assert_eq!(is_library_name(name), expected, "{name}");
        }
    }

    #[test]
    fn finds_the_library_beside_the_backend() {
        let directory = std::env::temp_dir().join(format!("conch-engine-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        assert_eq!(Choice::find(&directory), Choice::Embedded);
        for name in ["libonnxruntime.so.1.31.1", "libtriton_onnxruntime.so"] {
            std::fs::write(directory.join(name), b"").unwrap();
        }
        assert_eq!(
            Choice::find(&directory),
            Choice::Library(directory.join("libonnxruntime.so.1.31.1"))
        );
        std::fs::write(directory.join("libonnxruntime.so"), b"").unwrap();
        assert_eq!(
            Choice::find(&directory),
            Choice::Library(directory.join("libonnxruntime.so"))
        );
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(Choice::find(&directory), Choice::Embedded);
    }

    #[test]
    fn settings_name_a_path_or_the_embedded_engine() {
        assert_eq!(Choice::parse("embedded"), Choice::Embedded);
        assert_eq!(
            Choice::parse("/opt/libonnxruntime.so"),
            Choice::Library(PathBuf::from("/opt/libonnxruntime.so"))
        );
    }
}
