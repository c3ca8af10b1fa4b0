//! Completes a partial or absent configuration as far as the server can: name, backend, platform
//! and file name, from the files in the model's directory. The backend completes inputs and
//! outputs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conch_proto::inference::ModelConfig;

use crate::ConfigError;

/// Fills `name`, `backend`, `platform` and `default_model_filename` where they are empty.
/// `model_path` is the model's directory, whose name is `model_name` unless it is mapped.
///
/// What is not told by the configuration is read off the file names in the first version directory.
/// Reads directories: blocks.
///
/// # Errors
/// `Internal` if a directory cannot be read; `InvalidArg` if nothing tells the backend.
pub fn complete_backend(
    config: &mut ModelConfig,
    model_name: &str,
    model_path: &Path,
) -> Result<(), ConfigError> {
    let version = FirstVersion::find(model_path)?;
    if config.name.is_empty() {
        config.name = model_name.to_owned();
    }
    if complete_tensorflow(config, version.as_ref()) {
        return Ok(());
    }
    for known in &KNOWN {
        if config.backend.is_empty() && known.is_meant(config, version.as_ref()) {
            config.backend = known.backend.to_owned();
            if known.is_platform_read_off_file
                && config.platform.is_empty()
                && config.default_model_filename.is_empty()
            {
                config.platform = known.platform.to_owned();
            }
        }
    }
    match KNOWN.iter().find(|known| known.backend == config.backend) {
        Some(known) if known.backend == "pytorch" => complete_pytorch(config),
        Some(known) => {
            if config.platform.is_empty() {
                config.platform = known.platform.to_owned();
            }
            if config.default_model_filename.is_empty() {
                config.default_model_filename = known.file_name.to_owned();
            }
        }
        None => return complete_custom(config, model_name),
    }
    Ok(())
}

/// The file, or directory, that each version of a model must have, if the server knows what its
/// backend opens. The configuration must be completed.
pub fn model_file(config: &ModelConfig) -> Option<&str> {
    let is_known =
        config.backend == "tensorflow" || KNOWN.iter().any(|known| known.backend == config.backend);
    let name = config.default_model_filename.as_str();
    // A library that the model brings; files by compute capability; or, for OpenVINO, a name that
    // stands for files of other formats, too.
    let has_others =
        !config.runtime.is_empty() || !config.cc_model_filenames.is_empty() || name == "model.xml";
    (is_known && !has_others && !name.is_empty()).then_some(name)
}

/// One kind of model that the server knows by its file.
struct KnownPlatform {
    backend: &'static str,
    /// Written into the configuration; empty if the backend has none.
    platform: &'static str,
    /// Platforms that lead to this backend.
    platforms: &'static [&'static str],
    file_name: &'static str,
    /// Whether a directory of that name is a model too.
    may_be_directory: bool,
    is_platform_read_off_file: bool,
}

/// In the order in which they are tried. TensorFlow comes before all of them.
const KNOWN: [KnownPlatform; 6] = [
    KnownPlatform {
        backend: "tensorrt",
        platform: "tensorrt_plan",
        platforms: &["tensorrt_plan"],
        file_name: "model.plan",
        may_be_directory: false,
        is_platform_read_off_file: false,
    },
    KnownPlatform {
        backend: "onnxruntime",
        platform: "onnxruntime_onnx",
        platforms: &["onnxruntime_onnx"],
        file_name: "model.onnx",
        may_be_directory: true,
        is_platform_read_off_file: false,
    },
    KnownPlatform {
        backend: "openvino",
        platform: "",
        platforms: &[],
        file_name: "model.xml",
        may_be_directory: true,
        is_platform_read_off_file: false,
    },
    KnownPlatform {
        backend: "pytorch",
        platform: "pytorch_libtorch",
        platforms: &["pytorch_libtorch", "libtorch"],
        file_name: "model.pt",
        may_be_directory: false,
        is_platform_read_off_file: true,
    },
    KnownPlatform {
        backend: "pytorch",
        platform: "torch_aoti",
        platforms: &["torch_aoti"],
        file_name: "model.pt2",
        may_be_directory: false,
        is_platform_read_off_file: true,
    },
    KnownPlatform {
        backend: "python",
        platform: "",
        platforms: &[],
        file_name: "model.py",
        may_be_directory: true,
        is_platform_read_off_file: false,
    },
];

impl KnownPlatform {
    fn is_meant(&self, config: &ModelConfig, version: Option<&FirstVersion>) -> bool {
        if self.platforms.contains(&config.platform.as_str())
            || config.default_model_filename == self.file_name
        {
            return true;
        }
        let is_open = config.platform.is_empty() && config.default_model_filename.is_empty();
        is_open
            && version.is_some_and(|version| {
                version.contains(self.file_name)
                    && (self.may_be_directory || !version.is_directory(self.file_name))
            })
    }
}

/// The lexically first version directory and what is in it.
struct FirstVersion {
    path: PathBuf,
    entries: BTreeSet<String>,
}

