//! The implicit states of a model with sequence batching: what the server keeps of a sequence from
//! one request to the next.

use std::sync::Arc;

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::model_sequence_batching::initial_state::StateData;
use conch_proto::inference::model_sequence_batching::{InitialState, State};

use crate::{ConfigError, DataType, InstanceKind, ResolvedConfig};

/// One state: an output that the model writes and finds as an input of the sequence's next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    pub input_name: Arc<str>,
    pub output_name: Arc<str>,
    pub data_type: DataType,
    /// At the start of a sequence, with the batch dimension of a batching model: variable
    /// dimensions are 1.
    pub shape: Vec<i64>,
    pub start: StateStart,
    /// `use_same_buffer_for_input_output`: the output begins with the input's bytes.
    pub is_in_place: bool,
    /// `use_growable_memory`: it lies in memory of the instance's GPU that grows in place.
    pub is_growable: bool,
}

/// What a sequence's first request finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateStart {
    /// Zeros; for BYTES, empty strings.
    Zeros { byte_count: usize },
    /// The beginning of a file in the model's directory; for BYTES all of it.
    File {
        path: String,
        byte_count: Option<usize>,
    },
}

/// The folder of the model's directory with its states' files.
const FOLDER: &str = "initial_state";

/// The states of `config`; none without sequence batching. Of two with one name the first counts,
/// as upstream.
///
/// # Errors
/// INVALID_ARG in upstream's words.
pub fn states(config: &ResolvedConfig) -> Result<Vec<StateSpec>, ConfigError> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.message.scheduling_choice
    else {
        return Ok(Vec::new());
    };
    let mut specs: Vec<StateSpec> = Vec::with_capacity(batching.state.len());
    for (index, state) in batching.state.iter().enumerate() {
        let is_same =
            |other: &State| other.input_name == state.input_name && !other.initial_state.is_empty();
        if !state.initial_state.is_empty() && batching.state[..index].iter().any(is_same) {
            return Err(ConfigError::invalid(format!(
                "State input name '{}' specified more than once.",
                state.input_name
            )));
        }
        check_growable(state, config)?;
        let spec = spec(state, config.is_batching())?;
        let is_new = |known: &StateSpec| {
            known.input_name != spec.input_name && known.output_name != spec.output_name
        };
        if specs.iter().all(is_new) {
            specs.push(spec);
        }
    }
    Ok(specs)
}

fn spec(state: &State, is_batching: bool) -> Result<StateSpec, ConfigError> {
    let input = &state.input_name;
    let number = u32::try_from(state.data_type).unwrap_or(0);
    let data_type = DataType::from_number(number).ok_or_else(|| {
        ConfigError::invalid(format!("state '{input}' must specify a valid data type"))
    })?;
    let (dims, start) = match state.initial_state.as_slice() {
        [] => {
            // Upstream leaves these bytes as it found them.
            let dims: Vec<i64> = state.dims.iter().map(|dim| (*dim).max(1)).collect();
            let byte_count = byte_count(input, data_type, &dims)?;
            (dims, StateStart::Zeros { byte_count })
        }
        [initial] => {
            check_initial(state, initial)?;
            (initial.dims.clone(), start(input, data_type, initial)?)
        }
        several => {
            return Err(ConfigError::invalid(format!(
                "initial_state field for state input '{input}' must contain exactly one or zero \
                 element. Found '{}' elements.",
                several.len()
            )));
        }
    };
    Ok(StateSpec {
        input_name: input.as_str().into(),
        output_name: state.output_name.as_str().into(),
        data_type,
        shape: is_batching.then_some(1).into_iter().chain(dims).collect(),
        start,
        is_in_place: state.use_same_buffer_for_input_output,
        is_growable: state.use_growable_memory,
    })
}

/// Growable memory is one buffer, and every instance needs a GPU for it.
fn check_growable(state: &State, config: &ResolvedConfig) -> Result<(), ConfigError> {
    let input = &state.input_name;
    if !state.use_growable_memory {
        return Ok(());
    }
    if !state.use_same_buffer_for_input_output {
        return Err(ConfigError::invalid(format!(
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state \
             input name '{input}'."
        )));
    }
    let groups = &config.instance_groups;
    if groups.is_empty() || groups.iter().any(|group| group.kind != InstanceKind::Gpu) {
        return Err(ConfigError::invalid(format!(
            "'use_growable_memory' can only work with KIND_GPU model instances right now. Please \
             either change the instance type to KIND_GPU or set 'use_growable_memory' to false for \
             state input '{input}'."
        )));
    }
    Ok(())
}

