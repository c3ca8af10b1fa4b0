//! Hints for whoever puts a model where no server looks for it: what lies in the wrong place, and
//! the path that is expected.
//!
//! Looked for at start only, and only where nothing or nothing good was found. Reads directories;
//! control threads only.

use std::fs;
use std::path::Path;

/// The file that each backend expects in a version's directory.
const MODEL_FILES: [&str; 7] = [
    "model.onnx",
    "model.plan",
    "model.pt",
    "model.pt2",
    "model.py",
    "model.graphdef",
    "model.xml",
];

/// What is wrong with a local repository that holds no model that could be loaded; none if nothing
/// is to be seen.
pub(crate) fn of_repository(repository: &Path) -> Option<String> {
    let shown = repository.display();
    if let Some(file) = model_file(repository) {
        return Some(format!(
            "'{shown}/{file}' lies directly in the model repository, where nothing is read: it is \
             expected at '{shown}/<model>/1/{file}'"
        ));
    }
    let is_model = repository.join("config.pbtxt").is_file()
        || version_directories(repository)
            .iter()
            .any(|version| model_file(&repository.join(version)).is_some());
    if is_model {
        let parent = repository
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new(".."));
        return Some(format!(
            "'{shown}' looks like a model, not like a model repository: give the directory above \
             it, --model-repository={}",
            parent.display()
        ));
    }
    let is_empty = fs::read_dir(repository).is_ok_and(|entries| {
        !entries
            .flatten()
            .any(|entry| entry.metadata().is_ok_and(|metadata| metadata.is_dir()))
    });
    is_empty.then(|| {
        format!(
            "there is no model in the model repository '{shown}': a model is expected at \
                 '{shown}/<model>/1/<model file>'"
        )
    })
}

/// What is wrong with the directory of a model that could not be loaded; none if nothing is to be
/// seen.
pub(crate) fn of_model(model: &Path) -> Option<String> {
    let shown = model.display();
    if let Some(file) = model_file(model) {
        return Some(format!(
            "'{shown}/{file}' lies outside of the version directories: it is expected at \
             '{shown}/1/{file}'"
        ));
    }
    let versions = version_directories(model);
    if versions.is_empty() {
        return Some(format!(
            "model directory '{shown}' has no version directory: the model file is expected at \
             '{shown}/1/<model file>'"
        ));
    }
    if model.join("config.pbtxt").exists() {
        return None;
    }
    let onnx = versions.iter().find_map(|version| {
        let directory = model.join(version);
        if model_file(&directory).is_some() {
            return None;
        }
        let entries = fs::read_dir(&directory).ok()?.flatten();
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let name = names.find(|name| name.ends_with(".onnx"))?;
        Some((version, name))
    });
    let (version, name) = onnx?;
    Some(format!(
        "'{shown}/{version}/{name}' is not looked for under this name: it is expected at \
         '{shown}/{version}/model.onnx'"
    ))
}

fn model_file(directory: &Path) -> Option<&'static str> {
    MODEL_FILES
        .into_iter()
        .find(|name| directory.join(name).is_file())
}

/// At most a few: enough to tell a model.
fn version_directories(model: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(model) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .take(8)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use conch_engine::testing::Directory;

    #[test]
    fn hints_name_the_expected_path() {
        let directory = Directory::new();
        for path in ["empty", "bare/m", "files", "good/m/1"] {
            directory.folder(path);
        }
        for path in [
            "loose/model.onnx",
            "flat/m/model.onnx",
            "named/m/1/resnet.onnx",
            "good/m/1/model.onnx",
            "files/readme.txt",
        ] {
            directory.file(path, "");
        }
        type Row<'r> = (fn(&Path) -> Option<String>, &'r str, Option<&'r str>);
        let table: [Row<'_>; 9] = [
            (
                of_repository,
                "empty",
                Some("'{}/empty/<model>/1/<model file>'"),
            ),
            (
                of_repository,
                "files",
                Some("'{}/files/<model>/1/<model file>'"),
            ),
            (
                of_repository,
                "loose",
                Some("'{}/loose/<model>/1/model.onnx'"),
            ),
            (of_repository, "good/m", Some("--model-repository={}/good")),
            (of_repository, "good", None),
            (of_model, "flat/m", Some("'{}/flat/m/1/model.onnx'")),
            (of_model, "bare/m", Some("'{}/bare/m/1/<model file>'")),
            (of_model, "named/m", Some("'{}/named/m/1/model.onnx'")),
            (of_model, "good/m", None),
        ];
        let root = directory.path("").display().to_string();
        let root = root.trim_end_matches('/');
        for (hint, path, expected) in table {
            let told = hint(&directory.path(path));
            let expected = expected.map(|text| text.replace("{}", root));
            match (&told, &expected) {
                (None, None) => {}
                (Some(told), Some(expected)) if told.ends_with(expected.as_str()) => {}
                _ => panic!("{path}: {told:?} instead of {expected:?}"),
            }
        }
    }
}
