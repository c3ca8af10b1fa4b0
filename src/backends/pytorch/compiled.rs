//! A compiled model as one configuration serves it: its library, and whether that checks its
//! inputs.
//!
//! AOTInductor compiles checks of each input's type, sizes and strides into a model, which run only
//! where the environment asks for them. Where a configuration leaves sizes open they are wanted at
//! each run: a request of other sizes would make the model read outside of its inputs. Where it
//! leaves none open but the batch's, the server checks each request against the configuration, and
//! it is enough to check once that the configuration is the model's: a copy of the library that
//! checks runs once on zeros, and one that does not is served.

use std::path::Path;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig};

use crate::call_spec;
use crate::failure::failed_to_load;
use crate::libtorch::{
    ModelContainer, ModelLibrary, Tensor, Torch, check_inputs_of_compiled_models,
};
use crate::package::{self, InputChecks};
use crate::wiring::Wiring;

/// An opened model that a configuration fits.
pub struct CompiledModel {
    pub library: Arc<ModelLibrary>,
    pub wiring: Wiring,
}

impl CompiledModel {
    /// # Errors
    /// What is wrong with the file, and what does not fit.
    pub fn open(
        torch: &Arc<Torch>,
        model_name: &str,
        path: &Path,
        config: &ModelConfig,
    ) -> Result<Self, Error> {
        let library = package::open(torch, model_name, path, InputChecks::AsSet)?;
        let container =
            ModelContainer::new(&library, 1).map_err(|error| failed_to_load(model_name, error))?;
        let wiring = wire(&container, model_name, config)?;
        let is_ours_to_decide = check_inputs_of_compiled_models();
        let batch_size_max = config.max_batch_size();
        if !is_ours_to_decide || has_open_sizes(&wiring, batch_size_max > 0) {
            return Ok(CompiledModel { library, wiring });
        }
        try_out(torch, &container, &wiring, batch_size_max)
            .map_err(|error| failed_to_load(model_name, error))?;
        drop((container, library));
        Ok(CompiledModel {
            library: package::open(torch, model_name, path, InputChecks::Never)?,
            wiring,
        })
    }
}

/// Brings a model's tensors together with those of its configuration.
fn wire(
    container: &ModelContainer,
    model_name: &str,
    config: &ModelConfig,
) -> Result<Wiring, Error> {
    let (input, output) = container.call_spec()?;
    let inputs = call_spec::input_names(&input)?;
    let outputs = call_spec::output_names(&output)?;
    let (input_count, output_count) = (container.input_count(), container.output_count());
    if (inputs.len(), outputs.len()) != (input_count, output_count) {
        return Err(Error::unsupported(format!(
            "failed to load model '{model_name}': it takes {input_count} tensors and returns \
             {output_count}, but its call specification has {} and {}: inputs and outputs that are \
             no tensors cannot be served",
            inputs.len(),
            outputs.len()
        )));
    }
    sdk::verbose!(
        "model '{model_name}' takes ({}) and returns ({})",
        inputs.join(", "),
        outputs.join(", ")
    );
    call_spec::wire(model_name, config, &inputs, &outputs)
}

/// Whether the configuration leaves any size open but the batch's.
fn has_open_sizes(wiring: &Wiring, is_batching: bool) -> bool {
    let infos = wiring.signature.inputs.iter();
    let mut sizes = infos.flat_map(|info| info.dims.iter().skip(usize::from(is_batching)));
    sizes.any(|&size| size < 0)
}

/// Runs a model that checks its inputs on zeros of the configuration's types and sizes.
///
/// # Errors
/// What the check says, if it refuses all sizes of a batch that are tried. Other errors are of what
/// zeros mean to the model.
fn try_out(
    torch: &Arc<Torch>,
    container: &ModelContainer,
    wiring: &Wiring,
    batch_size_max: i64,
) -> Result<(), Error> {
    let mut refused = Ok(());
    // Compiled for one size, the model takes no other; for several, as a rule two and more.
    for rows in [1, batch_size_max, 2] {
        let mut inputs: Vec<_> = wiring.inputs.iter().zip(&wiring.signature.inputs).collect();
        inputs.sort_by_key(|(position, _)| **position);
        let tensors = inputs
            .iter()
            .map(|(_, info)| {
                let sizes = info.dims.iter();
                let shape: Vec<i64> = sizes
                    .map(|&size| if size < 0 { rows } else { size })
                    .collect();
                Tensor::zeros(torch, info.data_type, &shape)
            })
            .collect::<Result<Vec<_>, Error>>()?;
        match container.run(tensors) {
            Err(error) if is_of_the_check(&error) => refused = Err(error),
            _ => return Ok(()),
        }
        if batch_size_max == 0 {
            break;
        }
    }
    refused
}

/// Whether a model refused its inputs. The words are in the code that AOTInductor makes, and in
/// torch's `assert_size_stride`.
fn is_of_the_check(error: &Error) -> bool {
    let text = error.message();
    [
        "input_handles[",
        "expected size ",
        "expected ndim ",
        "expected dtype ",
    ]
    .iter()
    .any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wiring::signature_of;

    #[test]
    fn knows_what_a_configuration_leaves_open() {
        for (dims, batch, expected) in [
            ("[3, 4]", 8, false),
            ("[3, 4]", 0, false),
            ("[3, -1]", 8, true),
            ("[-1]", 0, true),
            ("[-1]", 8, true),
        ] {
            let config = ModelConfig::parse(
                format!(
                    r#"{{"max_batch_size": {batch}, "input": [
                        {{"name": "A", "data_type": "TYPE_FP32", "dims": [2]}},
                        {{"name": "B", "data_type": "TYPE_FP32", "dims": {dims}}}]}}"#
                )
                .as_bytes(),
            )
            .unwrap();
            let wiring = Wiring {
                signature: signature_of(&config).unwrap(),
                inputs: vec![0, 1],
                outputs: Vec::new(),
            };
            assert_eq!(
                has_open_sizes(&wiring, batch > 0),
                expected,
                "{dims} {batch}"
            );
        }
    }
}
