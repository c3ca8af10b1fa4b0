//! The instructions that are known, from their names: `add.rn.f32`, `ld.global.u8`.

use super::instruction::{Binary, Comparison, Operand, Operation, Rounding, Type, Unary};
use super::symbols::{Outcome, Symbols};

/// An instruction's name in parts, of which each is taken once.
struct Name<'t> {
    whole: &'t str,
    modifiers: Vec<&'t str>,
}

/// Rounding modes by their names.
const MODES: [(&str, Rounding); 4] = [
    ("rn", Rounding::Nearest),
    ("rz", Rounding::Zero),
    ("rm", Rounding::Down),
    ("rp", Rounding::Up),
];

impl<'t> Name<'t> {
    fn unknown<T>(&self) -> Outcome<T> {
        Err(format!(
            "Not a name of any known instruction: '{}'",
            self.whole
        ))
    }

    /// Whether it has this modifier, which is taken.
    fn take(&mut self, modifier: &str) -> bool {
        let place = self.modifiers.iter().position(|found| *found == modifier);
        place.map(|place| self.modifiers.remove(place)).is_some()
    }

    fn rounding(&mut self) -> Option<Rounding> {
        let mut modes = MODES.into_iter();
        modes.find_map(|(name, mode)| self.take(name).then_some(mode))
    }

    /// The rounding to an integer: `rni`.
    fn integral_rounding(&mut self) -> Option<Rounding> {
        let mut modes = MODES.into_iter();
        modes.find_map(|(name, mode)| self.take(&format!("{name}i")).then_some(mode))
    }

    /// The types at its end, of which there have to be `N`, and nothing else be left.
    fn types<const N: usize>(&mut self) -> Outcome<[Type; N]> {
        let types = self.modifiers.iter().map(|text| Type::parse(text));
        let types: Option<Vec<Type>> = types.collect();
        match types.and_then(|types| <[Type; N]>::try_from(types).ok()) {
            Some(types) => Ok(types),
            None => self.unknown(),
        }
    }
}

pub(super) fn parse(symbols: &Symbols, whole: &str, operands: &[&str]) -> Outcome<Operation> {
    let mut parts = whole.split('.');
    let stem = parts.next().unwrap_or_default();
    let mut name = Name {
        whole,
        modifiers: parts.collect(),
    };
    match stem {
        "ret" | "exit" if name.modifiers.is_empty() && operands.is_empty() => Ok(Operation::Return),
        "ld" => load(symbols, &mut name, operands),
        "st" => store(symbols, &mut name, operands),
        "cvta" => to_global(symbols, &mut name, operands),
        "cvt" => convert(symbols, &mut name, operands),
        "setp" => compare(symbols, &mut name, operands),
        "selp" => select(symbols, &mut name, operands),
        "mad" | "fma" => multiply_add(symbols, stem, &mut name, operands),
        "mul" if name.take("wide") => multiply_wide(symbols, &mut name, operands),
        _ => match unary_of(stem) {
            Some(what) => unary(symbols, what, &mut name, operands),
            None => binary(symbols, stem, &mut name, operands),
        },
    }
}

/// As many operands as the instruction has.
fn exactly<'o, 't, const N: usize>(
    name: &Name<'_>,
    given: &'o [&'t str],
) -> Outcome<&'o [&'t str; N]> {
    given
        .try_into()
        .map_err(|_| format!("Arguments mismatch for instruction '{}'", name.whole))
}

fn load(symbols: &Symbols, name: &mut Name<'_>, operands: &[&str]) -> Outcome<Operation> {
    let is_parameter = name.take("param");
    if !is_parameter && !name.take("global") {
        return name.unknown();
    }
    // Through the cache of what nobody writes: the same bytes. Every read is a volatile one here.
    let _ = name.take("nc") || !is_parameter && name.take("volatile");
    let [data_type] = name.types()?;
    if data_type == Type::Predicate || data_type == Type::F16 {
        return name.unknown();
    }
    let [to, from] = *exactly(name, operands)?;
    let to = symbols.wide_register(to, data_type)?;
    if is_parameter {
        let offset = symbols.parameter(from, data_type.bytes())?;
        return Ok(Operation::LoadParameter {
            data_type,
            to,
            offset,
        });
    }
    let (address, offset) = symbols.address(from)?;
    Ok(Operation::Load {
        data_type,
        to,
        address,
        offset,
    })
}

