//! `/v2/logging`: the log's switches, read and set.

use std::rc::Rc;

use conch_engine::{Error, truncated};
use conch_log as log;
use conch_log::{LogFormat, LogSettings};
use conch_memory::ByteView;

use super::answer::HttpResponse;
use super::json::{JsonValue, write};
use super::repository::{check_size, parse_json};
use crate::api::{LogChanges, log_file_refusal};
use crate::shard::Shard;

/// What is in force.
pub(super) fn show() -> HttpResponse {
    answer(&log::settings())
}

/// Sets what the body names, and tells what is in force then.
pub(super) async fn update(shard: &Rc<Shard>, body: ByteView) -> Result<HttpResponse, Error> {
    check_size(&body)?;
    let changes = parse_json(shard, body, read).await?;
    Ok(answer(&changes.apply()))
}

/// Nulls and names that mean nothing here are ignored, as upstream.
fn read(root: JsonValue<'_>) -> Result<LogChanges, Error> {
    let find = |name: &str| root.find(name).filter(|value| !value.is_null());
    let switch = |name: &str| find(name).map(JsonValue::as_bool).transpose();
    if find("log_file").is_some() {
        return Err(log_file_refusal());
    }
    Ok(LogChanges {
        shows_info: switch("log_info")?,
        shows_warning: switch("log_warning")?,
        shows_error: switch("log_error")?,
        verbose_level: find("log_verbose_level")
            .map(JsonValue::as_unsigned)
            .transpose()?
            .map(|level| u32::try_from(level).unwrap_or(u32::MAX)),
        format: find("log_format").map(read_format).transpose()?,
    })
}

fn read_format(value: JsonValue<'_>) -> Result<LogFormat, Error> {
    let name = value.as_str()?;
    // The code is upstream's, as the text is.
    LogFormat::from_name(name).ok_or_else(|| {
        Error::unavailable(format!(
            "invalid argument for --log_format, got: {name}",
            name = truncated(&name)
        ))
    })
}

fn answer(settings: &LogSettings) -> HttpResponse {
    let mut body = b"{\"log_file\":".to_vec();
    write::string(&mut body, settings.file.as_bytes());
    for (name, is_on) in [
        ("log_info", settings.shows_info),
        ("log_warning", settings.shows_warning),
        ("log_error", settings.shows_error),
    ] {
        body.extend_from_slice(format!(",\"{name}\":{is_on}", name = truncated(&name)).as_bytes());
    }
    body.extend_from_slice(b",\"log_verbose_level\":");
    write::unsigned(&mut body, settings.verbose_level.into());
    body.extend_from_slice(b",\"log_format\":");
    write::string(&mut body, settings.format.name().as_bytes());
    body.push(b'}');
    HttpResponse::json(body)
}
