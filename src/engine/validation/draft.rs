//! The checks of a draft against the configuration of its model: upstream's, in its order and words
//! (`core/src/infer_request.cc`, Normalize). They block on nothing and allocate nothing per tensor.

use std::sync::Arc;

use conch_config::ResolvedConfig;
use smallvec::SmallVec;

use crate::validation::request_label::RequestLabel;
use crate::validation::{raw, tensor};
use crate::{CorrelationId, Draft, DraftInput, Error, ModelVersion, RequestInputs, truncated};

/// The longest textual correlation id, as upstream.
const CORRELATION_ID_CHARACTERS_MAX: usize = 128;

/// Unknown names among which duplicates are looked for; beyond it they are only called unknown.
const UNKNOWN_MAX: usize = 16;

/// Inputs of a request that a message names.
const NAMES_MAX: usize = 64;

/// What a draft that agrees with its model asks for, beside its inputs.
pub(crate) struct CheckedDraft {
    /// Of the inputs, among the configured ones.
    pub(crate) indices: SmallVec<[usize; 4]>,
    /// As in [`Request`].
    pub(crate) requested_outputs: SmallVec<[u16; 4]>,
    /// As in [`Request`].
    pub(crate) batch_size: u32,
}

/// Checks `draft` against the configuration of `model`, and moves its inputs to `inputs`, which is
/// empty.
///
/// # Errors
/// INVALID_ARG in upstream's words.
#[inline]
pub(crate) fn examine(
    model: &Arc<ModelVersion>,
    draft: &mut Draft<'_>,
    inputs: &mut RequestInputs,
) -> Result<CheckedDraft, Error> {
    let config = &*model.config;
    let request = RequestLabel {
        model: &model.name,
        id: draft.id,
    };
    if let CorrelationId::Text(text) = &draft.correlation_id
        && text.chars().count() > CORRELATION_ID_CHARACTERS_MAX
    {
        return Err(Error::unsupported(format!(
            "string correlation ID cannot be longer than {CORRELATION_ID_CHARACTERS_MAX} characters"
        )));
    }
    let matched = match_inputs(&request, model, draft)?;
    let requested_outputs = match_outputs(&request, model, draft)?;
    if draft.is_raw {
        raw::deduce(&request, config, &mut draft.inputs)?;
    }
    requested_outputs.check(&request)?;
    matched.check(&request, model, draft)?;
    let batch_size = batch_size(&request, config, &matched, &draft.inputs)?;

    inputs.reserve_exact(draft.inputs.len());
    let budget = draft.features.budget.as_ref();
    for (input, index) in draft.inputs.iter_mut().zip(&matched.indices) {
        let spec = config.inputs.get(*index).expect("matched above");
        let label = if draft.is_raw { raw::LABEL } else { &spec.name };
        inputs.push(tensor::check(
            &request, config, spec, label, batch_size, input, budget,
        )?);
    }
    Ok(CheckedDraft {
        indices: matched.indices,
        requested_outputs: requested_outputs.indices,
        batch_size,
    })
}

/// A set of small numbers.
#[derive(Default)]
struct SeenInputs(SmallVec<[u64; 2]>);

impl SeenInputs {
    fn with_capacity(count: usize) -> SeenInputs {
        SeenInputs(SmallVec::from_elem(0, count.div_ceil(64)))
    }