fn store(symbols: &Symbols, name: &mut Name<'_>, operands: &[&str]) -> Outcome<Operation> {
    if !name.take("global") {
        return name.unknown();
    }
    let [data_type] = name.types()?;
    if data_type == Type::Predicate || data_type == Type::F16 {
        return name.unknown();
    }
    let [to, value] = *exactly(name, operands)?;
    let (address, offset) = symbols.address(to)?;
    Ok(Operation::Store {
        data_type,
        address,
        offset,
        value: symbols.wide_operand(value, data_type)?,
    })
}

/// Addresses of global memory are the same as generic ones.
fn to_global(symbols: &Symbols, name: &mut Name<'_>, operands: &[&str]) -> Outcome<Operation> {
    if !(name.take("to") && name.take("global")) {
        return name.unknown();
    }
    let [data_type] = name.types()?;
    if data_type != Type::Unsigned(8) {
        return name.unknown();
    }
    let [to, from] = *exactly(name, operands)?;
    Ok(Operation::Unary {
        what: Unary::Move,
        data_type,
        to: symbols.register(to, data_type)?,
        from: symbols.operand(from, data_type)?,
    })
}

fn convert(symbols: &Symbols, name: &mut Name<'_>, operands: &[&str]) -> Outcome<Operation> {
    let saturates = name.take("sat");
    let integral = name.integral_rounding();
    let rounding = name.rounding();
    let [to_type, from_type] = name.types()?;
    let is_known = |data_type: Type| data_type.is_float() || data_type.is_integer();
    // What the compiler in the driver asks for, and refuses elsewhere.
    let is_right = match (to_type.is_float(), from_type.is_float()) {
        (false, false) => rounding.is_none() && integral.is_none(),
        (false, true) => rounding.is_none() && integral.is_some(),
        // The only mode that is known from integers, and to FP32 alone.
        (true, false) => {
            to_type == Type::F32
                && rounding == Some(Rounding::Nearest)
                && integral.is_none()
                && !saturates
        }
        (true, true) => match (to_type, from_type) {
            (Type::F16, Type::F32) => rounding.is_some() && integral.is_none() && !saturates,
            (Type::F32, Type::F16) => rounding.is_none() && integral.is_none() && !saturates,
            (Type::F32, Type::F32) => rounding.is_none() && (integral.is_some() || saturates),
            _ => false,
        },
    };
    if !(is_known(to_type) && is_known(from_type) && is_right) {
        return name.unknown();
    }
    let [to, from] = *exactly(name, operands)?;
    Ok(Operation::Convert {
        to_type,
        from_type,
        rounding: rounding.or(integral),
        is_integral: integral.is_some(),
        saturates,
        to: symbols.wide_register(to, to_type)?,
        from: symbols.wide_operand(from, from_type)?,
    })
}

fn compare(symbols: &Symbols, name: &mut Name<'_>, operands: &[&str]) -> Outcome<Operation> {
    if name.modifiers.len() != 2 {
        return name.unknown();
    }
    let text = name.modifiers.remove(0);
    let [data_type] = name.types()?;
    let Some((what, is_unordered)) = comparison(text, data_type) else {
        return name.unknown();
    };
    let [to, a, b] = *exactly(name, operands)?;
    Ok(Operation::Compare {
        what,
        is_unordered,
        data_type,
        to: symbols.register(to, Type::Predicate)?,
        operands: [
            symbols.operand(a, data_type)?,
            symbols.operand(b, data_type)?,
        ],
    })
}

