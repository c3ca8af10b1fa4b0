//! Words of a command line, the models that they name, and how those are laid out.

use super::*;
use conch_config::parse_text;
use conch_engine::testing::Directory;

/// Files of a user's folders. Contents are of no interest here.
fn downloads() -> Directory {
    let directory = Directory::new();
    for path in [
        "net.onnx",
        "net.onnx.data",
        "weights.bin",
        "my net (2).onnx",
        "UPPER.ONNX",
        ".hidden.onnx",
        "größe.plan",
        "$${X}.tflite",
        "quo\"te.xml",
        "quo\"te.bin",
        "torch.pt",
        "torch.pbtxt",
        "bare.pt",
        "forest.ubj",
        "picture.h5",
        "nosuffix",
        "a=b.onnx",
        "minilm/onnx/3/model.onnx",
        "minilm/saved/saved_model.pb",
        "exported/1/saved_model.pb",
        "flat/model.py",
        "flat/helper.py",
        "flat/package/__init__.py",
        "flat/data/words.txt",
        "two/model.py",
        "two/model.onnx",
        "model_dir/1/model.onnx",
        "configured/config.pbtxt",
        "repository/m/1/model.onnx",
    ] {
        directory.file(path, "");
    }
    directory.file("torch.pbtxt", "input { name: 'X' }\nplatform: 'torch_aoti'");
    directory.folder("empty");
    directory
}

/// Name, path below the folder and backend (`-` of a model's directory) of what the word names.
fn found(directory: &Directory, word: &str) -> Result<[String; 3], String> {
    let root = directory.path("").display().to_string();
    // The name of a word with one is not part of the path.
    let word = match word.split_once(':') {
        Some((name, path)) => format!("{name}={root}{path}"),
        None => format!("{root}{word}"),
    };
    let model = StandaloneModel::find(&word).map_err(|reason| reason.replace(&root, "~/"))?;
    let path = model.path.strip_prefix(directory.path("")).unwrap();
    let backend = match &model.form {
        ModelForm::Directory => "-",
        ModelForm::File(file) => file.kind.backend,
    };
    Ok([
        model.name.clone(),
        path.display().to_string(),
        String::from(backend),
    ])
}

#[test]
fn words_name_models() {
    let directory = downloads();
    for (word, expected) in [
        ("net.onnx", ["net", "net.onnx", "onnxruntime"]),
        ("./net.onnx", ["net", "net.onnx", "onnxruntime"]),
        ("n.1:net.onnx", ["n.1", "net.onnx", "onnxruntime"]),
        ("a=b.onnx", ["a_b", "a=b.onnx", "onnxruntime"]),
        (
            "my net (2).onnx",
            ["my_net_2_", "my net (2).onnx", "onnxruntime"],
        ),
        ("UPPER.ONNX", ["UPPER", "UPPER.ONNX", "onnxruntime"]),
        (".hidden.onnx", ["hidden", ".hidden.onnx", "onnxruntime"]),
        ("größe.plan", ["gr_e", "größe.plan", "tensorrt"]),
        ("torch.pt", ["torch", "torch.pt", "pytorch"]),
        ("forest.ubj", ["forest", "forest.ubj", "fil"]),
        (
            "minilm/onnx/3/model.onnx",
            ["minilm", "minilm/onnx/3/model.onnx", "onnxruntime"],
        ),
        ("minilm/saved", ["saved", "minilm/saved", "tensorflow"]),
        (
            "minilm/saved/saved_model.pb",
            ["saved", "minilm/saved", "tensorflow"],
        ),
        ("exported/1", ["exported", "exported/1", "tensorflow"]),
        ("flat", ["flat", "flat/model.py", "python"]),
        ("flat/", ["flat", "flat/model.py", "python"]),
        ("flat/data/..", ["flat", "flat/model.py", "python"]),
        ("two/model.py", ["two", "two/model.py", "python"]),
        ("model_dir", ["model_dir", "model_dir", "-"]),
        ("other:model_dir", ["other", "model_dir", "-"]),
        ("configured", ["configured", "configured", "-"]),
    ] {
        let expected = expected.map(String::from);
        assert_eq!(found(&directory, word), Ok(expected), "{word}");
    }
}

#[test]
fn what_is_no_model_is_refused_with_what_to_do() {
    let directory = downloads();
    for (word, expected) in [
        (
            "none.onnx",
            "Unexpected argument: ~/none.onnx\nIt is neither",
        ),
        ("picture.h5", "ends with one of .onnx, .plan, "),
        ("nosuffix", "'~/nosuffix' is of no kind that is served"),
        ("bare.pt", "`input` and `output` beside it, 'bare.pbtxt'"),
        ("two", "holds 'model.onnx' and 'model.py': name the one"),
        ("empty", "'~/empty' is no model"),
        ("repository", "--model-repository=~/repository"),
        ("na me:net.onnx", "'na me' cannot be the name of a model"),
        (".n:net.onnx", "'.n' cannot be the name of a model"),
        ("n:none.onnx", "Unexpected argument: n=~/none.onnx"),
    ] {
        let reason = found(&directory, word).unwrap_err();
        assert!(reason.contains(expected), "{word}: {reason}");
    }
    let reason = StandaloneModel::find("s3://bucket/net.onnx").unwrap_err();
    assert!(reason.contains("--model-repository"), "{reason}");
    let reason = StandaloneModel::find("/dev/null").unwrap_err();
    assert_eq!(reason, "'/dev/null' is no regular file");
}

