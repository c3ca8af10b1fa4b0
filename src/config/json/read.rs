//! Reads the JSON form by the rules of protobuf's JSON mapping: names as in the schema or in camel
//! case, `null` as absent, numbers also as strings, enumerators by name (in any case) or number,
//! and one element alone where a list is meant. Text that is not quite JSON is read as libprotobuf
//! does, see [`lenient`]. Unknown and repeated names are refused.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use conch_proto::inference::ModelConfig;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::lenient;
use crate::schema::{self, DEPTH_MAX};
use crate::{ConfigError, schema::model_config};

/// Reads a configuration from its JSON form.
///
/// # Errors
/// `InvalidArg`: `<field>: <what> at line <line> column <column>`.
pub fn from_json(json: &str) -> Result<ModelConfig, ConfigError> {
    read(json, model_config())
        .or_else(|refusal| {
            let strict = lenient::strict_form(json);
            match strict == json {
                true => Err(refusal),
                // Another text, so that places in it are none of the file's.
                false => read(&strict, model_config()).map_err(|refusal| ConfigError {
                    place: None,
                    ..refusal
                }),
            }
        })
        .map(|message| schema::to_typed(&message))
}

fn read(json: &str, descriptor: MessageDescriptor) -> Result<DynamicMessage, ConfigError> {
    let path = RefCell::new(Vec::new());
    let mut source = serde_json::Deserializer::from_str(json);
    let message = MessageSeed {
        descriptor,
        path: &path,
    }
    .deserialize(&mut source)
    .and_then(|message| {
        source.end()?;
        Ok(message)
    });
    message.map_err(|error| {
        let path = path.borrow();
        let text = match path.is_empty() {
            true => error.to_string(),
            false => format!("{}: {error}", path.join(".")),
        };
        let (line, column) = (error.line(), error.column());
        let suffix = format!(" at line {line} column {column}");
        let what = text.strip_suffix(&suffix).unwrap_or(&text).to_owned();
        let refusal = ConfigError::invalid(text);
        match line {
            // An error that has no place.
            0 => refusal,
            _ => refusal.at(line, column, what),
        }
    })
}

/// Names of the fields around the current place.
type FieldPath = RefCell<Vec<String>>;

#[derive(Clone)]
struct MessageSeed<'p> {
    descriptor: MessageDescriptor,
    path: &'p FieldPath,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = DynamicMessage;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<DynamicMessage, D::Error> {
        if self.path.borrow().len() > DEPTH_MAX {
            return Err(D::Error::custom(format!(
                "message is too deep, the limit is {DEPTH_MAX}"
            )));
        }
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = DynamicMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of {}", self.descriptor.full_name())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<DynamicMessage, A::Error> {
        let mut message = DynamicMessage::new(self.descriptor.clone());
        let mut seen = Vec::new();
        while let Some(name) = members.next_key::<String>()? {
            let field = self
                .descriptor
                .get_field_by_name(&name)
                .or_else(|| self.descriptor.get_field_by_json_name(&name))
                .ok_or_else(|| {
                    let owner = self.descriptor.full_name();
                    A::Error::custom(format!(
                        "message type \"{owner}\" has no field named \"{name}\""
                    ))
                })?;
            if seen.contains(&field.number()) {
                return Err(A::Error::custom(format!(
                    "field \"{}\" is given more than once",
                    field.name()
                )));
            }
            seen.push(field.number());
            self.path.borrow_mut().push(name);
            let value = members.next_value_seed(FieldSeed {
                field: &field,
                path: self.path,
            })?;
            if let Some(value) = value {
                let other = field
                    .containing_oneof()
                    .and_then(|oneof| oneof.fields().find(|member| message.has_field(member)));
                if let Some(other) = other {
                    return Err(A::Error::custom(format!(
                        "\"{}\" excludes it",
                        other.name()
                    )));
                }
                message.set_field(&field, value);
            }
            self.path.borrow_mut().pop();
        }
        Ok(message)
    }
}

