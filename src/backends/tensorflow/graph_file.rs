//! GraphDef files. They do not say what is an input and what an output: any placeholder may be fed,
//! and anything else fetched, under the name of its operation or that of one of its tensors.

use std::path::Path;

use conch_backend_sdk as sdk;
use prost::Message;
use sdk::Error;

use crate::messages::GraphDef;
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
    /// `Internal` if the file cannot be read or is no GraphDef with operations; `Unavailable`
    /// without memory for it.
    pub fn read(model_name: &str, path: &Path) -> Result<Self, Error> {
        let bytes = read_file(path)?;
        let graph = GraphDef::decode(&*bytes).map_err(|error| {
            Error::internal(format!(
                "Can't parse {} as binary proto: {error}",
                path.display()
            ))
        })?;
        if graph.node.is_empty() {
            return Err(Error::internal(format!(
                "model {model_name} has an empty network"
            )));
        }
        Ok(GraphFile { bytes, graph })
    }

    /// Names of what can be fed.
    pub fn inputs(&self) -> Vec<&str> {
        let placeholders = self.graph.node.iter().filter(|node| is_placeholder(&node.op));
        placeholders.map(|node| node.name.as_str()).collect()
    }

    /// Names of what can be fetched.
    pub fn outputs(&self) -> Vec<&str> {
        let others = self.graph.node.iter().filter(|node| !is_placeholder(&node.op));
        others.map(|node| node.name.as_str()).collect()
    }
}

/// Whether a tensor is of one of these operations.
pub fn is_among(tensor: &str, operations: &[&str]) -> bool {
    split_name(tensor).is_some_and(|(operation, _)| operations.contains(&operation))
}

fn is_placeholder(operator: &str) -> bool {
    operator == "Placeholder"
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    let failed =
        |error: std::io::Error| Error::internal(format!("{}: {error}", path.display()));
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
    use crate::messages::NodeDef;

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
            node: vec![node("A", "Placeholder"), node("b/Y", "Add"), node("C", "Const")],
            library: None,
        };
        let file = read(&graph.encode_to_vec()).unwrap();
        assert_eq!(file.inputs(), ["A"]);
        assert_eq!(file.outputs(), ["b/Y", "C"]);
        assert!(is_among("A", &file.inputs()) && is_among("A:0", &file.inputs()));
        assert!(is_among("b/Y:1", &file.outputs()) && !is_among("b", &file.outputs()));
    }

    #[test]
    fn refuses_other_files() {
        let message = |content: &[u8]| read(content).err().unwrap().message().to_owned();
        assert_eq!(message(b""), "model m has an empty network");
        assert!(message(b"\x0a\xff").contains("as binary proto"));
        assert!(message(b"no GraphDef").contains("as binary proto"));
        let absent = GraphFile::read("m", Path::new("/nowhere/model.graphdef"));
        assert!(absent.err().unwrap().message().contains("/nowhere/model.graphdef"));
    }
}
