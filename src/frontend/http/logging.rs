//! `/v2/logging`: the log's switches, read and set.

use std::rc::Rc;

use conch_control::json::to_json;
use conch_engine::{Error, truncated};
use conch_log as log;
use conch_log::{LogFormat, LogSettings};
use conch_memory::ByteView;
use serde::Serialize;

use super::answer::HttpResponse;
use super::json::JsonValue;
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
    HttpResponse::json(document(settings).into_bytes())
}

fn document(settings: &LogSettings) -> String {
    #[derive(Serialize)]
    struct LogDocument<'s> {
        log_file: &'s str,
        log_info: bool,
        log_warning: bool,
        log_error: bool,
        log_verbose_level: u32,
        log_format: &'static str,
    }
    to_json(&LogDocument {
        log_file: &settings.file,
        log_info: settings.shows_info,
        log_warning: settings.shows_warning,
        log_error: settings.shows_error,
        log_verbose_level: settings.verbose_level,
        log_format: settings.format.name(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_stand_in_upstreams_order() {
        let settings = LogSettings {
            file: "/a\"\u{1f}".to_owned(),
            shows_info: true,
            shows_warning: false,
            shows_error: true,
            verbose_level: u32::MAX,
            format: LogFormat::Iso8601,
        };
        assert_eq!(
            document(&settings),
            concat!(
                r#"{"log_file":"/a\"\u001F","log_info":true,"log_warning":false,"#,
                r#""log_error":true,"log_verbose_level":4294967295,"log_format":"ISO8601"}"#
            )
        );
    }
}
