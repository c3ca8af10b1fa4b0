//! `/v2/trace/setting` and `/v2/models/<name>/trace/setting`: what is traced, read and set.

use std::rc::Rc;

use conch_control::json::{as_text, to_json};
use conch_engine::Error;
use conch_memory::ByteView;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::answer::HttpResponse;
use super::json::JsonValue;
use super::repository::{check_size, parse_json};
use crate::api;
use crate::shard::Shard;
use crate::trace::{FieldChange, SettingValues, SettingsUpdate};

/// What is in force; `model` is empty for the server's own settings.
pub(super) fn show(shard: &Shard, model: &str) -> Result<HttpResponse, Error> {
    api::check_traced_model(shard, model)?;
    let tracing = &shard.tracing;
    let values = tracing.values(model);
    let document = match tracing.collector() {
        Some(collector) => span_document(&values, &collector.shown),
        None => file_document(&values, tracing.file()),
    };
    Ok(HttpResponse::json(document.into_bytes()))
}

/// Settings of the mode `opentelemetry`. Some stand there several times, as upstream writes them.
fn span_document(values: &SettingValues, collector: &[(String, String)]) -> String {
    struct SpanDocument<'s>(&'s SettingValues, &'s [(String, String)]);
    impl Serialize for SpanDocument<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let SpanDocument(values, collector) = self;
            let mut document = serializer.serialize_map(None)?;
            document.serialize_entry("trace_level", &api::level_names(values.levels))?;
            document.serialize_entry("trace_rate", &values.rate.to_string())?;
            document.serialize_entry("trace_count", &values.count.to_string())?;
            document.serialize_entry("trace_mode", api::SPAN_MODE)?;
            for (name, value) in *collector {
                document.serialize_entry(name, value)?;
            }
            document.end()
        }
    }
    to_json(&SpanDocument(values, collector))
}

/// Settings of the mode `triton`.
fn file_document(values: &SettingValues, file: &str) -> String {
    #[derive(Serialize)]
    struct TraceDocument<'s> {
        trace_level: Vec<&'static str>,
        #[serde(serialize_with = "as_text")]
        trace_rate: u32,
        #[serde(serialize_with = "as_text")]
        trace_count: i32,
        #[serde(serialize_with = "as_text")]
        log_frequency: u32,
        trace_file: &'s str,
        trace_mode: &'static str,
    }
    to_json(&TraceDocument {
        trace_level: api::level_names(values.levels),
        trace_rate: values.rate,
        trace_count: values.count,
        log_frequency: values.log_frequency,
        trace_file: file,
        trace_mode: api::FILE_MODE,
    })
}

/// Sets what the body names, and tells what is in force then.
pub(super) async fn update(
    shard: &Rc<Shard>,
    body: ByteView,
    model: Option<Box<str>>,
) -> Result<HttpResponse, Error> {
    let model = model.unwrap_or_default();
    api::check_traced_model(shard, &model)?;
    check_size(&body)?;
    let update = parse_json(shard, body, read).await?;
    shard.tracing.update(&model, &update)?;
    show(shard, &model)
}

/// A null clears a field, what is not named stays.
fn read(root: JsonValue<'_>) -> Result<SettingsUpdate, Error> {
    if root.find("trace_file").is_some() {
        return Err(api::trace_file_refusal());
    }
    let levels = match root.find("trace_level") {
        None => FieldChange::Keep,
        Some(value) if value.is_null() => FieldChange::Clear,
        Some(value) => {
            let names: Vec<&str> = value
                .as_array()?
                .map(JsonValue::as_str)
                .collect::<Result<_, _>>()?;
            api::parse_levels(&names)?
        }
    };
    Ok(SettingsUpdate {
        levels,
        rate: field(root, "trace_rate", |text| {
            api::parse_unsigned("trace_rate", text)
        })?,
        count: field(root, "trace_count", |text| api::parse_count(text, ""))?,
        log_frequency: field(root, "log_frequency", |text| {
            api::parse_unsigned("log_frequency", text)
        })?,
    })
}

fn field<T>(
    root: JsonValue<'_>,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<FieldChange<T>, Error> {
    match root.find(name) {
        None => Ok(FieldChange::Keep),
        Some(value) if value.is_null() => Ok(FieldChange::Clear),
        Some(value) => parse(value.as_str()?).map(FieldChange::Set),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceLevels;

    #[test]
    fn settings_stand_in_upstreams_order() {
        let levels = |timestamps, tensors| TraceLevels {
            timestamps,
            tensors,
        };
        for (levels, names) in [
            (levels(false, false), r#""OFF""#),
            (levels(true, false), r#""TIMESTAMPS""#),
            (levels(true, true), r#""TIMESTAMPS","TENSORS""#),
        ] {
            let values = SettingValues {
                levels,
                rate: 1000,
                count: -1,
                log_frequency: 0,
            };
            assert_eq!(
                file_document(&values, "/a\"b"),
                format!(
                    "{{\"trace_level\":[{names}],\"trace_rate\":\"1000\",\
                         \"trace_count\":\"-1\",\"log_frequency\":\"0\",\
                         \"trace_file\":\"/a\\\"b\",\"trace_mode\":\"triton\"}}"
                )
            );
            let collector = [("resource", "a=b"), ("resource", "c=\""), ("url", "h")];
            let collector = collector.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(
                span_document(&values, &collector),
                format!(
                    "{{\"trace_level\":[{names}],\"trace_rate\":\"1000\",\
                         \"trace_count\":\"-1\",\"trace_mode\":\"opentelemetry\",\
                         \"resource\":\"a=b\",\"resource\":\"c=\\\"\",\"url\":\"h\"}}"
                )
            );
        }
    }
}
