//! A complete backend in Rust: output LABEL (STRING) names the largest of the SCORES (FP32), or of
//! each row of them where the model batches. The names are the lines of the file `labels.txt` in
//! the model's version directory. docs/BACKENDS.md tells about it.

#![forbid(unsafe_code)]

use std::fs;

use conch_backend_sdk as sdk;
use sdk::{Batch, DataType, Error, InstanceContext, ModelContext, Request, TensorConfig};

sdk::export_backend!(Labels);

/// What all models of the backend share: nothing.
pub struct Labels;

impl sdk::Backend for Labels {
    type Model = Model;

    fn initialize(_context: &sdk::BackendContext) -> Result<Self, Error> {
        Ok(Labels)
    }
}

/// One loaded version of a model, shared by its instances.
pub struct Model {
    labels: Vec<String>,
}

impl sdk::Model for Model {
    type Backend = Labels;
    type Instance = Instance;

    fn initialize(_backend: &Labels, context: &mut ModelContext) -> Result<Self, Error> {
        let config = context.config();
        TensorConfig::expect(&config.inputs()?, "SCORES", DataType::Fp32)?;
        TensorConfig::expect(&config.outputs()?, "LABEL", DataType::Bytes)?;
        let path = context.version_directory().join("labels.txt");
        let text = fs::read_to_string(&path)
            .map_err(|error| Error::invalid(format!("cannot read {}: {error}", path.display())))?;
        let labels: Vec<String> = text.lines().map(str::to_owned).collect();
        if labels.is_empty() {
            return Err(Error::invalid("labels.txt names nothing"));
        }
        Ok(Model { labels })
    }
}

/// One copy of a model. It executes one batch at a time.
pub struct Instance;

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(_model: &Model, _context: &InstanceContext) -> Result<Self, Error> {
        Ok(Instance)
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        batch.begin_compute();
        for request in batch.requests() {
            // What is wrong with one request is no concern of the others.
            if let Err(error) = answer(model, batch, request) {
                request.fail(error);
            }
        }
        batch.end_compute();
        Ok(())
    }
}

fn answer(model: &Model, batch: &Batch<'_>, request: Request<'_>) -> Result<(), Error> {
    let input = request.input(c"SCORES")?;
    let row_count = batch.rows_of(request)?;
    // A copy in one piece: the input itself may lie in memory that its client shares, and change.
    let bytes = input.to_vec()?;
    let row_bytes = model.labels.len() * size_of::<f32>();
    if bytes.len() != row_count * row_bytes {
        return Err(Error::invalid(format!(
            "expected {row_count} rows of {} scores, got {} bytes",
            model.labels.len(),
            bytes.len()
        )));
    }
    // Strings are four bytes of length, little-endian, and the text.
    let mut labels = Vec::new();
    for row in bytes.chunks_exact(row_bytes) {
        let label = &model.labels[largest(row)];
        let length = u32::try_from(label.len()).map_err(|_| Error::internal("a long label"))?;
        labels.extend_from_slice(&length.to_le_bytes());
        labels.extend_from_slice(label.as_bytes());
    }
    let shape: &[i64] = if batch.max_batch_size() > 0 {
        &[row_count as i64, 1]
    } else {
        &[1]
    };
    let response = request.respond()?;
    response
        .output(c"LABEL", DataType::Bytes, shape, labels.len())?
        .write(&labels)?;
    response.send()
}

/// The place of the largest score of a row.
fn largest(row: &[u8]) -> usize {
    let scores = row
        .chunks_exact(size_of::<f32>())
        .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("a chunk of four bytes")));
    let best = scores
        .enumerate()
        .max_by(|one, other| one.1.total_cmp(&other.1));
    best.map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_largest() {
        for (scores, expected) in [
            (&[0.5][..], 0),
            (&[-3.0, -1.0, -2.0], 1),
            (&[1.0, f32::NEG_INFINITY, 7.5], 2),
        ] {
            let row: Vec<u8> = scores
                .iter()
                .flat_map(|score| score.to_le_bytes())
                .collect();
            assert_eq!(largest(&row), expected, "{scores:?}");
        }
    }
}
