//! Names of classes: the lines of the file that an output's `label_filename` names, read when the model is loaded.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::Arc;

use conch_config::Model;

use crate::{Error, ModelVersion};

/// The labels of a model's outputs. They end with NUL for the C API, which lends them out.
#[derive(Debug, Default)]
pub struct Labels {
    by_output: HashMap<Arc<str>, Vec<CString>>,
}

impl Labels {
    /// Reads the label files of a model, which lie in its directory. Blocks.
    ///
    /// # Errors
    /// INTERNAL if one cannot be read.
    pub(crate) fn read(config: &Model, directory: &Path) -> Result<Labels, Error> {
        let mut labels = Labels::default();
        for output in &config.outputs {
            if output.label_filename.is_empty() {
                continue;
            }
            let path = directory.join(&*output.label_filename);
            let text = std::fs::read(&path).map_err(|cause| {
                Error::internal(format!(
                    "failed to open text file for read {}: {cause}",
                    path.display()
                ))
            })?;
            labels
                .by_output
                .insert(Arc::clone(&output.name), lines(&text));
        }
        Ok(labels)
    }

    /// The label of a class; none if it has no line, or an empty one.
    pub fn label(&self, output: &str, class: usize) -> Option<&CStr> {
        let label = self.by_output.get(output)?.get(class)?;
        (!label.is_empty()).then_some(label)
    }
}

impl ModelVersion {
    /// Reads its labels, once, before anybody asks.
    pub(crate) fn read_labels(&self, directory: &Path) -> Result<(), Error> {
        let labels = Labels::read(&self.config, directory)?;
        self.labels.get_or_init(|| labels);
        Ok(())
    }

    /// The name of a class of an output.
    pub fn label(&self, output: &str, class: usize) -> Option<&CStr> {
        self.labels.get()?.label(output, class)
    }
}

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