/// The whole value of a field: one, a list or a map. None for `null`.
struct FieldSeed<'p> {
    field: &'p FieldDescriptor,
    path: &'p FieldPath,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Option<Value>, D::Error> {
        source.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of {}", self.field.name())
    }

    fn visit_none<E>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<Option<Value>, D::Error> {
        let kind = self.field.kind();
        if self.field.is_map() {
            let Kind::Message(entry) = kind else {
                return Err(D::Error::custom("a map has entries"));
            };
            return source
                .deserialize_map(MapVisitor {
                    entry,
                    path: self.path,
                })
                .map(Value::Map)
                .map(Some);
        }
        if self.field.is_list() {
            let mut list = Vec::new();
            source.deserialize_any(ListVisitor {
                kind: &kind,
                path: self.path,
                list: &mut list,
            })?;
            return Ok(Some(Value::List(list)));
        }
        ValueSeed {
            kind: &kind,
            path: self.path,
        }
        .deserialize(source)
        .map(Some)
    }
}

/// Appends what it is given to a list: a list's elements, or one element alone. Lists in lists
/// count as if they were one, and `null` as if it were not there.
struct ListVisitor<'v> {
    kind: &'v Kind,
    path: &'v FieldPath,
    list: &'v mut Vec<Value>,
}

impl ListVisitor<'_> {
    fn scalar<E: serde::de::Error>(self, token: Scalar) -> Result<(), E> {
        if matches!(self.kind, Kind::Message(_)) {
            return Err(E::custom("expected an object"));
        }
        let value = scalar(token, self.kind).map_err(E::custom)?;
        self.list.push(value);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for ListVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ListVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array, or one of its elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        loop {
            let element = ListVisitor {
                kind: self.kind,
                path: self.path,
                list: &mut *self.list,
            };
            if elements.next_element_seed(element)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<(), A::Error> {
        let Kind::Message(descriptor) = self.kind else {
            return Err(A::Error::custom("expected a boolean, a number or a string"));
        };
        let seed = MessageSeed {
            descriptor: descriptor.clone(),
            path: self.path,
        };
        let message = seed.visit_map(members)?;
        self.list.push(Value::Message(message));
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.scalar(Scalar::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.scalar(Scalar::Integer(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.scalar(Scalar::Integer(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.scalar(Scalar::Float(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.scalar(Scalar::Text(value.to_owned()))
    }
}

struct MapVisitor<'p> {
    entry: MessageDescriptor,
    path: &'p FieldPath,
}

impl<'de> Visitor<'de> for MapVisitor<'_> {
    type Value = HashMap<MapKey, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut members: A,
    ) -> Result<HashMap<MapKey, Value>, A::Error> {
        let key_kind = self.entry.map_entry_key_field().kind();
        let value_kind = self.entry.map_entry_value_field().kind();
        let mut map = HashMap::new();
        while let Some(text) = members.next_key::<String>()? {
            self.path.borrow_mut().push(text.clone());
            let key = scalar(Scalar::Text(text), &key_kind).map_err(A::Error::custom)?;
            let key = key
                .into_map_key()
                .ok_or_else(|| A::Error::custom("not a key"))?;
            let value = members.next_value_seed(ValueSeed {
                kind: &value_kind,
                path: self.path,
            })?;
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("key is given more than once"));
            }
            self.path.borrow_mut().pop();
        }
        Ok(map)
    }
}

/// One value: a message or a scalar.
struct ValueSeed<'p> {
    kind: &'p Kind,
    path: &'p FieldPath,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        if let Kind::Message(descriptor) = self.kind {
            let seed = MessageSeed {
                descriptor: descriptor.clone(),
                path: self.path,
            };
            return seed.deserialize(source).map(Value::Message);
        }
        let token = source.deserialize_any(ScalarVisitor)?;
        scalar(token, self.kind).map_err(D::Error::custom)
    }
}

/// A scalar as JSON has it.
enum Scalar {
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean, a number or a string")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }
}

