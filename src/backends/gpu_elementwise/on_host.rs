//! Executions of instances that are not on a GPU.

use conch_backend_sdk as sdk;
use sdk::{Batch, Error, Request, TensorBytes};

use crate::host::compute;
use crate::prepared::Prepared;
use crate::signature::Signature;

/// Answers every request of a batch.
pub fn answer_all(signature: &Signature, batch: &Batch<'_>) {
    batch.begin_compute();
    for request in batch.requests() {
        if let Err(error) = answer(signature, request) {
            request.fail(error);
        }
    }
    batch.end_compute();
}

fn answer(signature: &Signature, request: Request<'_>) -> Result<(), Error> {
    let response = request.respond()?;
    if !request.wants(&signature.output)? {
        return response.send();
    }
    let prepared = Prepared::new(signature, request)?;
    // Inputs in several pieces are joined first; nearly all come in one.
    let mut joined = Vec::with_capacity(prepared.inputs.len());
    for input in &prepared.inputs {
        joined.push(match input.contiguous()? {
            Some(_) => Vec::new(),
            None => input.to_vec()?,
        });
    }
    let mut inputs = Vec::with_capacity(prepared.inputs.len());
    for (input, joined) in prepared.inputs.iter().zip(&joined) {
        inputs.push(match input.contiguous()? {
            Some(bytes) => bytes,
            None => TensorBytes::from(joined),
        });
    }
    let mut buffer = response.output(
        &signature.output,
        signature.formula.output_type,
        &prepared.shape,
        prepared.byte_count,
    )?;
    compute(
        &signature.formula,
        prepared.geometry,
        &inputs,
        &mut |chunk| buffer.write(chunk),
    )?;
    response.send()
}