fn check_initial(state: &State, initial: &InitialState) -> Result<(), ConfigError> {
    let input = &state.input_name;
    if initial.data_type != state.data_type {
        return Err(ConfigError::invalid(format!(
            "The data type used for 'initial_state' field of state '{input}' does not match the \
             state data type."
        )));
    }
    if initial.name.is_empty() {
        return Err(ConfigError::invalid(format!(
            "Field 'name' must be set when using initial_state for state input '{input}'."
        )));
    }
    let (initial_rank, rank) = (initial.dims.len(), state.dims.len());
    if initial_rank != rank {
        return Err(ConfigError::invalid(format!(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions \
             for state input '{input}'. {initial_rank} != {rank}"
        )));
    }
    for (initial, dim) in initial.dims.iter().zip(&state.dims) {
        if *initial == -1 {
            return Err(ConfigError::invalid(format!(
                "'initial_state' field for state input name '{input}' contains variable dimensions."
            )));
        }
        if *dim != -1 && initial != dim {
            return Err(ConfigError::invalid(format!(
                "'initial_state' dim for input name '{input}' doesn't match 'state' dim \
                 description. {initial} != {dim}"
            )));
        }
    }
    Ok(())
}

fn start(
    input: &str,
    data_type: DataType,
    initial: &InitialState,
) -> Result<StateStart, ConfigError> {
    let byte_count = byte_count(input, data_type, &initial.dims)?;
    match &initial.state_data {
        Some(StateData::ZeroData(_)) => Ok(StateStart::Zeros { byte_count }),
        Some(StateData::DataFile(file)) => Ok(StateStart::File {
            path: format!("{FOLDER}/{file}"),
            byte_count: (data_type != DataType::Bytes).then_some(byte_count),
        }),
        None => Err(ConfigError::invalid(format!(
            "initial_state setting expects state'{input}' to have state_data set"
        ))),
    }
}

