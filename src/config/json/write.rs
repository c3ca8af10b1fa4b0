//! Writes the JSON form exactly as upstream does (core, `ModelConfigToJson`): names as in the
//! schema, every plain field with its value even if it is the default, lists and maps even if
//! empty, messages where they are set, enumerators by name, 64-bit integers as numbers.

use conch_proto::inference::ModelConfig;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value};

use super::number::{write_f32, write_f64};
use crate::schema;

/// The configuration as JSON on one line; the empty string for an empty configuration, as upstream.
pub fn to_json(config: &ModelConfig) -> String {
    let mut out = String::new();
    if *config != ModelConfig::default() {
        write_message(&schema::to_dynamic(config), &mut out);
    }
    out
}

fn write_message(message: &DynamicMessage, out: &mut String) {
    out.push('{');
    let start = out.len();
    let descriptor = message.descriptor();
    // In the order of the schema's source.
    let names = descriptor
        .descriptor_proto()
        .field
        .iter()
        .map(|field| field.name());
    let fields: Vec<FieldDescriptor> = names
        .filter_map(|name| descriptor.get_field_by_name(name))
        .collect();
    let is_late = |field: &&FieldDescriptor| {
        field.containing_oneof().is_some() && field.kind().as_message().is_none()
    };
    for field in fields.iter().filter(|field| !is_late(field)) {
        if !field.supports_presence() || message.has_field(field) {
            write_member(message, field, start, out);
        }
    }
    // A plain member of a oneof comes behind everything else, and only if it is set.
    for field in fields
        .iter()
        .filter(is_late)
        .filter(|field| message.has_field(field))
    {
        write_member(message, field, start, out);
    }
    out.push('}');
}

/// Appends `"name":value` to an object that began at `start`.
fn write_member(message: &DynamicMessage, field: &FieldDescriptor, start: usize, out: &mut String) {
    separate(start, out);
    write_string(field.name(), out);
    out.push(':');
    let is_text = is_text(field);
    let value = message.get_field(field);
    match &*value {
        Value::Map(map) => {
            // By key, so that the output has one order.
            let mut entries: Vec<(&MapKey, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push('{');
            let start = out.len();
            let value_kind = map_value_kind(field);
            for (key, value) in entries {
                separate(start, out);
                write_string(&key_text(key), out);
                out.push(':');
                write_value(value, &value_kind, false, out);
            }
            out.push('}');
        }
        Value::List(list) => {
            out.push('[');
            let start = out.len();
            for value in list {
                separate(start, out);
                write_value(value, &field.kind(), is_text, out);
            }
            out.push(']');
        }
        value => write_value(value, &field.kind(), is_text, out),
    }
}

fn separate(start: usize, out: &mut String) {
    if out.len() > start {
        out.push(',');
    }
}

fn write_value(value: &Value, kind: &Kind, is_text: bool, out: &mut String) {
    match value {
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::I32(value) => out.push_str(&value.to_string()),
        Value::U32(value) => out.push_str(&value.to_string()),
        Value::I64(value) if is_text => write_string(&value.to_string(), out),
        Value::I64(value) => out.push_str(&value.to_string()),
        Value::U64(value) => out.push_str(&value.to_string()),
        Value::F32(value) => write_f32(*value, out),
        Value::F64(value) => write_f64(*value, out),
        Value::String(value) => write_string(value, out),
        Value::EnumNumber(number) => {
            match kind
                .as_enum()
                .and_then(|descriptor| descriptor.get_value(*number))
            {
                Some(enumerator) => write_string(enumerator.name(), out),
                None => out.push_str(&number.to_string()),
            }
        }
        Value::Message(message) => write_message(message, out),
        Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
            unreachable!("no field of a configuration holds bytes, and collections do not nest")
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push_str(&serde_json::to_string(text).expect("a string has a JSON form"));
}

fn map_value_kind(field: &FieldDescriptor) -> Kind {
    field
        .kind()
        .as_message()
        .map(|entry| entry.map_entry_value_field().kind())
        .expect("a map has entries")
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// Upstream turns 64-bit integers from protobuf's strings into numbers field by field, and
/// overlooks these. Backends have come to read them as strings.
fn is_text(field: &FieldDescriptor) -> bool {
    TEXT_FIELDS.contains(&field.full_name())
}

const TEXT_FIELDS: [&str; 3] = [
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelSequenceBatching.InitialState.dims",
];
