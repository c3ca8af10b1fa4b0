//! Reads the protobuf text format: what a `config.pbtxt` is written in.
//!
//! Hand-written over the message's descriptors, because real files use all the freedom of libprotobuf's reader (`input [ {` without a
//! colon, `< >`, separators, adjacent strings, octal numbers) and must be refused where it refuses: unknown and repeated fields,
//! numbers out of range. Bounded work and recursion on any input.

mod parse;
mod token;
mod value;

use std::io::Read;
use std::path::Path;

use conch_proto::inference::ModelConfig;

use crate::{Error, schema};

/// Reads a configuration file. Blocks.
///
/// # Errors
/// `Internal` in upstream's words, with line, column and field behind them.
pub fn load_file(path: &Path) -> Result<ModelConfig, Error> {
    let unreadable = |error: std::io::Error| {
        Error::internal(format!(
            "failed to open text file for read {}: {error}",
            path.display()
        ))
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::internal(format!(
            "failed to read text proto from {}: more than {FILE_BYTES_MAX} bytes",
            path.display()
        )));
    }
    parse_text(&path.display().to_string(), text)
}

/// Reads a configuration from text; `file_name` is for messages.
///
/// # Errors
/// `Internal`: `failed to read text proto from <file>: <line>:<column>: <field>: <what>`.
pub fn parse_text(file_name: &str, text: impl AsRef<[u8]>) -> Result<ModelConfig, Error> {
    let message = parse::parse(text.as_ref(), schema::model_config()).map_err(|fault| {
        Error::internal(format!(
            "failed to read text proto from {file_name}: {}:{}: {}",
            fault.at.line, fault.at.column, fault.message
        ))
    })?;
    Ok(schema::to_typed(&message))
}

/// The largest file read: a hundred times the largest configurations seen, and still nothing beside a model.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests;