/// What a name compares, and whether a NaN makes it true.
fn comparison(text: &str, data_type: Type) -> Option<(Comparison, bool)> {
    let is_float = data_type.is_float();
    if data_type == Type::Predicate || data_type.bytes() == 1 {
        return None;
    }
    let (stem, is_unordered) = match text.strip_suffix('u') {
        Some(stem) if is_float && stem.len() == 2 => (stem, true),
        _ => (text, false),
    };
    let what = match stem {
        "eq" => Comparison::Equal,
        "ne" => Comparison::NotEqual,
        "num" if is_float => Comparison::Numbers,
        "nan" if is_float => Comparison::NaN,
        // Bits have no order.
        _ if matches!(data_type, Type::Bits(_)) => return None,
        "lt" => Comparison::Less,
        "le" => Comparison::LessOrEqual,
        "gt" => Comparison::Greater,
        "ge" => Comparison::GreaterOrEqual,
        _ => return None,
    };
    Some((what, is_unordered))
}

fn select(symbols: &Symbols, name: &mut Name<'_>, operands: &[&str]) -> Outcome<Operation> {
    let [data_type] = name.types()?;
    if data_type.bytes() == 1 || data_type == Type::F16 {
        return name.unknown();
    }
    let [to, a, b, condition] = *exactly(name, operands)?;
    Ok(Operation::Select {
        to: symbols.register(to, data_type)?,
        operands: [
            symbols.operand(a, data_type)?,
            symbols.operand(b, data_type)?,
        ],
        condition: symbols.register(condition, Type::Predicate)?,
    })
}

/// Twice as wide, where there is such a type.
fn widened(data_type: Type) -> Option<Type> {
    match data_type {
        Type::Unsigned(bytes @ (2 | 4)) => Some(Type::Unsigned(2 * bytes)),
        Type::Signed(bytes @ (2 | 4)) => Some(Type::Signed(2 * bytes)),
        _ => None,
    }
}

fn multiply_wide(symbols: &Symbols, name: &mut Name<'_>, operands: &[&str]) -> Outcome<Operation> {
    let [data_type] = name.types()?;
    let Some(wide) = widened(data_type) else {
        return name.unknown();
    };
    let [to, a, b] = *exactly(name, operands)?;
    Ok(Operation::MultiplyWide {
        data_type,
        to: symbols.register(to, wide)?,
        operands: [
            symbols.operand(a, data_type)?,
            symbols.operand(b, data_type)?,
        ],
        addend: None,
    })
}

fn multiply_add(
    symbols: &Symbols,
    stem: &str,
    name: &mut Name<'_>,
    operands: &[&str],
) -> Outcome<Operation> {
    if stem == "mad" && name.take("wide") {
        let [data_type] = name.types()?;
        let Some(wide) = widened(data_type) else {
            return name.unknown();
        };
        let [to, a, b, c] = *exactly(name, operands)?;
        return Ok(Operation::MultiplyWide {
            data_type,
            to: symbols.register(to, wide)?,
            operands: [
                symbols.operand(a, data_type)?,
                symbols.operand(b, data_type)?,
            ],
            addend: Some(symbols.operand(c, wide)?),
        });
    }
    let is_low = name.take("lo");
    let is_nearest = name.take("rn");
    let [data_type] = name.types()?;
    let is_known = match stem {
        "mad" => is_low && !is_nearest && data_type.is_integer() && data_type.bytes() > 1,
        _ => is_nearest && !is_low && data_type == Type::F32,
    };
    if !is_known {
        return name.unknown();
    }
    let [to, a, b, c] = *exactly(name, operands)?;
    let operand = |text| symbols.operand(text, data_type);
    Ok(Operation::MultiplyAdd {
        data_type,
        to: symbols.register(to, data_type)?,
        operands: [operand(a)?, operand(b)?, operand(c)?],
    })
}

fn unary_of(stem: &str) -> Option<Unary> {
    Some(match stem {
        "mov" => Unary::Move,
        "not" => Unary::Not,
        "neg" => Unary::Negate,
        "abs" => Unary::Absolute,
        "sqrt" => Unary::SquareRoot,
        _ => return None,
    })
}

