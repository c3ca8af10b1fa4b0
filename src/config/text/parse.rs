//! The grammar of the protobuf text format, driven by the descriptors of the message.

use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage, Value,
};

use super::token::{TextFault, TextToken, TokenKind, Tokens};
use super::value;
use crate::schema::DEPTH_MAX;

/// Reads a whole source as one message.
pub(super) fn parse(
    source: &[u8],
    descriptor: MessageDescriptor,
) -> Result<DynamicMessage, TextFault> {
    let mut tokens = Tokens::new(source);
    let current = tokens.next()?;
    let mut parser = Parser {
        tokens,
        current,
        path: Vec::new(),
    };
    let mut message = DynamicMessage::new(descriptor);
    let result = parser.parse_all(&mut message);
    result.map_err(|fault| parser.with_path(fault))?;
    Ok(message)
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    /// Looked at, not yet taken.
    current: TextToken<'a>,
    /// The fields that lead to the current one.
    path: Vec<String>,
}

impl<'a> Parser<'a> {
    fn parse_all(&mut self, message: &mut DynamicMessage) -> Result<(), TextFault> {
        while self.current.kind != TokenKind::End {
            self.field(message)?;
        }
        Ok(())
    }

    /// Puts the field in front of what is wrong with it.
    fn with_path(&self, fault: TextFault) -> TextFault {
        if self.path.is_empty() {
            return fault;
        }
        TextFault {
            message: format!("{}: {}", self.path.join("."), fault.message),
            ..fault
        }
    }

    fn fault<T>(&self, message: impl Into<String>) -> Result<T, TextFault> {
        Err(TextFault::new(self.current.at, message))
    }

