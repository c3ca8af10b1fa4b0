//! The names in the text of a kernel, registers and parameters, and the operands made of them.

use std::collections::HashMap;

use super::instruction::{Operand, Register, Special, Type};
use super::program::Parameter;

pub type Outcome<T> = Result<T, String>;

pub struct Symbols {
    parameters: Vec<Parameter>,
    registers: HashMap<String, (Register, Type)>,
}

impl Symbols {
    pub fn new(parameters: Vec<Parameter>) -> Self {
        Symbols {
            parameters,
            registers: HashMap::new(),
        }
    }

    pub fn register_count(&self) -> usize {
        self.registers.len()
    }

    pub fn into_parameters(self) -> Vec<Parameter> {
        self.parameters
    }

    /// Reads `.reg .f32 %f<4>` or `.reg .pred p, q`.
    pub fn declare(&mut self, text: &str) -> Outcome<()> {
        let wrong = || format!("Parsing error near '{text}'");
        let rest = text.strip_prefix(".reg").ok_or_else(wrong)?.trim();
        let (kind, names) = rest.split_once(char::is_whitespace).ok_or_else(wrong)?;
        let data_type = kind.strip_prefix('.').and_then(Type::parse);
        let data_type = data_type.ok_or_else(wrong)?;
        for name in names.split(',').map(str::trim) {
            if let Some((stem, count)) = name.split_once('<') {
                let count = count.strip_suffix('>').ok_or_else(wrong)?;
                let count: usize = count.parse().map_err(|_| wrong())?;
                // As many as a thread can have at all, and some.
                if count > 4096 {
                    return Err(wrong());
                }
                for index in 0..count {
                    self.add_register(format!("{stem}{index}"), data_type)?;
                }
            } else {
                self.add_register(name.to_owned(), data_type)?;
            }
        }
        Ok(())
    }

    fn add_register(&mut self, name: String, data_type: Type) -> Outcome<()> {
        let number = self.registers.len();
        if self.registers.contains_key(&name) {
            return Err(format!("Duplicate definition of '{name}'"));
        }
        self.registers.insert(name, (number, data_type));
        Ok(())
    }

    /// A declared register as wide as `data_type`; a wider one where values are loaded, stored or
    /// converted.
    fn sized(&self, name: &str, data_type: Type, may_be_wider: bool) -> Outcome<Register> {
        let found = self.registers.get(name).copied();
        let (number, declared) = found.ok_or_else(|| format!("Unknown symbol '{name}'"))?;
        let is_predicate = |kind| kind == Type::Predicate;
        let fits = is_predicate(declared) == is_predicate(data_type)
            && (declared.bytes() == data_type.bytes()
                || (may_be_wider && declared.bytes() > data_type.bytes()));
        // A float is in a register of its own type or in plain bits, as is an integer.
        let suits = matches!(declared, Type::Bits(_))
            || matches!(data_type, Type::Bits(_))
            || declared.is_float() == data_type.is_float();
        match fits && suits {
            true => Ok(number),
            false => Err(format!("Arguments mismatch: '{name}' is {declared:?}")),
        }
    }

    pub fn register(&self, name: &str, data_type: Type) -> Outcome<Register> {
        self.sized(name, data_type, false)
    }

    pub fn wide_register(&self, name: &str, data_type: Type) -> Outcome<Register> {
        self.sized(name, data_type, true)
    }

    pub fn operand(&self, text: &str, data_type: Type) -> Outcome<Operand> {
        self.value(text, data_type, false)
    }

    pub fn wide_operand(&self, text: &str, data_type: Type) -> Outcome<Operand> {
        self.value(text, data_type, true)
    }

    fn value(&self, text: &str, data_type: Type, may_be_wider: bool) -> Outcome<Operand> {
        if let Some(special) = special(text) {
            return match data_type.bytes() {
                4 => Ok(Operand::Special(special)),
                _ => Err(format!("Arguments mismatch: '{text}' has 32 bits")),
            };
        }
        if self.registers.contains_key(text) {
            return Ok(Operand::Register(self.sized(
                text,
                data_type,
                may_be_wider,
            )?));
        }
        literal(text, data_type).map(Operand::Literal)
    }

    /// An address `[%rd1+4]` of global memory.
    pub fn address(&self, text: &str) -> Outcome<(Operand, i64)> {
        let (base, offset) = inside(text)?;
        Ok((self.operand(base, Type::Bits(8))?, offset))
    }

    /// An address `[%rd1+4]` whose base is a register; none if that is a name of something else.
    pub fn register_address(&self, text: &str) -> Outcome<Option<(Register, i64)>> {
        let (base, offset) = inside(text)?;
        if !self.registers.contains_key(base) {
            return Ok(None);
        }
        Ok(Some((self.register(base, Type::Bits(8))?, offset)))
    }

    /// Where a parameter of this name begins in the block of all.
    pub fn parameter_offset(&self, name: &str) -> Option<usize> {
        let mut named = self.parameters.iter();
        let found = named.find(|parameter| parameter.name == name);
        found.map(|parameter| parameter.offset)
    }

    /// An address `[name+4]` of a parameter, as its offset.
    pub fn parameter(&self, text: &str, bytes: u32) -> Outcome<usize> {
        let (name, offset) = inside(text)?;
        let mut named = self.parameters.iter();
        let found = named.find(|parameter| parameter.name == name);
        let found = found.ok_or_else(|| format!("Unknown symbol '{name}'"))?;
        let offset = usize::try_from(offset).map_err(|_| format!("Parsing error near '{text}'"))?;
        match offset + bytes as usize <= found.bytes {
            true => Ok(found.offset + offset),
            false => Err(format!("'{text}' reads beyond its parameter")),
        }
    }
}

/// `base` and offset of `[base+offset]`.
fn inside(text: &str) -> Outcome<(&str, i64)> {
    let wrong = || format!("Parsing error near '{text}'");
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let inner = inner.ok_or_else(wrong)?;
    match inner.split_once('+') {
        None => Ok((inner.trim(), 0)),
        Some((base, offset)) => {
            let offset = offset.trim().parse().map_err(|_| wrong())?;
            Ok((base.trim(), offset))
        }
    }
}

fn special(text: &str) -> Option<Special> {
    let (name, dimension) = text.split_once('.')?;
    let dimension = match dimension {
        "x" => 0,
        "y" => 1,
        "z" => 2,
        _ => return None,
    };
    Some(match name {
        "%tid" => Special::Thread(dimension),
        "%ntid" => Special::BlockSize(dimension),
        "%ctaid" => Special::Block(dimension),
        "%nctaid" => Special::GridSize(dimension),
        _ => return None,
    })
}

/// The bits of `12`, `-3`, `0x7f` or, for floats, `0f3F800000`.
fn literal(text: &str, data_type: Type) -> Outcome<u64> {
    let unknown = || format!("Unknown symbol '{text}'");
    if let Some(hex) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
        let bits = u32::from_str_radix(hex, 16).map_err(|_| unknown())?;
        return match data_type {
            Type::F32 | Type::Bits(4) if hex.len() == 8 => Ok(u64::from(bits)),
            _ => Err(format!("Arguments mismatch: '{text}' is a float")),
        };
    }
    if data_type.is_float() || data_type == Type::Predicate {
        return Err(unknown());
    }
    let (digits, is_negative) = match text.strip_prefix('-') {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let number = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let number = number.map_err(|_| unknown())?;
    Ok(if is_negative {
        number.wrapping_neg()
    } else {
        number
    })
}
