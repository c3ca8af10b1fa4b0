//! The largest shapes that an instance is prepared for.

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig};

use crate::facts::{Bounds, Facts, Tensor, check_shape, text};
use crate::roles::{InputRole, TensorRole};

/// The bounds of each tensor in a profile, as far as the configuration lets them be: an open
/// dimension that the configuration fixes needs no more memory than that, nor does a batch beyond
/// the largest.
///
/// # Errors
/// `InvalidArgument`, in upstream's words, if the configuration is outside of the profile.
pub fn limits(
    model_name: &str,
    config: &ModelConfig,
    facts: &Facts,
    roles: &[TensorRole],
    profile: usize,
) -> Result<Vec<Option<Bounds>>, Error> {
    let inputs = config.inputs()?;
    let states = config.states()?;
    let max_batch_size = config.max_batch_size();
    let tensors = facts.tensors.iter().zip(roles).enumerate();
    let limit = |(index, (tensor, role)): (usize, (&Tensor, &TensorRole))| {
        let Some(bounds) = facts.bounds(profile, index) else {
            return Ok(None);
        };
        let configured = match role {
            TensorRole::Input(InputRole::Rows) => {
                let input = inputs.iter().find(|input| input.name == tensor.name);
                let state = || states.iter().find(|state| state.input == tensor.name);
                input
                    .map(|input| input.model_dims().to_vec())
                    .or_else(|| state().map(|state| state.dims.clone()))
            }
            _ => None,
        };
        let mut bounds = bounds.clone();
        if let Some(configured) = configured {
            let batch = (max_batch_size > 0).then_some(-1);
            let full: Vec<i64> = batch.into_iter().chain(configured).collect();
            narrow(&mut bounds, &full).map_err(|why| {
                Error::invalid(format!(
                    "model configuration specified invalid shape for input '{}' for model \
                     {model_name}. Error details: {why}",
                    tensor.name()
                ))
            })?;
        }
        let takes_batch = matches!(
            role,
            TensorRole::Input(InputRole::Rows | InputRole::Control)
        );
        if let (true, Some(first)) = (takes_batch && max_batch_size > 0, bounds.max.first_mut()) {
            *first = (*first).min(max_batch_size);
        }
        Ok(Some(bounds))
    };
    tensors.map(limit).collect()
}

/// Fixes the dimensions that the configuration fixes.
fn narrow(bounds: &mut Bounds, configured: &[i64]) -> Result<(), String> {
    let mut largest = configured.to_vec();
    for (dim, max) in largest.iter_mut().zip(&bounds.max) {
        if *dim == -1 {
            *dim = *max;
        }
    }
    check_shape(&largest, bounds)?;
    bounds.max = largest;
    Ok(())
}

/// Bytes of a tensor in the largest shape.
///
/// # Errors
/// `Internal`, in upstream's words, if they cannot be told.
pub fn largest_bytes(tensor: &Tensor, dims: &[i64], instance: &str) -> Result<usize, Error> {
    tensor.byte_count(dims).ok_or_else(|| {
        let key = if tensor.is_input { "input" } else { "output" };
        Error::internal(format!(
            "unable to calculate size for {key} '{}' for {instance} (shape {})",
            tensor.name(),
            text(dims)
        ))
    })
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;
    use crate::facts::testing::{bounds, tensor};

    #[test]
    fn configurations_narrow_profiles() {
        let facts = Facts {
            tensors: vec![tensor(c"A", true, &[-1, -1])],
            profiles: vec![vec![bounds(&[1, 4], &[4, 8], &[16, 32])]],
        };
        let check = |batch: i64, dims: &[i64]| {
            let config = ModelConfig::new(json!({"max_batch_size": batch,
                "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": dims}]}));
            let roles = [TensorRole::Input(InputRole::Rows)];
            limits("m", &config, &facts, &roles, 0)
                .map(|found| found[0].clone().unwrap().max)
                .map_err(|error| error.message().to_owned())
        };
        assert_eq!(check(8, &[-1]), Ok(vec![8, 32]));
        assert_eq!(check(64, &[8]), Ok(vec![16, 8]));
        assert_eq!(check(0, &[-1, 16]), Ok(vec![16, 16]));
        assert_eq!(
            check(8, &[33]).unwrap_err(),
            "model configuration specified invalid shape for input 'A' for model m. Error details: \
             model expected the shape of dimension 1 to be between 4 and 32 but received 33"
        );
    }
}
