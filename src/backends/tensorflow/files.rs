//! Model files, as far as they are read here before TensorFlow gets them.
//!
//! A GraphDef does not say what is an input and what an output: any placeholder may be fed, and
//! anything else fetched, under the name of its operation or that of one of its tensors.

use std::path::Path;

use conch_backend_sdk as sdk;
use prost::Message;
use sdk::Error;

use crate::check::check;
use crate::messages::{GraphDef, MetaGraphDef, SavedModel};
use crate::signature::split_name;

/// As large as a protobuf message may be.
const BYTES_MAX: u64 = i32::MAX as u64;

/// A GraphDef as it lies in its file, and read.
pub struct GraphFile {
    pub bytes: Vec<u8>,
    pub graph: GraphDef,
}

impl GraphFile {
    /// # Errors
    /// `Internal` if the file cannot be read, is no GraphDef with operations, or has one that
    /// [`check`] refuses; `Unavailable` without memory for it.
    pub fn read(model_name: &str, path: &Path) -> Result<Self, Error> {
        let bytes = read_file(path)?;
        let graph: GraphDef = decode(path, &bytes)?;
        if graph.node.is_empty() {
            return Err(Error::internal(format!(
                "model {model_name} has an empty network"
            )));
        }
        check(path, &graph)?;
        Ok(GraphFile { bytes, graph })
    }

    /// Names of what can be fed.
    pub fn inputs(&self) -> Vec<&str> {
        let placeholders = self
            .graph
            .node
            .iter()
            .filter(|node| is_placeholder(&node.op));
        placeholders.map(|node| node.name.as_str()).collect()
    }

    /// Names of what can be fetched.
    pub fn outputs(&self) -> Vec<&str> {
        let others = self
            .graph
            .node
            .iter()
            .filter(|node| !is_placeholder(&node.op));
        others.map(|node| node.name.as_str()).collect()
    }
}

/// Reads a SavedModel. `None` for one that is not in `saved_model.pb`, but in a file of another
/// form, which is left to TensorFlow.
///
/// # Errors
/// As [`GraphFile::read`].
pub fn read_saved_model(folder: &Path) -> Result<Option<SavedModel>, Error> {
    let path = folder.join("saved_model.pb");
    if !path.exists() {
        return Ok(None);
    }
    let model: SavedModel = decode(&path, &read_file(&path)?)?;
    let graphs = model.meta_graphs.iter();
    let mut graphs = graphs.filter_map(|meta_graph| meta_graph.graph_def.as_ref());
    graphs.try_for_each(|graph| check(&path, graph))?;
    Ok(Some(model))
}

impl SavedModel {
    /// The graph that has this tag and no other, which is how TensorFlow chooses.
    ///
    /// # Errors
    /// `Internal`, in TensorFlow's words, if there is none.
    pub fn graph_tagged(&self, tag: &str) -> Result<&MetaGraphDef, Error> {
        let is_it = |graph: &&MetaGraphDef| {
            let tags = graph.meta_info_def.iter().flat_map(|info| &info.tags);
            let mut tags = tags.peekable();
            tags.peek().is_some() && tags.all(|other| other == tag)
        };
        self.meta_graphs.iter().find(is_it).ok_or_else(|| {
            Error::internal(format!(
                "Could not find meta graph def matching supplied tags: {{ {tag} }}"
            ))
        })
    }
}

fn decode<M: Message + Default>(path: &Path, bytes: &[u8]) -> Result<M, Error> {
    M::decode(bytes).map_err(|error| {
        Error::internal(format!(
            "Can't parse {} as binary proto: {error}",
            path.display()
        ))
    })
}

/// Whether a tensor is of one of these operations.
pub fn is_among(tensor: &str, operations: &[&str]) -> bool {
    split_name(tensor).is_some_and(|(operation, _)| operations.contains(&operation))
}

fn is_placeholder(operator: &str) -> bool {
    operator == "Placeholder"
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error: std::io::Error| Error::internal(format!("{}: {error}", path.display()));
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > BYTES_MAX {
        return Err(Error::invalid(format!(
            "{} is larger than a GraphDef can be",
            path.display()
        )));
    }
    let mut bytes = Vec::new();
    usize::try_from(size)
        .ok()
        .and_then(|size| bytes.try_reserve_exact(size).ok())
        .ok_or_else(|| Error::out_of_memory(usize::try_from(size).unwrap_or(usize::MAX)))?;
    let file = std::fs::File::open(path).map_err(failed)?;
    // It may grow meanwhile.
    std::io::Read::read_to_end(&mut std::io::Read::take(file, BYTES_MAX), &mut bytes)
        .map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{MetaInfoDef, NodeDef};

    fn read(content: &[u8]) -> Result<GraphFile, Error> {
        let thread = std::thread::current();
        let file = format!("conch-graph-{}-{:?}", std::process::id(), thread.id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, content).unwrap();
        let read = GraphFile::read("m", &path);
        std::fs::remove_file(&path).unwrap();
        read
    }

    #[test]
    fn knows_what_may_be_fed_and_fetched() {
        let node = |name: &str, op: &str| NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            ..NodeDef::default()
        };
        let graph = GraphDef {
            node: vec![
                node("A", "Placeholder"),
                node("b/Y", "Add"),
                node("C", "Const"),
            ],
            library: None,
        };
        let file = read(&graph.encode_to_vec()).unwrap();
        assert_eq!(file.inputs(), ["A"]);
        assert_eq!(file.outputs(), ["b/Y", "C"]);
        assert!(is_among("A", &file.inputs()) && is_among("A:0", &file.inputs()));
        assert!(is_among("b/Y:1", &file.outputs()) && !is_among("b", &file.outputs()));
    }

    #[test]
    fn chooses_a_graph_by_its_tag() {
        let tagged = |tags: &[&str]| MetaGraphDef {
            meta_info_def: Some(MetaInfoDef {
                tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            }),
            ..MetaGraphDef::default()
        };
        let (both, serve) = (tagged(&["serve", "gpu"]), tagged(&["serve"]));
        let model = SavedModel {
            meta_graphs: vec![MetaGraphDef::default(), both, serve.clone()],
        };
        assert_eq!(model.graph_tagged("serve"), Ok(&serve));
        for absent in ["gpu", ""] {
            assert!(model.graph_tagged(absent).is_err(), "{absent}");
        }
    }

    #[test]
    fn refuses_other_files() {
        let message = |content: &[u8]| read(content).err().unwrap().message().to_owned();
        assert_eq!(message(b""), "model m has an empty network");
        assert!(message(b"\x0a\xff").contains("as binary proto"));
        assert!(message(b"no GraphDef").contains("as binary proto"));
        let absent = GraphFile::read("m", Path::new("/nowhere/model.graphdef"));
        assert!(
            absent
                .err()
                .unwrap()
                .message()
                .contains("/nowhere/model.graphdef")
        );
    }
}
