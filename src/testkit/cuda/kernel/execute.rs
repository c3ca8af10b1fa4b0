//! The threads of a kernel, one after the other.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::instruction::{Binary, Comparison, Operand, Operation, Rounding, Special, Type, Unary};
use super::memory::GlobalMemory;
use super::number::{
    canonical, extended, from_half, from_integer, saturated, to_half, to_integer, truncated, whole,
};
use super::program::Kernel;
use crate::code::{Code, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS};

/// What registers hold before they are written, so that nobody takes them for zeros.
const FRESH: u64 = 0xc5c5_c5c5_c5c5_c5c5;

/// How many instructions run between two checks whether the device broke.
const CHECK_INTERVAL: u32 = 65_536;

/// A kernel, its parameters, and how many threads run it.
#[derive(Clone)]
pub struct Launch {
    /// Ordinal of the device whose module the kernel is in.
    pub device: usize,
    pub kernel: Arc<Kernel>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// As [`Kernel::parameters`] lie.
    pub parameters: Vec<u8>,
}

/// Runs a kernel to its end, or until `is_broken` says that its device broke.
pub fn run(
    launch: &Launch,
    memory: &mut GlobalMemory<'_>,
    is_broken: &dyn Fn() -> bool,
) -> Result<(), Code> {
    let mut thread = Thread {
        launch,
        registers: vec![FRESH; launch.kernel.register_count],
        block: [0; 3],
        index: [0; 3],
        until_check: CHECK_INTERVAL,
    };
    let [grid_x, grid_y, grid_z] = launch.grid.map(u64::from);
    let [block_x, block_y, block_z] = launch.block;
    for block in 0..grid_x * grid_y * grid_z {
        thread.block = [
            (block % grid_x) as u32,
            (block / grid_x % grid_y) as u32,
            (block / (grid_x * grid_y)) as u32,
        ];
        for index in 0..block_x * block_y * block_z {
            thread.index = [
                index % block_x,
                index / block_x % block_y,
                index / (block_x * block_y),
            ];
            thread.registers.fill(FRESH);
            if thread.run(memory, is_broken)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

struct Thread<'l> {
    launch: &'l Launch,
    registers: Vec<u64>,
    /// Which block of the grid it is in.
    block: [u32; 3],
    /// Which thread of the block it is.
    index: [u32; 3],
    /// Instructions until the next check.
    until_check: u32,
}

impl Thread<'_> {
    /// Breaks where the device broke.
    fn run(
        &mut self,
        memory: &mut GlobalMemory<'_>,
        is_broken: &dyn Fn() -> bool,
    ) -> Result<ControlFlow<()>, Code> {
        let instructions = &self.launch.kernel.instructions;
        let mut at = 0;
        while let Some(instruction) = instructions.get(at) {
            self.until_check -= 1;
            if self.until_check == 0 {
                self.until_check = CHECK_INTERVAL;
                if is_broken() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            at += 1;
            if let Some((register, is_negated)) = instruction.guard
                && (self.registers[register] != 0) == is_negated
            {
                continue;
            }
            match instruction.operation {
                Operation::Branch(target) => at = target,
                Operation::Return => break,
                ref other => self.step(other, memory)?,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    #[inline]
    fn value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.registers[register],
            Operand::Literal(bits) => bits,
            Operand::Special(special) => u64::from(match special {
                Special::Thread(dimension) => self.index[dimension],
                Special::BlockSize(dimension) => self.launch.block[dimension],
                Special::Block(dimension) => self.block[dimension],
                Special::GridSize(dimension) => self.launch.grid[dimension],
            }),
        }
    }

    fn values<const N: usize>(&self, operands: [Operand; N]) -> [u64; N] {
        operands.map(|operand| self.value(operand))
    }

    /// What is at an offset of the block of all parameters; none beyond its end.
    fn parameter(&self, offset: usize, data_type: Type) -> Option<u64> {
        let end = offset.checked_add(data_type.bytes() as usize)?;
        let bytes = self.launch.parameters.get(offset..end)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(extended(u64::from_le_bytes(word), data_type))
    }

    fn step(&mut self, operation: &Operation, memory: &mut GlobalMemory<'_>) -> Result<(), Code> {
        match *operation {
            Operation::LoadParameter {
                data_type,
                to,
                offset,
            } => {
                let found = self.parameter(offset, data_type);
                self.registers[to] = found.ok_or(ILLEGAL_ADDRESS)?;
            }
            Operation::LoadParameterAt {
                data_type,
                to,
                address,
                offset,
            } => {
                let address = self.registers[address].wrapping_add_signed(offset);
                if !address.is_multiple_of(u64::from(data_type.bytes())) {
                    return Err(MISALIGNED_ADDRESS);
                }
                let found = usize::try_from(address).ok();
                let found = found.and_then(|offset| self.parameter(offset, data_type));
                self.registers[to] = found.ok_or(ILLEGAL_ADDRESS)?;
            }
            Operation::Load {
                data_type,
                to,
                address,
                offset,
            } => {
                let address = self.value(address).wrapping_add_signed(offset);
                let value = memory.read(address, data_type.bytes())?;
                self.registers[to] = extended(value, data_type);
            }
            Operation::Store {
                data_type,
                address,
                offset,
                value,
            } => {
                let address = self.value(address).wrapping_add_signed(offset);
                memory.write(address, data_type.bytes(), self.value(value))?;
            }
            ref other => self.compute(other),
        }
        Ok(())
    }

    /// What touches registers alone.
    fn compute(&mut self, operation: &Operation) {
        let (to, value) = match *operation {
            Operation::Unary {
                what,
                data_type,
                to,
                from,
            } => (to, unary(what, data_type, self.value(from))),
            Operation::Binary {
                what,
                data_type,
                saturates,
                to,
                operands,
            } => (
                to,
                binary(what, data_type, saturates, self.values(operands)),
            ),
            Operation::MultiplyWide {
                data_type,
                to,
                operands,
                addend,
            } => {
                let [a, b] = self
                    .values(operands)
                    .map(|value| extended(value, data_type));
                let sum = a
                    .wrapping_mul(b)
                    .wrapping_add(addend.map_or(0, |addend| self.value(addend)));
                (to, truncated(sum, 2 * data_type.bytes()))
            }
            Operation::MultiplyAdd {
                data_type,
                to,
                operands,
            } => (to, multiply_add(data_type, self.values(operands))),
            Operation::Compare {
                what,
                is_unordered,
                data_type,
                to,
                operands,
            } => {
                let found = compare(what, is_unordered, data_type, self.values(operands));
                (to, u64::from(found))
            }
            Operation::Select {
                to,
                operands,
                condition,
            } => {
                let [a, b] = self.values(operands);
                (to, if self.registers[condition] != 0 { a } else { b })
            }
            Operation::Convert { to, from, .. } => (to, convert(operation, self.value(from))),
            _ => return,
        };
        self.registers[to] = value;
    }
}

fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn unary(what: Unary, data_type: Type, value: u64) -> u64 {
    let bytes = data_type.bytes();
    match (what, data_type) {
        (Unary::Move, Type::Predicate) => value,
        (Unary::Not, Type::Predicate) => u64::from(value == 0),
        (Unary::Move, _) => truncated(value, bytes),
        (Unary::Not, _) => truncated(!value, bytes),
        (Unary::Negate, Type::F32) => canonical(-float(value)),
        (Unary::Absolute, Type::F32) => canonical(float(value).abs()),
        (Unary::SquareRoot, _) => canonical(float(value).sqrt()),
        (Unary::Negate, _) => truncated(value.wrapping_neg(), bytes),
        (Unary::Absolute, _) => {
            let value = extended(value, data_type) as i64;
            truncated(value.wrapping_abs() as u64, bytes)
        }
    }
}

fn binary(what: Binary, data_type: Type, saturates: bool, operands: [u64; 2]) -> u64 {
    match data_type {
        Type::F32 => canonical(floats(what, operands.map(float))),
        Type::F16 => {
            let [a, b] = operands.map(|bits| from_half(bits as u16));
            u64::from(to_half(floats(what, [a, b]), Rounding::Nearest))
        }
        Type::Predicate => integers(what, Type::Unsigned(8), operands),
        _ => {
            let [a, b] = operands;
            let second = match what {
                // The distance has a type of its own.
                Binary::ShiftLeft | Binary::ShiftRight => truncated(b, 4),
                _ => extended(b, data_type),
            };
            let result = integers(what, data_type, [extended(a, data_type), second]);
            match saturates {
                true => truncated(saturated(result, Type::Signed(8), data_type), 4),
                false => truncated(result, data_type.bytes()),
            }
        }
    }
}

fn floats(what: Binary, [a, b]: [f32; 2]) -> f32 {
    match what {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        // A number where one is a NaN; the negative zero is the smaller one.
        Binary::Minimum if a == b => f32::from_bits(a.to_bits() | b.to_bits()),
        Binary::Maximum if a == b => f32::from_bits(a.to_bits() & b.to_bits()),
        Binary::Minimum => a.min(b),
        Binary::Maximum => a.max(b),
        _ => f32::NAN,
    }
}

/// On operands that are spread to 64 bits.
fn integers(what: Binary, data_type: Type, [a, b]: [u64; 2]) -> u64 {
    let is_signed = data_type.is_signed();
    let bits = 8 * data_type.bytes();
    match what {
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::Multiply => a.wrapping_mul(b),
        Binary::MultiplyHigh if is_signed => {
            ((i128::from(a as i64) * i128::from(b as i64)) >> bits) as u64
        }
        Binary::MultiplyHigh => ((u128::from(a) * u128::from(b)) >> bits) as u64,
        // By zero: unspecified. All bits are set, as on devices.
        Binary::Divide | Binary::Remainder if b == 0 => u64::MAX,
        Binary::Divide if is_signed => (a as i64).wrapping_div(b as i64) as u64,
        Binary::Remainder if is_signed => (a as i64).wrapping_rem(b as i64) as u64,
        Binary::Divide => a / b,
        Binary::Remainder => a % b,
        Binary::Minimum if is_signed => (a as i64).min(b as i64) as u64,
        Binary::Maximum if is_signed => (a as i64).max(b as i64) as u64,
        Binary::Minimum => a.min(b),
        Binary::Maximum => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::ExclusiveOr => a ^ b,
        Binary::ShiftLeft if b >= u64::from(bits) => 0,
        Binary::ShiftLeft => a << b,
        Binary::ShiftRight if is_signed => ((a as i64) >> b.min(63)) as u64,
        Binary::ShiftRight if b >= u64::from(bits) => 0,
        Binary::ShiftRight => a >> b,
    }
}

fn multiply_add(data_type: Type, [a, b, c]: [u64; 3]) -> u64 {
    if data_type == Type::F32 {
        return canonical(float(a).mul_add(float(b), float(c)));
    }
    truncated(a.wrapping_mul(b).wrapping_add(c), data_type.bytes())
}

fn compare(what: Comparison, is_unordered: bool, data_type: Type, [a, b]: [u64; 2]) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match data_type {
        Type::F32 => float(a).partial_cmp(&float(b)),
        Type::F16 => from_half(a as u16).partial_cmp(&from_half(b as u16)),
        Type::Signed(_) => {
            let [a, b] = [a, b].map(|value| extended(value, data_type) as i64);
            Some(a.cmp(&b))
        }
        _ => {
            let [a, b] = [a, b].map(|value| extended(value, data_type));
            Some(a.cmp(&b))
        }
    };
    let Some(order) = order else {
        return is_unordered || what == Comparison::NaN;
    };
    match what {
        Comparison::Equal => order == Equal,
        Comparison::NotEqual => order != Equal,
        Comparison::Less => order == Less,
        Comparison::LessOrEqual => order != Greater,
        Comparison::Greater => order == Greater,
        Comparison::GreaterOrEqual => order != Less,
        Comparison::Numbers => true,
        Comparison::NaN => false,
    }
}

fn convert(operation: &Operation, value: u64) -> u64 {
    let Operation::Convert {
        to_type,
        from_type,
        rounding,
        is_integral,
        saturates,
        ..
    } = *operation
    else {
        return value;
    };
    let rounding = rounding.unwrap_or(Rounding::Nearest);
    match (to_type, from_type) {
        (Type::F16, _) => u64::from(to_half(float(value), rounding)),
        (Type::F32, Type::F16) => canonical(from_half(value as u16)),
        (Type::F32, Type::F32) => {
            let value = float(value);
            let value = match is_integral {
                true => whole(f64::from(value), rounding) as f32,
                false => value,
            };
            match saturates {
                // A NaN becomes zero, and so does the negative zero.
                true if value > 0.0 => canonical(value.min(1.0)),
                true => 0,
                false => canonical(value),
            }
        }
        (Type::F32, _) => canonical(from_integer(value, from_type)),
        (_, Type::F16) => to_integer(from_half(value as u16), to_type, rounding),
        (_, Type::F32) => to_integer(float(value), to_type, rounding),
        (_, _) if saturates => saturated(value, from_type, to_type),
        (_, _) => extended(extended(value, from_type), to_type),
    }
}
