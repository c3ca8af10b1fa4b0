//! Whether a model can take inputs of given shapes, asked before it runs with them.
//!
//! OpenVINO's CPU plug-in does not check all that it should: it may read beyond an input, and after
//! a run that failed for its shapes the next one may be given shapes of that run.

use std::collections::HashSet;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError, RwLock};

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::Signature;

use crate::batching::Batching;
use crate::ov::Model;

/// Shapes are asked for again where there are more.
const KNOWN_MAX: usize = 4096;

/// A model to be asked, and what it said.
pub struct Shapes<M = Model> {
    model: Mutex<M>,
    names: Vec<CString>,
    /// Dimensions of all inputs, one after the other, which the model can take.
    known: RwLock<HashSet<Vec<i64>>>,
}

/// What can be asked.
pub trait TakesShapes {
    /// # Errors
    /// Why it cannot have inputs of these shapes.
    fn take(&self, shapes: &[(&CString, Vec<i64>)]) -> Result<(), Error>;
}

impl TakesShapes for Model {
    fn take(&self, shapes: &[(&CString, Vec<i64>)]) -> Result<(), Error> {
        self.reshape(shapes)
    }
}

impl<M: TakesShapes> Shapes<M> {
    pub fn new(model: M, signature: &Signature) -> Self {
        let names = signature.inputs.iter().map(|info| info.name.clone());
        Shapes {
            model: Mutex::new(model),
            names: names.collect(),
            known: RwLock::default(),
        }
    }

    /// Asks for the dimensions of all inputs, in the model's order.
    ///
    /// # Errors
    /// `InvalidArgument` with OpenVINO's own words if the model cannot take them.
    pub fn check(&self, inputs: &[&[i64]]) -> Result<(), Error> {
        let all = inputs.concat();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&all) {
            return Ok(());
        }
        drop(known);
        let shapes: Vec<_> = self
            .names
            .iter()
            .zip(inputs)
            .map(|(name, dims)| (name, dims.to_vec()))
            .collect();
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.take(&shapes).map_err(|error| {
            Error::invalid(format!(
                "inputs of shapes that do not fit: {}",
                error.message()
            ))
        })?;
        drop(model);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(all);
        Ok(())
    }
}

/// Whether requests can bring shapes that nobody asked for yet.
pub fn are_open(signature: &Signature, batching: Batching) -> bool {
    // To the model, batches of a fixed size are of one.
    let batch = usize::from(matches!(batching, Batching::Fixed { .. }));
    let mut dims = signature
        .inputs
        .iter()
        .flat_map(|info| info.dims.iter().skip(batch));
    dims.any(|&dim| dim < 0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use sdk::DataType;
    use sdk::engine::TensorInfo;

    use super::*;

    /// Takes inputs of as many columns.
    #[derive(Default)]
    struct FakeModel(Cell<usize>);

    impl TakesShapes for FakeModel {
        fn take(&self, shapes: &[(&CString, Vec<i64>)]) -> Result<(), Error> {
            self.0.set(self.0.get() + 1);
            let columns: HashSet<_> = shapes.iter().map(|(_, dims)| dims[1]).collect();
            match columns.len() {
                1 => Ok(()),
                _ => Err(Error::internal("no")),
            }
        }
    }

    fn signature(inputs: &[&[i64]]) -> Signature {
        let info = |dims: &&[i64]| TensorInfo {
            name: c"X".to_owned(),
            data_type: DataType::Fp32,
            dims: dims.to_vec(),
        };
        Signature {
            inputs: inputs.iter().map(info).collect(),
            outputs: Vec::new(),
            initializers: Vec::new(),
        }
    }

    #[test]
    fn asks_once_for_what_the_model_takes() {
        let shapes = Shapes::new(FakeModel::default(), &signature(&[&[-1, -1], &[-1, -1]]));
        let asked = |inputs: &[&[i64]]| {
            let outcome = shapes.check(inputs);
            (outcome.is_ok(), shapes.model.lock().unwrap().0.get())
        };
        assert_eq!(asked(&[&[1, 2], &[3, 2]]), (true, 1));
        assert_eq!(asked(&[&[1, 2], &[3, 2]]), (true, 1));
        assert_eq!(asked(&[&[1, 2], &[3, 4]]), (false, 2));
        assert_eq!(asked(&[&[1, 2], &[3, 4]]), (false, 3));
        assert_eq!(asked(&[&[3, 2], &[1, 2]]), (true, 4));
        let refused = shapes.check(&[&[1, 2], &[3, 4]]).unwrap_err();
        assert_eq!(refused.message(), "inputs of shapes that do not fit: no");
    }

    #[test]
    fn knows_a_limited_number_of_shapes() {
        let shapes = Shapes::new(FakeModel::default(), &signature(&[&[-1, -1]]));
        for rows in 0..5000 {
            shapes.check(&[&[rows, 1]]).unwrap();
        }
        assert_eq!(shapes.known.read().unwrap().len(), 5000 - KNOWN_MAX);
    }

    #[test]
    fn fixed_shapes_are_not_asked_for() {
        let fixed = Batching::Fixed {
            rows: 4,
            pads: true,
        };
        for (inputs, batching, expected) in [
            (&[&[-1, 4][..]][..], Batching::Open, true),
            (&[&[-1, 4]], fixed, false),
            (&[&[-1, 4]], Batching::None, true),
            (&[&[2, 4]], Batching::None, false),
            (&[&[-1, 4], &[-1, -1]], Batching::Open, true),
            (&[&[-1, -1]], fixed, true),
            (&[&[]], Batching::None, false),
        ] {
            assert_eq!(are_open(&signature(inputs), batching), expected);
        }
    }
}