    /// False if it was there already.
    fn insert(&mut self, index: usize) -> bool {
        let Some(word) = self.0.get_mut(index / 64) else {
            return false;
        };
        let bit = 1 << (index % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn contains(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}

/// The configured inputs that a draft's inputs belong to.
struct MatchedInputs {
    /// As long as the draft's inputs, unless one is unknown.
    indices: SmallVec<[usize; 4]>,
    seen: SeenInputs,
    unknown: SmallVec<[usize; 4]>,
}

/// # Errors
/// Duplicates; what else is wrong is kept for [`MatchedInputs::check`], which upstream does later.
fn match_inputs(
    request: &RequestLabel<'_>,
    model: &ModelVersion,
    draft: &Draft<'_>,
) -> Result<MatchedInputs, Error> {
    let config = &*model.config;
    let mut matched = MatchedInputs {
        indices: SmallVec::new(),
        seen: SeenInputs::with_capacity(config.inputs.len()),
        unknown: SmallVec::new(),
    };
    if draft.is_raw {
        if config.inputs.len() == 1 && draft.inputs.len() == 1 {
            matched.seen.insert(0);
            matched.indices.push(0);
        }
        return Ok(matched);
    }
    for (position, input) in draft.inputs.iter().enumerate() {
        let is_new = match model.plan.input_index(config, input.name) {
            Some(index) => {
                matched.indices.push(index);
                matched.seen.insert(index)
            }
            None => {
                let is_new = matched
                    .unknown
                    .iter()
                    .all(|other| draft.inputs[*other].name != input.name);
                if matched.unknown.len() < UNKNOWN_MAX {
                    matched.unknown.push(position);
                }
                is_new
            }
        };
        if !is_new {
            return Err(request.invalid(format_args!(
                "input '{}' already exists in request",
                input.name
            )));
        }
    }
    Ok(matched)
}

impl MatchedInputs {
    /// # Errors
    /// A wrong count, then an unknown input.
    fn check(
        &self,
        request: &RequestLabel<'_>,
        model: &ModelVersion,
        draft: &Draft<'_>,
    ) -> Result<(), Error> {
        let config = &*model.config;
        let (count, required, configured) = (
            draft.inputs.len(),
            model.plan.required_count,
            config.inputs.len(),
        );
        if count < required || count > configured {
            return Err(request.invalid(self.wrong_count(request, config, draft, required)));
        }
        if let Some(position) = self.unknown.first() {
            let name = draft.inputs[*position].name;
            return Err(Error::invalid(format!(
                "unexpected inference input '{name}' for model '{}'",
                request.model,
                name = truncated(&name)
            )));
        }
        Ok(())
    }

    fn wrong_count(
        &self,
        request: &RequestLabel<'_>,
        config: &ResolvedConfig,
        draft: &Draft<'_>,
        required: usize,
    ) -> String {
        let quote = |name: &str| format!("'{name}'", name = truncated(&name));
        let given = draft.inputs.iter().map(|input| quote(input.name));
        let mut got: Vec<String> = given.take(NAMES_MAX).collect();
        if draft.inputs.len() > NAMES_MAX {
            got.push("...".to_owned());
        }
        let missing: Vec<String> = config
            .inputs
            .iter()
            .enumerate()
            .filter(|(index, spec)| !spec.is_optional && !self.seen.contains(*index))
            .map(|(_, spec)| quote(&spec.name))
            .collect();
        // With nothing missing upstream cuts off the opening bracket.
        let missing = if missing.is_empty() {
            "]".into()
        } else {
            format!("[{}]", missing.join(","))
        };
        let expected = if required == config.inputs.len() {
            format!("expected {required} inputs")
        } else {
            format!(
                "expected number of inputs between {required} and {}",
                config.inputs.len()
            )
        };
        format!(
            "{expected} but got {} inputs for model '{}'. Got input(s) [{}], but missing required \
             input(s) {missing}. Please provide all required input(s).",
            draft.inputs.len(),
            request.model,
            got.join(",")
        )
    }
}

struct MatchedOutputs<'a> {
    indices: SmallVec<[u16; 4]>,
    unknown: SmallVec<[&'a str; 1]>,
}

/// # Errors
/// Duplicates; unknown ones are kept for [`MatchedOutputs::check`].
fn match_outputs<'a>(
    request: &RequestLabel<'_>,
    model: &ModelVersion,
    draft: &Draft<'a>,
) -> Result<MatchedOutputs<'a>, Error> {
    let config = &*model.config;
    let mut matched = MatchedOutputs {
        indices: SmallVec::new(),
        unknown: SmallVec::new(),
    };
    let mut seen = SeenInputs::with_capacity(if draft.requested_outputs.is_empty() {
        0
    } else {
        config.outputs.len()
    });
    for name in &draft.requested_outputs {
        let is_new = match model.plan.output_index(config, name) {
            Some(index) => {
                // A configuration has far fewer outputs than 65,536; one beyond is never reached by
                // its name.
                matched
                    .indices
                    .push(u16::try_from(index).unwrap_or(u16::MAX));
                seen.insert(index)
            }
            None => {
                let is_new = !matched.unknown.contains(name);
                if matched.unknown.len() < UNKNOWN_MAX {
                    matched.unknown.push(name);
                }
                is_new
            }
        };
        if !is_new {
            return Err(request.invalid(format_args!(
                "output '{name}' already exists in request",
                name = truncated(&name)
            )));
        }
    }
    // Backends answer in the order in which they are asked, so clients see it.
    matched.indices.sort_unstable_by_key(|index| {
        let spec = config.outputs.get(usize::from(*index));
        spec.map(|spec| &*spec.name)
    });
    Ok(matched)
}

impl MatchedOutputs<'_> {
    fn check(&self, request: &RequestLabel<'_>) -> Result<(), Error> {
        match self.unknown.first() {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "unexpected inference output '{name}' for model '{}'",
                request.model,
                name = truncated(&name)
            ))),
        }
    }
}

/// The leading dimension that all inputs of a batching model share; 0 without batching.
fn batch_size(
    request: &RequestLabel<'_>,
    config: &ResolvedConfig,
    matched: &MatchedInputs,
    inputs: &[DraftInput<'_>],
) -> Result<u32, Error> {
    if !config.is_batching() {
        return Ok(0);
    }
    let mut batch_size = 0_i64;
    for (input, index) in inputs.iter().zip(&matched.indices) {
        let spec = config.inputs.get(*index).expect("matched before");
        if spec.is_shape_tensor {
            continue;
        }
        let Some(first) = input.shape.first() else {
            return Err(request.invalid(format_args!(
                "input '{}' has no shape but model requires batch dimension for '{}'",
                spec.name, request.model
            )));
        };
        if batch_size == 0 {
            batch_size = *first;
        } else if *first != batch_size {
            return Err(request.invalid(format_args!(
                "input '{}' batch size does not match other inputs for '{}'",
                spec.name, request.model
            )));
        }
    }
    match u32::try_from(batch_size) {
        Ok(batch_size) if batch_size <= config.max_batch_size => Ok(batch_size),
        // A negative one is, as in upstream's unsigned arithmetic, too large.
        _ => Err(request.invalid(format_args!(
            "inference request batch-size must be <= {} for '{}'",
            config.max_batch_size, request.model
        ))),
    }
}
