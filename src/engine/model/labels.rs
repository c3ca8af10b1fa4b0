//! Names of classes: the lines of the file that an output's `label_filename` names, read when the
//! model is loaded.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::Arc;

use conch_config::ResolvedConfig;

use crate::Error;
use crate::model::file::ModelFile;

/// The labels of a model's outputs. They end with NUL for the C API, which lends them out.
#[derive(Debug, Default)]
pub struct Labels {
    by_output: HashMap<Arc<str>, Vec<CString>>,
}

impl Labels {
    /// Reads the label files of a model, which lie in its directory. Blocks.
    ///
    /// # Errors
    /// UNSUPPORTED if one lies outside of it, whatever links it goes by; INTERNAL if one cannot be
    /// read or is too large.
    pub fn read(config: &ResolvedConfig, directory: &Path) -> Result<Labels, Error> {
        let mut labels = Labels::default();
        for output in &config.outputs {
            if output.label_filename.is_empty() {
                continue;
            }
            let file = ModelFile::locate(directory, &output.label_filename)?;
            if !file.is_inside() {
                return Err(Error::unsupported(format!(
                    "label file path '{file}' for output '{}' in model '{}' is outside model \
                     directory",
                    output.name, config.name
                )));
            }
            let text = file.read(FILE_BYTES_MAX)?;
            labels
                .by_output
                .insert(Arc::clone(&output.name), lines(&text));
        }
        Ok(labels)
    }

    /// Lends an output that has no labels of its own those of another model's output.
    pub fn borrow(&mut self, output: &Arc<str>, theirs: &Labels, their_output: &str) {
        if self.label(output, 0).is_some() {
            return;
        }
        if let Some(labels) = theirs.by_output.get(their_output) {
            self.by_output.insert(Arc::clone(output), labels.clone());
        }
    }

    /// The label of a class; none if it has no line, or an empty one.
    pub fn label(&self, output: &str, class: usize) -> Option<&CStr> {
        let label = self.by_output.get(output)?.get(class)?;
        (!label.is_empty()).then_some(label)
    }
}

/// A label file is text that somebody wrote down, or one line per token of a large vocabulary.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Lines as upstream splits them: the last may lack its end.
fn lines(text: &[u8]) -> Vec<CString> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|byte| *byte == b'\n')
        .map(|line| {
            let end = line
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(line.len());
            CString::new(&line[..end]).unwrap_or_default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_files_lie_in_the_models_directory() {
        let root = std::env::temp_dir().join(format!("conch-labels-{}", std::process::id()));
        let model = root.join("m");
        std::fs::create_dir_all(model.join("1")).unwrap();
        std::fs::create_dir_all(root.join("m2")).unwrap();
        for file in [
            "m/own.txt",
            "m/1/versioned.txt",
            "secret.txt",
            "m2/near.txt",
        ] {
            std::fs::write(root.join(file), file).unwrap();
        }
        let secret = root.join("secret.txt");
        for (target, link) in [
            (&*secret, "outward.txt"),
            (Path::new("own.txt"), "inward.txt"),
            (&*root, "up"),
        ] {
            std::os::unix::fs::symlink(target, model.join(link)).unwrap();
        }
        let outside = "is outside model directory";
        for (name, expected) in [
            ("own.txt", Ok("m/own.txt")),
            ("1/../own.txt", Ok("m/own.txt")),
            ("./1/versioned.txt", Ok("m/1/versioned.txt")),
            ("/own.txt", Ok("m/own.txt")),
            ("inward.txt", Ok("m/own.txt")),
            ("outward.txt", Err(outside)),
            ("up/secret.txt", Err(outside)),
            ("up/nothing.txt", Err(outside)),
            ("../secret.txt", Err(outside)),
            ("../m2/near.txt", Err(outside)),
            ("1/../../nothing.txt", Err(outside)),
            ("nothing.txt", Err("failed to open text file for read")),
            ("1", Err("it is no file")),
            ("..", Err(outside)),
        ] {
            let text = format!(
                "name: 'm' backend: 'fake' output [ {{ name: 'OUT' data_type: TYPE_INT8 dims: [ 1 \
                 ] label_filename: '{name}' }} ]"
            );
            let mut config = conch_config::parse_text("config.pbtxt", &text).unwrap();
            conch_config::normalize(&mut config);
            let config = ResolvedConfig::from_message(config).unwrap();
            let found = Labels::read(&config, &model).map(|labels| {
                let label = labels.label("OUT", 0).unwrap();
                label.to_str().unwrap().to_owned()
            });
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => {
                    assert!(error.message.contains(expected), "{name}: {error}");
                }
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn one_label_per_line() {
        let cases: [(&[u8], &[&str]); 6] = [
            (b"", &[]),
            (b"cat", &["cat"]),
            (b"cat\n", &["cat"]),
            (b"cat\n\ndog\n", &["cat", "", "dog"]),
            (b"a b\r\nc", &["a b\r", "c"]),
            (b"x\0y\nz\n", &["x", "z"]),
        ];
        for (text, expected) in cases {
            let read = lines(text);
            let read: Vec<&str> = read.iter().map(|line| line.to_str().unwrap()).collect();
            assert_eq!(read, expected, "{text:?}");
        }
        let labels = Labels {
            by_output: [(Arc::from("OUT"), lines(b"cat\n\ndog"))].into(),
        };
        let label = |output, class| {
            labels
                .label(output, class)
                .and_then(|label| label.to_str().ok())
        };
        assert_eq!(label("OUT", 2), Some("dog"));
        assert_eq!(label("OUT", 1), None, "an empty line is no label");
        assert_eq!(label("OUT", 3), None);
        assert_eq!(label("OTHER", 0), None);
    }
}