    fn next_token(&mut self) -> Result<TextToken<'a>, TextFault> {
        let next = self.tokens.next()?;
        Ok(std::mem::replace(&mut self.current, next))
    }

    fn try_take(&mut self, symbol: u8) -> Result<bool, TextFault> {
        let is_there = self.current.is_symbol(symbol);
        if is_there {
            self.next_token()?;
        }
        Ok(is_there)
    }

    fn expect(&mut self, symbol: u8) -> Result<(), TextFault> {
        if self.try_take(symbol)? {
            return Ok(());
        }
        self.fault(format!(
            "Expected \"{}\", found \"{}\".",
            char::from(symbol),
            self.current.shown()
        ))
    }

    /// One `name: value`, `name { … }` or `name [ … ]`, with the separator that may follow.
    fn field(&mut self, message: &mut DynamicMessage) -> Result<(), TextFault> {
        let descriptor = message.descriptor();
        if self.current.is_symbol(b'[') {
            return self.fault(format!(
                "Message type \"{}\" has no extensions.",
                descriptor.full_name()
            ));
        }
        if self.current.kind != TokenKind::Identifier {
            return self.fault(format!(
                "Expected identifier, got: {}",
                self.current.shown()
            ));
        }
        let name = self.current.shown();
        let Some(field) = descriptor.get_field_by_name(&name) else {
            return self.fault(format!(
                "Message type \"{}\" has no field named \"{name}\".",
                descriptor.full_name()
            ));
        };
        self.path.push(name.into_owned());
        let at = self.current.at;
        let is_message = field.kind().as_message().is_some();
        check_single(message, &field).map_err(|text| TextFault::new(at, text))?;
        self.next_token()?;
        if is_message {
            // The colon is a matter of taste here.
            self.try_take(b':')?;
        } else {
            self.expect(b':')?;
        }
        if field.cardinality() == Cardinality::Repeated && self.try_take(b'[')? {
            if !self.try_take(b']')? {
                loop {
                    self.value(message, &field)?;
                    if self.try_take(b']')? {
                        break;
                    }
                    self.expect(b',')?;
                }
            }
        } else {
            self.value(message, &field)?;
        }
        self.path.pop();
        if !self.try_take(b';')? {
            self.try_take(b',')?;
        }
        Ok(())
    }

    /// One value, put where it belongs: set, appended, or entered into a map.
    fn value(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
    ) -> Result<(), TextFault> {
        let value = match field.kind() {
            Kind::Message(descriptor) => Value::Message(self.message(descriptor)?),
            _ => self.scalar(field)?,
        };
        if field.is_map() {
            let Value::Message(entry) = value else {
                return self.fault("a map entry is a message");
            };
            let (key, value) = map_entry(&entry);
            if let Value::Map(map) = message.get_field_mut(field) {
                // As upstream, the last one of equal keys counts.
                map.insert(key, value);
            }
        } else if field.is_list() {
            if let Value::List(list) = message.get_field_mut(field) {
                list.push(value);
            }
        } else {
            message.set_field(field, value);
        }
        Ok(())
    }

    fn message(&mut self, descriptor: MessageDescriptor) -> Result<DynamicMessage, TextFault> {
        if self.path.len() > DEPTH_MAX {
            return self.fault(format!("Message is too deep, the limit is {DEPTH_MAX}."));
        }
        let close = if self.try_take(b'<')? {
            b'>'
        } else {
            self.expect(b'{')?;
            b'}'
        };
        let mut message = DynamicMessage::new(descriptor);
        while !self.current.is_symbol(b'>') && !self.current.is_symbol(b'}') {
            if self.current.kind == TokenKind::End {
                break;
            }
            self.field(&mut message)?;
        }
        self.expect(close)?;
        Ok(message)
    }

    fn scalar(&mut self, field: &FieldDescriptor) -> Result<Value, TextFault> {
        Ok(match &field.kind() {
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(
                i32::try_from(self.signed(i32::MAX as u64)?).expect("bounded by the line before"),
            ),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                Value::I64(self.signed(i64::MAX as u64)?)
            }
            Kind::Uint32 | Kind::Fixed32 => Value::U32(
                u32::try_from(self.unsigned(u64::from(u32::MAX))?)
                    .expect("bounded by the line before"),
            ),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.unsigned(u64::MAX)?),
            // Rounds to the nearest; beyond the largest it is infinite, as in C.
            #[allow(clippy::cast_possible_truncation)]
            Kind::Float => Value::F32(self.double()? as f32),
            Kind::Double => Value::F64(self.double()?),
            Kind::Bool => Value::Bool(self.boolean(field.name())?),
            Kind::String => {
                let at = self.current.at;
                let bytes = self.string()?;
                let text = String::from_utf8(bytes);
                Value::String(text.map_err(|_| TextFault::new(at, "String is not valid UTF-8."))?)
            }
            Kind::Bytes => Value::Bytes(self.string()?.into()),
            Kind::Enum(descriptor) => self.enumerator(descriptor, field.name())?,
            Kind::Message(_) => return self.fault("a message is no scalar"),
        })
    }

    fn unsigned(&mut self, max: u64) -> Result<u64, TextFault> {
        if self.current.kind != TokenKind::Integer {
            return self.fault(format!("Expected integer, got: {}", self.current.shown()));
        }
        let value = value::integer(&self.current, max)?;
        self.next_token()?;
        Ok(value)
    }

    /// An integer with a sign, from `-max - 1` to `max`.
    fn signed(&mut self, max: u64) -> Result<i64, TextFault> {
        let is_negative = self.try_take(b'-')?;
        let magnitude = self.unsigned(max + u64::from(is_negative))?;
        Ok(if is_negative {
            0i64.wrapping_sub_unsigned(magnitude)
        } else {
            0i64.wrapping_add_unsigned(magnitude)
        })
    }

    fn double(&mut self) -> Result<f64, TextFault> {
        let is_negative = self.try_take(b'-')?;
        let magnitude = match self.current.kind {
            TokenKind::Integer | TokenKind::Float => value::float(&self.current)?,
            TokenKind::Identifier => match self.current.shown().to_ascii_lowercase().as_str() {
                "inf" | "infinity" => f64::INFINITY,
                "nan" => f64::NAN,
                _ => return self.fault(format!("Expected double, got: {}", self.current.shown())),
            },
            _ => return self.fault(format!("Expected double, got: {}", self.current.shown())),
        };
        self.next_token()?;
        Ok(if is_negative { -magnitude } else { magnitude })
    }

    fn boolean(&mut self, field: &str) -> Result<bool, TextFault> {
        let value = match (self.current.kind, self.current.text) {
            (TokenKind::Integer, _) => value::integer(&self.current, 1)? == 1,
            (TokenKind::Identifier, b"true" | b"True" | b"t") => true,
            (TokenKind::Identifier, b"false" | b"False" | b"f") => false,
            _ => {
                return self.fault(format!(
                    "Invalid value for boolean field \"{field}\". Value: \"{}\".",
                    self.current.shown()
                ));
            }
        };
        self.next_token()?;
        Ok(value)
    }

    /// One or more string tokens in a row.
    fn string(&mut self) -> Result<Vec<u8>, TextFault> {
        if self.current.kind != TokenKind::String {
            return self.fault(format!("Expected string, got: {}", self.current.shown()));
        }
        let mut bytes = Vec::new();
        while self.current.kind == TokenKind::String {
            value::append_string(&self.current, &mut bytes)?;
            self.next_token()?;
        }
        Ok(bytes)
    }

    fn enumerator(&mut self, descriptor: &EnumDescriptor, field: &str) -> Result<Value, TextFault> {
        let first = self.current;
        let number = match first.kind {
            TokenKind::Identifier => descriptor
                .get_value_by_name(&first.shown())
                .map(|enumerator| enumerator.number()),
            TokenKind::Integer => {
                let number = i32::try_from(value::integer(&first, i32::MAX as u64)?).ok();
                number.filter(|number| descriptor.get_value(*number).is_some())
            }
            _ => {
                return self.fault(format!(
                    "Expected integer or identifier, got: {}",
                    first.shown()
                ));
            }
        };
        let Some(number) = number else {
            return self.fault(format!(
                "Unknown enumeration value of \"{}\" for field \"{field}\".",
                first.shown()
            ));
        };
        self.next_token()?;
        Ok(Value::EnumNumber(number))
    }
}

/// A singular field, or a member of its oneof, must not be there yet. As upstream, a field without
/// presence counts as there only when it differs from its default.
fn check_single(message: &DynamicMessage, field: &FieldDescriptor) -> Result<(), String> {
    if field.cardinality() == Cardinality::Repeated {
        return Ok(());
    }
    if message.has_field(field) {
        return Err(format!(
            "Non-repeated field \"{}\" is specified multiple times.",
            field.name()
        ));
    }
    let Some(oneof) = field.containing_oneof() else {
        return Ok(());
    };
    match oneof.fields().find(|member| message.has_field(member)) {
        Some(member) => Err(format!(
            "Field \"{}\" is specified along with field \"{}\", another member of oneof \"{}\".",
            field.name(),
            member.name(),
            oneof.name()
        )),
        None => Ok(()),
    }
}

/// Key and value of an entry; what it does not give is the default.
fn map_entry(entry: &DynamicMessage) -> (MapKey, Value) {
    let descriptor = entry.descriptor();
    let key = entry
        .get_field(&descriptor.map_entry_key_field())
        .into_owned();
    let key = key
        .into_map_key()
        .expect("the schema allows only such keys");
    (
        key,
        entry
            .get_field(&descriptor.map_entry_value_field())
            .into_owned(),
    )
}