fn unary(
    symbols: &Symbols,
    what: Unary,
    name: &mut Name<'_>,
    operands: &[&str],
) -> Outcome<Operation> {
    let is_nearest = name.take("rn");
    let [data_type] = name.types()?;
    let is_wide = data_type.bytes() > 1;
    let is_known = match what {
        Unary::Move => data_type == Type::Predicate || (is_wide && data_type != Type::F16),
        Unary::Not => {
            data_type == Type::Predicate || (is_wide && matches!(data_type, Type::Bits(_)))
        }
        Unary::Negate | Unary::Absolute => {
            data_type == Type::F32 || (is_wide && data_type.is_signed())
        }
        Unary::SquareRoot => data_type == Type::F32,
    };
    if !is_known || is_nearest != (what == Unary::SquareRoot) {
        return name.unknown();
    }
    let [to, from] = *exactly(name, operands)?;
    Ok(Operation::Unary {
        what,
        data_type,
        to: symbols.register(to, data_type)?,
        from: symbols.operand(from, data_type)?,
    })
}

fn binary(
    symbols: &Symbols,
    stem: &str,
    name: &mut Name<'_>,
    operands: &[&str],
) -> Outcome<Operation> {
    let saturates = name.take("sat");
    let is_nearest = name.take("rn");
    let (is_low, is_high) = (name.take("lo"), name.take("hi"));
    let [data_type] = name.types()?;
    let Some(what) = binary_of(stem, is_high, data_type) else {
        return name.unknown();
    };
    let is_float = data_type.is_float();
    // Floats round to nearest where nothing is said; a division has to say it.
    let is_rounding_right = match stem {
        "div" => is_nearest == is_float,
        "add" | "sub" | "mul" => is_float || !is_nearest,
        _ => !is_nearest,
    };
    let is_right = is_rounding_right
        && (is_low || is_high) == (stem == "mul" && !is_float)
        && (!saturates || (matches!(stem, "add" | "sub") && data_type == Type::Signed(4)));
    if !is_right {
        return name.unknown();
    }
    let [to, a, b] = *exactly(name, operands)?;
    let is_shift = matches!(what, Binary::ShiftLeft | Binary::ShiftRight);
    let second = match is_shift {
        true => Type::Unsigned(4),
        false => data_type,
    };
    let operands: [Operand; 2] = [symbols.operand(a, data_type)?, symbols.operand(b, second)?];
    Ok(Operation::Binary {
        what,
        data_type,
        saturates,
        to: symbols.register(to, data_type)?,
        operands,
    })
}

fn binary_of(stem: &str, is_high: bool, data_type: Type) -> Option<Binary> {
    let is_number = data_type.bytes() > 1 && data_type.is_integer();
    let is_float = data_type.is_float();
    let is_logical = data_type == Type::Predicate || matches!(data_type, Type::Bits(2 | 4 | 8));
    let is_known = match stem {
        "add" | "sub" | "mul" => is_number || is_float,
        "div" | "min" | "max" => is_number || data_type == Type::F32,
        "rem" => is_number,
        "and" | "or" | "xor" => is_logical,
        "shl" => is_logical && data_type != Type::Predicate,
        "shr" => data_type.bytes() > 1 && !is_float,
        _ => false,
    };
    if !is_known {
        return None;
    }
    Some(match stem {
        "add" => Binary::Add,
        "sub" => Binary::Subtract,
        "mul" if is_high => Binary::MultiplyHigh,
        "mul" => Binary::Multiply,
        "div" => Binary::Divide,
        "rem" => Binary::Remainder,
        "min" => Binary::Minimum,
        "max" => Binary::Maximum,
        "and" => Binary::And,
        "or" => Binary::Or,
        "xor" => Binary::ExclusiveOr,
        "shl" => Binary::ShiftLeft,
        _ => Binary::ShiftRight,
    })
}
