//! A request, checked: its inputs, and the elements and the shape of its output.

use conch_backend_sdk as sdk;
use sdk::{Error, Input, Request, shape_text};

use crate::geometry::{self, Geometry};
use crate::signature::Signature;

pub struct Prepared<'b> {
    pub inputs: Vec<Input<'b>>,
    pub geometry: Geometry,
    pub shape: Vec<i64>,
    /// Bytes of the output.
    pub byte_count: usize,
}

impl<'b> Prepared<'b> {
    /// # Errors
    /// `InvalidArgument` if the shapes are not what the operation takes; the message names model
    /// and input, and what was expected and got.
    pub fn new(signature: &Signature, request: Request<'b>) -> Result<Prepared<'b>, Error> {
        let Signature {
            model_name,
            formula,
            ..
        } = signature;
        let refuse = |input: &Input<'_>, message: String| {
            let name = input.name().to_string_lossy();
            Error::invalid(format!(
                "input '{name}' for model '{model_name}': {message}"
            ))
        };
        let names = signature.inputs.iter();
        let inputs: Vec<Input<'b>> = names
            .map(|name| request.input(name))
            .collect::<Result<_, _>>()?;
        let first = inputs
            .first()
            .ok_or_else(|| Error::internal("a model without inputs"))?;
        let elements = geometry::of(&formula.operation, first.shape(), signature.is_batching);
        let (geometry, shape) = elements.map_err(|message| refuse(first, message))?;
        for input in &inputs {
            if input.shape() != first.shape() {
                let expected = shape_text(first.shape());
                let got = shape_text(input.shape());
                let first = first.name().to_string_lossy();
                return Err(refuse(
                    input,
                    format!("expected shape {expected} of input '{first}', got {got}"),
                ));
            }
            let expected = geometry.count * formula.element_bytes;
            if input.byte_count() != expected {
                let got = input.byte_count();
                return Err(refuse(
                    input,
                    format!("expected {expected} bytes, got {got}"),
                ));
            }
        }
        Ok(Prepared {
            byte_count: geometry.count * formula.output_bytes,
            inputs,
            geometry,
            shape,
        })
    }
}
