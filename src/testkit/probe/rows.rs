//! Rows about the sequences of requests, and sums of their states.

use conch_backend_sdk as sdk;
use sdk::serde_json::{Value, json};
use sdk::{Batch, DataType, Error, Input, Request};

/// The requests of a batch, in order, as JSON: the values of all inputs by name, and the flags.
pub fn describe(batch: &Batch<'_>) -> Result<String, Error> {
    let row = |request: Request<'_>| {
        let mut row = sdk::serde_json::Map::new();
        row.insert("flags".into(), request.flags()?.into());
        row.insert("wants".into(), request.output_count()?.into());
        for index in 0..request.input_count()? {
            let input = request.input_at(index)?;
            let name = input.name().to_string_lossy().into_owned();
            row.insert(name, json!([input.shape(), values(&input)?]));
        }
        Ok(Value::Object(row))
    };
    let rows: Result<Vec<Value>, Error> = batch.requests().map(row).collect();
    Ok(Value::Array(rows?).to_string())
}

fn values(input: &Input<'_>) -> Result<Value, Error> {
    let bytes = input.to_vec()?;
    let number = |element: &[u8]| -> Value {
        let mut wide = [0; 8];
        wide[..element.len()].copy_from_slice(element);
        match input.data_type() {
            DataType::Fp32 => f32::from_bits(u64::from_le_bytes(wide) as u32).into(),
            DataType::Int32 => (u64::from_le_bytes(wide) as i32).into(),
            DataType::Int64 => i64::from_le_bytes(wide).into(),
            _ => u64::from_le_bytes(wide).into(),
        }
    };
    let size = match input.data_type() {
        DataType::Bytes => return Ok(String::from_utf8_lossy(&bytes).into()),
        DataType::Bool => 1,
        DataType::Int64 | DataType::Uint64 => 8,
        _ => 4,
    };
    Ok(bytes.chunks(size).map(number).collect())
}

fn integers(input: &Input<'_>) -> Result<Vec<i32>, Error> {
    let bytes = input.to_vec()?;
    let integer = |bytes: &[u8]| {
        bytes
            .first_chunk()
            .map_or(0, |bytes| i32::from_le_bytes(*bytes))
    };
    Ok(bytes.chunks(4).map(integer).collect())
}

/// Adds the input to the state and answers with the sum; or counts a round and asks for the next
/// until there were as many as the input says.
pub fn advance(request: Request<'_>, is_decoupled: bool, iterates: bool) -> Result<(), Error> {
    let (input, state) = (request.input(c"INPUT0")?, request.input(c"STATE_IN")?);
    let (numbers, before) = (integers(&input)?, integers(&state)?);
    let step = |(state, number): (&i32, &i32)| state + if iterates { 1 } else { *number };
    let after: Vec<i32> = before.iter().zip(&numbers).map(step).collect();
    let bytes: Vec<u8> = after
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    let mut next = request.state(c"STATE_OUT", DataType::Int32, state.shape())?;
    next.buffer(bytes.len())?.write(&bytes)?;
    next.update()?;
    let is_last = !iterates || after.first() >= numbers.first();
    if !is_last && !is_decoupled {
        return request.run_again();
    }
    let response = request.respond()?;
    if request.wants(c"OUTPUT0")? {
        let mut output =
            response.output(c"OUTPUT0", DataType::Int32, input.shape(), bytes.len())?;
        output.write(&bytes)?;
    }
    if is_last {
        return response.send();
    }
    response.send_partial()?;
    request.run_again()
}