/// Bytes of a tensor; an empty string has its length word.
fn byte_count(input: &str, data_type: DataType, dims: &[i64]) -> Result<usize, ConfigError> {
    let element = data_type.element_bytes().unwrap_or(4);
    dims.iter()
        .try_fold(element, |bytes, dim| {
            bytes.checked_mul(usize::try_from(*dim).ok()?)
        })
        .ok_or_else(|| {
            ConfigError::invalid(format!(
                "failed to compute the byte size of state '{input}'"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states_of(max_batch_size: u32, fields: &str) -> Result<Vec<StateSpec>, String> {
        let text = format!(
            "name: 'm' backend: 'b' max_batch_size: {max_batch_size} sequence_batching {{ {fields} \
             }}"
        );
        let mut message = crate::parse_text("config.pbtxt", &text).unwrap();
        crate::normalize(&mut message);
        let config = ResolvedConfig::from_partial(message).unwrap();
        states(&config).map_err(|error| error.message)
    }

    const STATE: &str = "input_name: 'i' output_name: 'o' data_type: TYPE_INT32 dims: [ -1, 3 ]";

    #[test]
    fn states_are_read() {
        let specs = states_of(
            4,
            &format!(
                "state {{ {STATE} }} state {{ input_name: 'i2' output_name: 'o2' data_type: \
                 TYPE_STRING dims: [ 2 ] use_same_buffer_for_input_output: true initial_state {{ \
                 name: 'n' data_type: TYPE_STRING dims: [ 2 ] data_file: 'words' }} }} state {{ \
                 input_name: 'i3' output_name: 'o2' data_type: TYPE_FP16 dims: [ 2 ] }}"
            ),
        )
        .unwrap();
        assert_eq!(
            specs,
            [
                StateSpec {
                    input_name: "i".into(),
                    output_name: "o".into(),
                    data_type: DataType::Int32,
                    shape: vec![1, 1, 3],
                    start: StateStart::Zeros { byte_count: 12 },
                    is_in_place: false,
                    is_growable: false,
                },
                StateSpec {
                    input_name: "i2".into(),
                    output_name: "o2".into(),
                    data_type: DataType::Bytes,
                    shape: vec![1, 2],
                    start: StateStart::File {
                        path: "initial_state/words".to_owned(),
                        byte_count: None,
                    },
                    is_in_place: true,
                    is_growable: false,
                },
            ]
        );
        let initial = "initial_state { name: 'n' data_type: TYPE_INT32 dims: [ 2, 3 ]";
        let one = |data: &str| {
            let specs = states_of(0, &format!("state {{ {STATE} {initial} {data} }} }}")).unwrap();
            (specs[0].shape.clone(), specs[0].start.clone())
        };
        assert_eq!(
            one("zero_data: true"),
            (vec![2, 3], StateStart::Zeros { byte_count: 24 })
        );
        let file = StateStart::File {
            path: "initial_state/f".to_owned(),
            byte_count: Some(24),
        };
        assert_eq!(one("data_file: 'f'"), (vec![2, 3], file));
    }

    #[test]
    fn growable_memory_needs_gpus_for_all_instances() {
        let growable = "use_growable_memory: true use_same_buffer_for_input_output: true";
        let text = |groups: &str| {
            format!(
                "name: 'm' backend: 'b' {groups} sequence_batching {{ state {{ {STATE} {growable} \
                 }} }}"
            )
        };
        let gpu = "instance_group { name: 'g' count: 1 kind: KIND_GPU gpus: 0 }";
        let cpu = "instance_group { name: 'c' count: 1 kind: KIND_CPU }";
        for (groups, is_right) in [
            (gpu.to_owned(), true),
            (gpu.repeat(2), true),
            (format!("{gpu} {cpu}"), false),
            (cpu.to_owned(), false),
        ] {
            let mut message = crate::parse_text("config.pbtxt", text(&groups)).unwrap();
            crate::normalize(&mut message);
            let config = ResolvedConfig::from_partial(message).unwrap();
            let found = states(&config);
            assert_eq!(found.is_ok(), is_right, "{groups}");
            let is_growable = |specs: Vec<StateSpec>| specs.iter().all(|spec| spec.is_growable);
            assert!(found.map_or(true, is_growable));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_upstreams_words() {
        let initial = |dims: &str, more: &str| {
            format!("state {{ {STATE} initial_state {{ dims: {dims} {more} }} }}")
        };
        let int = "data_type: TYPE_INT32 name: 'n' zero_data: true";
        for (states, expected) in [
            (
                initial("[ 2, 3 ]", "data_type: TYPE_INT8 name: 'n' zero_data: true"),
                "The data type used for 'initial_state' field of state 'i' does not match the \
                 state data type.",
            ),
            (
                initial("[ 2, 3 ]", "data_type: TYPE_INT32 zero_data: true"),
                "Field 'name' must be set when using initial_state for state input 'i'.",
            ),
            (
                initial("[ 2 ]", int),
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' \
                 dimensions for state input 'i'. 1 != 2",
            ),
            (
                initial("[ -1, 3 ]", int),
                "'initial_state' field for state input name 'i' contains variable dimensions.",
            ),
            (
                initial("[ 1, 4 ]", int),
                "'initial_state' dim for input name 'i' doesn't match 'state' dim description. 4 \
                 != 3",
            ),
            (
                initial("[ 1, 3 ]", "data_type: TYPE_INT32 name: 'n'"),
                "initial_state setting expects state'i' to have state_data set",
            ),
            (
                format!("state {{ {STATE} initial_state {{ }} initial_state {{ }} }}"),
                "initial_state field for state input 'i' must contain exactly one or zero element. \
                 Found '2' elements.",
            ),
            (
                format!("state {{ {STATE} use_growable_memory: true }}"),
                "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for \
                 state input name 'i'.",
            ),
            (
                format!(
                    "state {{ {STATE} use_growable_memory: true use_same_buffer_for_input_output: \
                     true }}"
                ),
                "'use_growable_memory' can only work with KIND_GPU model instances right now. \
                 Please either change the instance type to KIND_GPU or set 'use_growable_memory' \
                 to false for state input 'i'.",
            ),
            (
                "state { input_name: 'i' output_name: 'o' dims: [ 1 ] }".to_owned(),
                "state 'i' must specify a valid data type",
            ),
            (
                initial("[ 1, 3 ]", int).repeat(2),
                "State input name 'i' specified more than once.",
            ),
            (
                initial("[ 4611686018427387904, 3 ]", int),
                "failed to compute the byte size of state 'i'",
            ),
        ] {
            assert_eq!(states_of(4, &states), Err(expected.to_owned()), "{states}");
        }
    }
}