impl FirstVersion {
    fn find(model_path: &Path) -> Result<Option<FirstVersion>, ConfigError> {
        let entries = entry_names(model_path)?;
        let Some(first) = entries
            .into_iter()
            .map(|name| model_path.join(name))
            .find(|path| path.is_dir())
        else {
            return Ok(None);
        };
        Ok(Some(FirstVersion {
            entries: entry_names(&first)?,
            path: first,
        }))
    }

    fn contains(&self, name: &str) -> bool {
        self.entries.contains(name)
    }

    fn is_directory(&self, name: &str) -> bool {
        self.path.join(name).is_dir()
    }
}

fn entry_names(path: &Path) -> Result<BTreeSet<String>, ConfigError> {
    let error = |error| {
        ConfigError::internal(format!(
            "failed to open directory {}: {error}",
            path.display()
        ))
    };
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(path).map_err(error)? {
        // A name that is not UTF-8 is none that we look for.
        if let Ok(name) = entry.map_err(error)?.file_name().into_string() {
            names.insert(name);
        }
    }
    Ok(names)
}

/// TensorFlow is known by its platform; whether the backend is set does not matter. True if it is
/// TensorFlow.
fn complete_tensorflow(config: &mut ModelConfig, version: Option<&FirstVersion>) -> bool {
    const FORMS: [(&str, &str, bool); 2] = [
        ("tensorflow_savedmodel", "model.savedmodel", true),
        ("tensorflow_graphdef", "model.graphdef", false),
    ];
    if config.platform.is_empty() && matches!(config.backend.as_str(), "" | "tensorflow") {
        for (platform, file_name, is_directory) in FORMS {
            let is_named = config.default_model_filename == file_name;
            let is_found = config.default_model_filename.is_empty()
                && version.is_some_and(|version| {
                    version.contains(file_name) && version.is_directory(file_name) == is_directory
                });
            if is_named || is_found {
                config.platform = platform.to_owned();
            }
        }
    }
    let Some((_, file_name, _)) = FORMS
        .into_iter()
        .find(|(platform, _, _)| config.platform == *platform)
    else {
        return false;
    };
    if config.backend.is_empty() {
        config.backend = "tensorflow".to_owned();
    }
    if config.default_model_filename.is_empty() {
        config.default_model_filename = file_name.to_owned();
    }
    true
}

/// A TorchScript model unless the configuration says otherwise. The file name is left open on a
/// configured `pytorch_libtorch`: the backend has its own default.
fn complete_pytorch(config: &mut ModelConfig) {
    let file_name = match config.platform.as_str() {
        "" => {
            config.platform = "pytorch_libtorch".to_owned();
            "model.pt"
        }
        "torch_aoti" => "model.pt2",
        _ => return,
    };
    if config.default_model_filename.is_empty() {
        config.default_model_filename = file_name.to_owned();
    }
}

