//! Reads the protobuf text format: what a `config.pbtxt` is written in.
//!
//! Hand-written over the message's descriptors, because real files use all the freedom of
//! libprotobuf's reader (`input [ {` without a colon, `< >`, separators, adjacent strings, octal
//! numbers) and must be refused where it refuses: unknown and repeated fields, numbers out of
//! range. Bounded work and recursion on any input.

mod parse;
mod token;
mod value;

use std::io::Read;
use std::path::Path;

use conch_proto::inference::ModelConfig;

use self::token::TextFault;
use crate::{ConfigError, expand, files, from_json, schema};

/// Reads a configuration file: the text format, or JSON if that is the end of its name. With
/// `expands` its `${NAME}` are the values of environment variables. Blocks.
///
/// # Errors
/// `Internal` in upstream's words, with line, column and field behind them; `InvalidArg` for JSON
/// and for variables that are not set.
pub fn load_file(path: &Path, expands: bool) -> Result<ModelConfig, ConfigError> {
    let unreadable = |error: std::io::Error| {
        ConfigError::internal(format!(
            "failed to open text file for read {}: {error}",
            path.display()
        ))
    };
    let file = files::open(path).map_err(unreadable)?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigError::internal(format!(
            "failed to read text proto from {}: more than {FILE_BYTES_MAX} bytes",
            path.display()
        )));
    }
    let name = path.display().to_string();
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    if !expands && !is_json {
        return parse_text(&name, text);
    }
    let text = String::from_utf8(text)
        .map_err(|_| ConfigError::invalid(format!("{name} is not text in UTF-8")))?;
    let text = if expands {
        let bytes_max = usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX);
        expand(&name, &text, bytes_max, |variable| {
            std::env::var(variable).ok()
        })?
    } else {
        text
    };
    if is_json {
        return from_json(&text).map_err(|error| ConfigError {
            message: format!("failed to read {name}: {}", error.message),
            ..error
        });
    }
    parse_text(&name, text)
}

/// Reads a configuration from text; `file_name` is for messages.
///
/// # Errors
/// `Internal`: `failed to read text proto from <file>: <line>:<column>: <field>: <what>`.
pub fn parse_text(file_name: &str, text: impl AsRef<[u8]>) -> Result<ModelConfig, ConfigError> {
    let message = parse::parse(text.as_ref(), schema::model_config()).map_err(|fault| {
        let TextFault { at, message } = fault;
        ConfigError::internal(format!(
            "failed to read text proto from {file_name}: {}:{}: {message}",
            at.line, at.column
        ))
        .at(at.line, at.column, message)
    })?;
    Ok(schema::to_typed(&message))
}

/// The largest file read: a hundred times the largest configurations seen, and still nothing beside
/// a model.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests;