#[test]
fn a_name_is_of_one_model() {
    let directory = downloads();
    let word = |path: &str| directory.path(path).display().to_string();
    let same = [word("net.onnx"), word("./net.onnx")];
    let reason = standalone_models(&same).unwrap_err();
    assert!(reason.contains("would both be model 'net'"), "{reason}");
    assert!(reason.contains("<name>="), "{reason}");
    let apart = [word("net.onnx"), format!("other={}", word("net.onnx"))];
    let models = standalone_models(&apart).unwrap();
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names, ["net", "other"]);
}

/// Names in the version directory of the model that `word` names, and its configuration's backend,
/// platform, file name and `model_type`.
fn laid_out(directory: &Directory, word: &str) -> (Vec<String>, [String; 4]) {
    let words = [format!("m={}", directory.path(word).display())];
    let models = standalone_models(&words).unwrap();
    let repository =
        StandaloneRepository::lay_out(&models, &directory.path("empty"), false).unwrap();
    let model = repository.path().join("m");
    let mut names: Vec<String> = fs::read_dir(model.join("1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let text = fs::read(model.join("config.pbtxt")).unwrap();
    let config = parse_text("config.pbtxt", text).unwrap();
    let parameter = config.parameters.get(MODEL_TYPE);
    let facts = [
        config.backend,
        config.platform,
        config.default_model_filename,
        parameter.map_or(String::new(), |value| value.string_value.clone()),
    ];
    drop(repository);
    assert_eq!(fs::read_dir(directory.path("empty")).unwrap().count(), 0);
    (names, facts)
}

#[test]
fn files_lie_under_their_names_beside_what_belongs_to_them() {
    let directory = downloads();
    let table: [(&str, &[&str], [&str; 4]); 7] = [
        (
            "quo\"te.xml",
            &["quo\"te.bin", "quo\"te.xml"],
            ["openvino", "", "quo\"te.xml", ""],
        ),
        (
            "$${X}.tflite",
            &["$${X}.tflite"],
            ["openvino", "", "$${X}.tflite", ""],
        ),
        (
            "größe.plan",
            &["größe.plan"],
            ["tensorrt", "tensorrt_plan", "größe.plan", ""],
        ),
        (
            "torch.pt",
            &["torch.pt"],
            ["pytorch", "torch_aoti", "torch.pt", ""],
        ),
        (
            "forest.ubj",
            &["forest.ubj"],
            ["fil", "", "forest.ubj", "xgboost_ubj"],
        ),
        (
            "minilm/saved",
            &["saved"],
            ["tensorflow", "tensorflow_savedmodel", "saved", ""],
        ),
        (
            "flat",
            &["helper.py", "model.py", "package"],
            ["python", "", "model.py", ""],
        ),
    ];
    for (word, names, facts) in table {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(
            laid_out(&directory, word),
            (names, facts.map(String::from)),
            "{word}"
        );
    }
    let (names, _) = laid_out(&directory, "net.onnx");
    for expected in ["net.onnx", "net.onnx.data", "weights.bin"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
}

#[test]
fn of_a_folder_with_too_many_files_those_are_taken_that_begin_alike() {
    let directory = Directory::new();
    directory.folder("empty");
    for number in 0..=FILES_MAX {
        directory.file(&format!("tensors/{number}"), "");
    }
    directory.file("tensors/net.onnx", "");
    directory.file("tensors/net.data", "");
    let (names, _) = laid_out(&directory, "tensors/net.onnx");
    assert_eq!(names, ["net.data", "net.onnx"]);
}

#[test]
fn a_models_directory_is_linked_as_it_is() {
    let directory = downloads();
    let words = [directory.path("model_dir").display().to_string()];
    let models = standalone_models(&words).unwrap();
    let repository =
        StandaloneRepository::lay_out(&models, &directory.path("empty"), false).unwrap();
    let place = repository.path().join("model_dir");
    assert_eq!(fs::read_link(&place).unwrap(), directory.path("model_dir"));
    let nowhere = directory.path("nowhere");
    let refused = StandaloneRepository::lay_out(&models, &nowhere, false).unwrap_err();
    assert!(
        refused.message.contains("cannot lay out models"),
        "{refused}"
    );
}