/// The last resort, where nothing is given and no file is known: "model.identity" runs on
/// "identity".
fn complete_custom(config: &mut ModelConfig, model_name: &str) -> Result<(), ConfigError> {
    if !(config.backend.is_empty()
        && config.platform.is_empty()
        && config.default_model_filename.is_empty())
    {
        return Ok(());
    }
    let Some((_, backend)) = model_name.split_once('.') else {
        return Err(ConfigError::invalid(format!(
            "Invalid model name: Could not determine backend for model '{model_name}' with no \
             backend in model configuration. Expected model name of the form \
             'model.<backend_name>'."
        )));
    };
    config.backend = backend.to_owned();
    config.default_model_filename = format!("model.{backend}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_text;

    /// Configuration, files under the model's directory (a slash at the end makes a directory),
    /// what is completed: backend, platform, file name.
    type Row = (&'static str, &'static [&'static str], [&'static str; 3]);

    const TABLE: &[Row] = &[
        (
            "",
            &["1/model.savedmodel/"],
            ["tensorflow", "tensorflow_savedmodel", "model.savedmodel"],
        ),
        (
            "",
            &["1/model.graphdef"],
            ["tensorflow", "tensorflow_graphdef", "model.graphdef"],
        ),
        (
            r#"backend: "tensorflow""#,
            &["1/model.graphdef"],
            ["tensorflow", "tensorflow_graphdef", "model.graphdef"],
        ),
        (
            r#"platform: "tensorflow_graphdef""#,
            &[],
            ["tensorflow", "tensorflow_graphdef", "model.graphdef"],
        ),
        (
            r#"default_model_filename: "model.savedmodel""#,
            &[],
            ["tensorflow", "tensorflow_savedmodel", "model.savedmodel"],
        ),
        (
            "",
            &["1/model.plan"],
            ["tensorrt", "tensorrt_plan", "model.plan"],
        ),
        (
            "",
            &["1/model.plan/", "1/model.onnx"],
            ["onnxruntime", "onnxruntime_onnx", "model.onnx"],
        ),
        (
            "",
            &["1/model.onnx/model.onnx"],
            ["onnxruntime", "onnxruntime_onnx", "model.onnx"],
        ),
        (
            r#"platform: "onnxruntime_onnx""#,
            &[],
            ["onnxruntime", "onnxruntime_onnx", "model.onnx"],
        ),
        (
            r#"backend: "onnxruntime" default_model_filename: "m.onnx""#,
            &[],
            ["onnxruntime", "onnxruntime_onnx", "m.onnx"],
        ),
        (
            r#"platform: "tensorrt_plan" default_model_filename: "a.plan""#,
            &[],
            ["tensorrt", "tensorrt_plan", "a.plan"],
        ),
        (
            "",
            &["1/model.xml", "1/model.bin"],
            ["openvino", "", "model.xml"],
        ),
        // The file of a TorchScript model found on disk is not written down, the platform is.
        ("", &["1/model.pt"], ["pytorch", "pytorch_libtorch", ""]),
        ("", &["1/model.pt2"], ["pytorch", "torch_aoti", "model.pt2"]),
        (
            r#"backend: "pytorch""#,
            &["1/model.pt"],
            ["pytorch", "pytorch_libtorch", "model.pt"],
        ),
        (
            r#"platform: "pytorch_libtorch""#,
            &[],
            ["pytorch", "pytorch_libtorch", ""],
        ),
        (
            r#"platform: "torch_aoti""#,
            &[],
            ["pytorch", "torch_aoti", "model.pt2"],
        ),
        (r#"platform: "libtorch""#, &[], ["pytorch", "libtorch", ""]),
        ("", &["1/model.py"], ["python", "", "model.py"]),
        (r#"backend: "python""#, &[], ["python", "", "model.py"]),
        // The first of the known files decides, in the first of the version directories.
        (
            "",
            &["1/model.py", "1/model.onnx"],
            ["onnxruntime", "onnxruntime_onnx", "model.onnx"],
        ),
        (
            "",
            &["2/model.onnx", "1/model.py", "note"],
            ["python", "", "model.py"],
        ),
        // A backend that is not known is left alone.
        (
            r#"backend: "identity""#,
            &["1/model.py"],
            ["identity", "", ""],
        ),
        (
            r#"platform: "ensemble""#,
            &["1/model.py"],
            ["", "ensemble", ""],
        ),
        (
            r#"default_model_filename: "net.bin""#,
            &["1/model.py"],
            ["", "", "net.bin"],
        ),
    ];

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[&str]) -> Folder {
            let path = std::env::temp_dir().join(format!(
                "conch-config-complete-{}-{name}",
                std::process::id()
            ));
            std::fs::create_dir_all(&path).unwrap();
            for file in files {
                let file_path = path.join(file);
                std::fs::create_dir_all(file_path.parent().unwrap()).unwrap();
                if file.ends_with('/') {
                    std::fs::create_dir_all(&file_path).unwrap();
                } else {
                    std::fs::write(&file_path, "").unwrap();
                }
            }
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_and_fields_tell_the_backend() {
        for (index, (text, files, expected)) in TABLE.iter().enumerate() {
            let folder = Folder::new(&index.to_string(), files);
            let mut config = parse_text("f", text).unwrap();
            complete_backend(&mut config, "m", &folder.0).expect(text);
            let found = [
                &config.backend,
                &config.platform,
                &config.default_model_filename,
            ];
            assert_eq!(found, *expected, "{text} {files:?}");
            assert_eq!(config.name, "m");
        }
    }

    #[test]
    fn files_that_are_known() {
        let table = [
            ("backend: 'onnxruntime'", Some("model.onnx")),
            (
                "backend: 'onnxruntime' default_model_filename: 'm.onnx'",
                Some("m.onnx"),
            ),
            ("platform: 'tensorflow_graphdef'", Some("model.graphdef")),
            ("backend: 'python'", Some("model.py")),
            ("backend: 'python' runtime: 'own.so'", None),
            (
                "backend: 'tensorrt' cc_model_filenames { key: '8.0' value: 'm' }",
                None,
            ),
            ("platform: 'pytorch_libtorch'", None),
            ("backend: 'openvino'", None),
            ("backend: 'identity'", None),
        ];
        let folder = Folder::new("known", &["1/"]);
        for (text, expected) in table {
            let mut config = parse_text("f", text).unwrap();
            complete_backend(&mut config, "m", &folder.0).expect(text);
            assert_eq!(model_file(&config), expected, "{text}");
        }
    }

    #[test]
    fn a_name_tells_a_custom_backend() {
        let folder = Folder::new("custom", &["1/weights"]);
        let mut config = ModelConfig::default();
        complete_backend(&mut config, "model.identity.v2", &folder.0).unwrap();
        assert_eq!(
            [&config.backend, &config.default_model_filename],
            ["identity.v2", "model.identity.v2"]
        );
        let error = complete_backend(&mut ModelConfig::default(), "simple", &folder.0).unwrap_err();
        assert_eq!(
            error.message,
            "Invalid model name: Could not determine backend for model 'simple' with no backend in \
             model configuration. Expected model name of the form 'model.<backend_name>'."
        );
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let path = std::env::temp_dir().join("conch-config-complete-none");
        let error = complete_backend(&mut ModelConfig::default(), "m", &path).unwrap_err();
        assert!(
            error
                .message
                .starts_with(&format!("failed to open directory {}", path.display())),
            "{error}"
        );
    }
}
