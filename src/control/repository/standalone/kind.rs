//! What a file is, by the end of its name: which backend runs it, and what belongs to it.

/// A kind of model that is one file, or one folder in the place of a file.
#[derive(Debug)]
pub(super) struct FileKind {
    /// The end of the name, in lower case.
    pub suffix: &'static str,
    pub backend: &'static str,
    /// Written into the configuration; empty where the backend needs none.
    pub platform: &'static str,
    /// `model_type` of the fil backend, which tells formats apart by names of its own; empty for
    /// others.
    pub model_type: &'static str,
    pub beside: SiblingFiles,
    /// The backend cannot find out inputs and outputs.
    pub needs_config: bool,
}

/// What else of a file's folder belongs to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SiblingFiles {
    Nothing,
    /// Files whose names begin as that of the file does, such as `net.bin` beside `net.xml`.
    SameStem,
    /// All files: weights have any name.
    Files,
    /// All files, and folders that are Python packages.
    Package,
}

pub(super) const KINDS: [FileKind; 16] = [
    kind(
        "onnx",
        "onnxruntime",
        "onnxruntime_onnx",
        SiblingFiles::Files,
    ),
    kind("plan", "tensorrt", "tensorrt_plan", SiblingFiles::Nothing),
    kind("engine", "tensorrt", "tensorrt_plan", SiblingFiles::Nothing),
    described(kind(
        "pt",
        "pytorch",
        "pytorch_libtorch",
        SiblingFiles::Nothing,
    )),
    described(kind("pt2", "pytorch", "torch_aoti", SiblingFiles::Nothing)),
    SAVED_MODEL,
    described(kind(
        "graphdef",
        "tensorflow",
        "tensorflow_graphdef",
        SiblingFiles::Nothing,
    )),
    kind("xml", "openvino", "", SiblingFiles::SameStem),
    kind("tflite", "openvino", "", SiblingFiles::Nothing),
    kind("pdmodel", "openvino", "", SiblingFiles::SameStem),
    kind("py", "python", "", SiblingFiles::Package),
    kind("dali", "dali", "", SiblingFiles::Nothing),
    forest("ubj", "xgboost_ubj"),
    forest("json", "xgboost_json"),
    forest("txt", "lightgbm"),
    forest("tl", "treelite_checkpoint"),
];

/// A folder of TensorFlow's, which is known by what is in it, too.
pub(super) const SAVED_MODEL: FileKind = kind(
    "savedmodel",
    "tensorflow",
    "tensorflow_savedmodel",
    SiblingFiles::Nothing,
);

const fn kind(
    suffix: &'static str,
    backend: &'static str,
    platform: &'static str,
    beside: SiblingFiles,
) -> FileKind {
    FileKind {
        suffix,
        backend,
        platform,
        model_type: "",
        beside,
        needs_config: false,
    }
}

const fn forest(suffix: &'static str, model_type: &'static str) -> FileKind {
    FileKind {
        model_type,
        ..kind(suffix, "fil", "", SiblingFiles::Nothing)
    }
}

/// Of which a configuration says what goes in and what comes out.
const fn described(kind: FileKind) -> FileKind {
    FileKind {
        needs_config: true,
        ..kind
    }
}

/// The kind of a file of this name.
pub(super) fn of_file(name: &str) -> Option<&'static FileKind> {
    let (_, suffix) = name.rsplit_once('.')?;
    let suffix = suffix.to_ascii_lowercase();
    KINDS.iter().find(|kind| kind.suffix == suffix)
}

/// Whether a folder called `name` only says of which kind the models in it are.
pub(super) fn is_suffix(name: &str) -> bool {
    KINDS.iter().any(|kind| kind.suffix == name)
}

/// The ends of names that are known, for a refusal.
pub(super) fn suffixes() -> String {
    let suffixes: Vec<String> = KINDS
        .iter()
        .map(|kind| format!(".{}", kind.suffix))
        .collect();
    suffixes.join(", ")
}
