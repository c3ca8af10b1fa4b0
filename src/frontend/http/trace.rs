//! `/v2/trace/setting` and `/v2/models/<name>/trace/setting`: what is traced, read and set.

use std::rc::Rc;

use conch_engine::Error;
use conch_memory::ByteView;

use super::answer::HttpResponse;
use super::json::{JsonValue, write};
use super::repository::{check_size, parse_json};
use crate::api;
use crate::shard::Shard;
use crate::trace::{FieldChange, SettingsUpdate};

/// What is in force; `model` is empty for the server's own settings.
pub(super) fn show(shard: &Shard, model: &str) -> Result<HttpResponse, Error> {
    api::check_traced_model(shard, model)?;
    let tracing = &shard.tracing;
    let values = tracing.values(model);
    let mut body = b"{\"trace_level\":[".to_vec();
    for (index, name) in api::level_names(values.levels).into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        body.extend_from_slice(format!("{comma}\"{name}\"").as_bytes());
    }
    let numbers = format!(
        "],\"trace_rate\":\"{}\",\"trace_count\":\"{}\",\"log_frequency\":\"{}\",\"trace_file\":",
        values.rate, values.count, values.log_frequency
    );
    body.extend_from_slice(numbers.as_bytes());
    write::string(&mut body, tracing.file().as_bytes());
    body.extend_from_slice(b",\"trace_mode\":\"triton\"}");
    Ok(HttpResponse::json(body))
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
