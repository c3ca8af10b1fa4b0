//! The operations on the host, with the same results as the kernels.

use conch_backend_sdk as sdk;
use sdk::{Error, TensorBytes};

use crate::element::{Number, converted, with_type};
use crate::formula::Formula;
use crate::geometry::{Geometry, source};
use crate::operation::Operation;

/// Elements that are made before they are written; as much as fits near the CPU.
const CHUNK: usize = 4096;

/// Makes the elements of an output, and gives them to `write` piece by piece.
///
/// # Errors
/// Those of `write`.
pub fn compute(
    formula: &Formula,
    geometry: Geometry,
    inputs: &[TensorBytes<'_>],
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let absent = TensorBytes::default();
    let first = inputs.first().unwrap_or(&absent);
    let second = inputs.get(1).unwrap_or(&absent);
    let operation = &formula.operation;
    let Some((from, to)) = formula.numbers else {
        return move_bits(formula, geometry, first, write);
    };
    match operation {
        Operation::Add | Operation::Multiply => with_type!(from, T, {
            let combine: fn(T, T) -> T = match operation {
                Operation::Add => sum::<T>,
                _ => product::<T>,
            };
            each(geometry.count, write, |index| {
                combine(T::read(first, index), T::read(second, index))
            })
        }),
        Operation::Affine { channels, .. } => with_type!(from, A, {
            with_type!(to, B, {
                each(geometry.count, write, |index| {
                    let (place, channel) = source(operation, geometry, index);
                    let (scale, offset) = channels.of(channel);
                    B::from_f32(A::read(first, place).to_f32() * scale + offset)
                })
            })
        }),
        Operation::NormalizeImage { channels } => with_type!(to, B, {
            each(geometry.count, write, |index| {
                let (place, channel) = source(operation, geometry, index);
                let (scale, mean) = channels.of(channel);
                B::from_f32((u8::read(first, place).to_f32() - mean) * scale)
            })
        }),
        _ => with_type!(from, A, {
            with_type!(to, B, {
                each(geometry.count, write, |index| {
                    converted::<A, B>(A::read(first, index))
                })
            })
        }),
    }
}

fn sum<T: Number>(a: T, b: T) -> T {
    match T::IS_FLOAT {
        true => T::from_f32(a.to_f32() + b.to_f32()),
        // Of 32 bits each: no overflow.
        false => T::from_i64(a.to_i64() + b.to_i64()),
    }
}

fn product<T: Number>(a: T, b: T) -> T {
    match T::IS_FLOAT {
        true => T::from_f32(a.to_f32() * b.to_f32()),
        false => T::from_i64(a.to_i64() * b.to_i64()),
    }
}

fn each<T: Number>(
    count: usize,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    make: impl Fn(usize) -> T,
) -> Result<(), Error> {
    let mut chunk = Vec::with_capacity(CHUNK * T::BYTES);
    let mut start = 0;
    while start < count {
        let end = count.min(start + CHUNK);
        chunk.clear();
        for index in start..end {
            make(index).put(&mut chunk);
        }
        write(&chunk)?;
        start = end;
    }
    Ok(())
}

fn move_bits(
    formula: &Formula,
    geometry: Geometry,
    input: &TensorBytes<'_>,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    match formula.element_bytes {
        8 => moved::<8>(formula, geometry, input, write),
        4 => moved::<4>(formula, geometry, input, write),
        2 => moved::<2>(formula, geometry, input, write),
        _ => moved::<1>(formula, geometry, input, write),
    }
}

fn moved<const N: usize>(
    formula: &Formula,
    geometry: Geometry,
    input: &TensorBytes<'_>,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut chunk = Vec::with_capacity(CHUNK * N);
    let mut start = 0;
    while start < geometry.count {
        let end = geometry.count.min(start + CHUNK);
        chunk.clear();
        for index in start..end {
            let (place, _) = source(&formula.operation, geometry, index);
            let element = input.read::<N>(place * N).unwrap_or([0; N]);
            chunk.extend_from_slice(&element);
        }
        write(&chunk)?;
        start = end;
    }
    Ok(())
}