fn scalar(token: Scalar, kind: &Kind) -> Result<Value, String> {
    match kind {
        Kind::Bool => match token {
            Scalar::Bool(value) => Ok(Value::Bool(value)),
            // The form of a key.
            Scalar::Text(text) if text == "true" => Ok(Value::Bool(true)),
            Scalar::Text(text) if text == "false" => Ok(Value::Bool(false)),
            _ => Err("expected a boolean".to_owned()),
        },
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => integer(token)?
            .try_into()
            .map(Value::I32)
            .map_err(out_of_range),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => integer(token)?
            .try_into()
            .map(Value::I64)
            .map_err(out_of_range),
        Kind::Uint32 | Kind::Fixed32 => integer(token)?
            .try_into()
            .map(Value::U32)
            .map_err(out_of_range),
        Kind::Uint64 | Kind::Fixed64 => integer(token)?
            .try_into()
            .map(Value::U64)
            .map_err(out_of_range),
        Kind::Float => {
            let value = float(token)?;
            // Rounds to the nearest; what is too large is refused.
            #[allow(clippy::cast_possible_truncation)]
            let narrow = value as f32;
            if narrow.is_infinite() && value.is_finite() {
                Err(out_of_range(()))
            } else {
                Ok(Value::F32(narrow))
            }
        }
        Kind::Double => float(token).map(Value::F64),
        Kind::String => match token {
            Scalar::Text(text) => Ok(Value::String(text)),
            _ => Err("expected a string".to_owned()),
        },
        Kind::Enum(descriptor) => {
            let number = match token {
                Scalar::Text(text) => descriptor
                    .values()
                    .find(|enumerator| enumerator.name().eq_ignore_ascii_case(&text))
                    .map(|enumerator| enumerator.number())
                    .ok_or_else(|| {
                        format!(
                            "unknown enumerator \"{text}\" of {}",
                            descriptor.full_name()
                        )
                    })?,
                token => {
                    let number = integer(token)?;
                    i32::try_from(number)
                        .ok()
                        .filter(|number| descriptor.get_value(*number).is_some())
                        .ok_or_else(|| {
                            format!("unknown enumerator {number} of {}", descriptor.full_name())
                        })?
                }
            };
            Ok(Value::EnumNumber(number))
        }
        Kind::Bytes | Kind::Message(_) => Err("not a scalar".to_owned()),
    }
}

fn out_of_range<E>(_: E) -> String {
    "number out of range".to_owned()
}

fn integer(token: Scalar) -> Result<i128, String> {
    const WHOLE_MAX: f64 = 18_446_744_073_709_551_616.0;
    match token {
        Scalar::Integer(value) => Ok(value),
        Scalar::Float(value) if value.fract() == 0.0 && value.abs() <= WHOLE_MAX => {
            // Exact: whole, and far below the largest i128.
            #[allow(clippy::cast_possible_truncation)]
            Ok(value as i128)
        }
        Scalar::Float(value) if value.fract() == 0.0 => Err(out_of_range(value)),
        Scalar::Text(text) => match text
            .strip_prefix('-')
            .unwrap_or(&text)
            .bytes()
            .all(|byte| byte.is_ascii_digit())
        {
            true => text
                .parse()
                .map_err(|_| format!("expected an integer, got \"{text}\"")),
            false => Err(format!("expected an integer, got \"{text}\"")),
        },
        Scalar::Bool(_) | Scalar::Float(_) => Err("expected an integer".to_owned()),
    }
}

fn float(token: Scalar) -> Result<f64, String> {
    match token {
        // To the nearest, as reading the digits would.
        #[allow(clippy::cast_precision_loss)]
        Scalar::Integer(value) => Ok(value as f64),
        Scalar::Float(value) => Ok(value),
        Scalar::Text(text) => match text.as_str() {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            _ => {
                let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
                value.ok_or_else(|| format!("expected a number, got \"{text}\""))
            }
        },
        Scalar::Bool(_) => Err("expected a number".to_owned()),
    }
}
