//! Sequence batching: how sequences share the instances, and what the model is told of them.

use std::sync::Arc;

use conch_proto::inference::ModelConfig;
use conch_proto::inference::ModelSequenceBatching;
use conch_proto::inference::model_sequence_batching::StrategyChoice;
use conch_proto::inference::model_sequence_batching::control::Kind;

use crate::{DataType, DynamicBatching, OwnParameters, QueuePolicy};

/// Settings of the sequence batcher.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceBatching {
    pub strategy: SequenceStrategy,
    /// Sequences that an instance may have at once, at least 1.
    pub slot_count: u32,
    /// A sequence that sends nothing for longer is over.
    pub idle_us: u64,
    /// Requests may be run again, and need not name a sequence.
    pub is_iterative: bool,
    pub controls: Controls,
    /// Requests that may wait, in all; 0: unbounded.
    pub queue_size_max: u32,
    /// Sequences that may wait for a slot; none: unbounded.
    pub backlog_max: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SequenceStrategy {
    /// A sequence has one row of its instance's batches to itself.
    Direct {
        delay_us: u64,
        /// Part of the slots that shall be ready before the delay is over; 0: does not wait.
        utilization_min: f32,
    },
    /// Each instance batches the oldest requests of its sequences, one of each.
    Oldest(DynamicBatching),
}

/// Tensors that tell the model about its sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Controls {
    pub start: Option<FlagControl>,
    pub end: Option<FlagControl>,
    pub ready: Option<FlagControl>,
    pub correlation_id: Option<IdControl>,
}

/// A control that is off or on.
#[derive(Clone, Debug, PartialEq)]
pub struct FlagControl {
    pub name: Arc<str>,
    pub data_type: DataType,
    /// One element's bytes, for off and for on.
    pub values: [Vec<u8>; 2],
}

/// The control that has the sequence's id.
#[derive(Clone, Debug, PartialEq)]
pub struct IdControl {
    pub name: Arc<str>,
    pub data_type: DataType,
}

/// The facts of a configuration that `validate` has accepted.
pub(crate) fn sequence_batching(
    message: &ModelConfig,
    batching: &ModelSequenceBatching,
    own: &OwnParameters,
) -> SequenceBatching {
    let batch_size_max = u32::try_from(message.max_batch_size).unwrap_or(0).max(1);
    let (strategy, candidate_count) = match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            let sizes = oldest.preferred_batch_size.iter();
            let mut preferred_batch_sizes: Vec<u32> =
                sizes.filter_map(|size| u32::try_from(*size).ok()).collect();
            preferred_batch_sizes.sort_unstable();
            preferred_batch_sizes.dedup();
            let strategy = SequenceStrategy::Oldest(DynamicBatching {
                preferred_batch_sizes,
                max_queue_delay_us: oldest.max_queue_delay_microseconds,
                is_preserving_order: oldest.preserve_ordering,
                is_by_deadline: own.is_by_deadline,
                priority_levels: 0,
                default_priority_level: 0,
                default_policy: QueuePolicy::default(),
                priority_policies: Vec::new(),
            });
            // None, or a negative one: as many as a batch takes.
            let count = u32::try_from(oldest.max_candidate_sequences).ok();
            (strategy, count.filter(|count| *count > 0))
        }
        Some(StrategyChoice::Direct(direct)) => {
            let strategy = SequenceStrategy::Direct {
                delay_us: direct.max_queue_delay_microseconds,
                utilization_min: direct.minimum_slot_utilization,
            };
            (strategy, None)
        }
        None => {
            let strategy = SequenceStrategy::Direct {
                delay_us: 0,
                utilization_min: 0.0,
            };
            (strategy, None)
        }
    };
    SequenceBatching {
        strategy,
        slot_count: candidate_count.unwrap_or(batch_size_max),
        idle_us: batching.max_sequence_idle_microseconds,
        is_iterative: batching.iterative_sequence,
        controls: controls(batching),
        queue_size_max: own.sequence_queue_max.unwrap_or(0),
        backlog_max: own.sequence_backlog_max,
    }
}

fn controls(batching: &ModelSequenceBatching) -> Controls {
    let mut controls = Controls::default();
    for input in &batching.control_input {
        for control in &input.control {
            let flag = || {
                let (data_type, values) = match (
                    control.int32_false_true.as_slice(),
                    control.fp32_false_true.as_slice(),
                    control.bool_false_true.as_slice(),
                ) {
                    ([off, on], _, _) => (
                        DataType::Int32,
                        [off.to_le_bytes().to_vec(), on.to_le_bytes().to_vec()],
                    ),
                    (_, [off, on], _) => (
                        DataType::Fp32,
                        [off.to_le_bytes().to_vec(), on.to_le_bytes().to_vec()],
                    ),
                    (_, _, [off, on]) => {
                        (DataType::Bool, [vec![u8::from(*off)], vec![u8::from(*on)]])
                    }
                    _ => return None,
                };
                Some(FlagControl {
                    name: input.name.as_str().into(),
                    data_type,
                    values,
                })
            };
            match Kind::try_from(control.kind) {
                Ok(Kind::ControlSequenceStart) => controls.start = flag(),
                Ok(Kind::ControlSequenceEnd) => controls.end = flag(),
                Ok(Kind::ControlSequenceReady) => controls.ready = flag(),
                Ok(Kind::ControlSequenceCorrid) => {
                    let number = u32::try_from(control.data_type).unwrap_or(0);
                    controls.correlation_id =
                        DataType::from_number(number).map(|data_type| IdControl {
                            name: input.name.as_str().into(),
                            data_type,
                        });
                }
                Err(_) => {}
            }
        }
    }
    controls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ResolvedConfig, Scheduling};

    fn facts(text: &str) -> Result<SequenceBatching, String> {
        let text = format!("name: 'm' backend: 'b' {text}");
        let mut message = crate::parse_text("config.pbtxt", &text).unwrap();
        crate::normalize(&mut message);
        let model = ResolvedConfig::from_partial(message).map_err(|error| error.message)?;
        match model.scheduling {
            Scheduling::Sequence(batching) => Ok(*batching),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_configuration_is_read() {
        let plain = facts("sequence_batching { }").unwrap();
        let direct = SequenceStrategy::Direct {
            delay_us: 0,
            utilization_min: 0.0,
        };
        assert_eq!(
            plain,
            SequenceBatching {
                strategy: direct,
                slot_count: 1,
                idle_us: 1_000_000,
                is_iterative: false,
                controls: Controls::default(),
                queue_size_max: 0,
                backlog_max: None,
            }
        );
        let direct = facts(
            "max_batch_size: 3 sequence_batching \
             { direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 7 } \
             iterative_sequence: true max_sequence_idle_microseconds: 9 } \
             parameters { key: 'CONCH_SEQUENCE_QUEUE_MAX' value { string_value: '5' } } parameters \
             { key: 'CONCH_SEQUENCE_BACKLOG_MAX' value { string_value: '0' } }",
        )
        .unwrap();
        assert_eq!(
            direct.strategy,
            SequenceStrategy::Direct {
                delay_us: 7,
                utilization_min: 0.5
            }
        );
        assert_eq!(
            (direct.slot_count, direct.idle_us, direct.is_iterative),
            (3, 9, true)
        );
        assert_eq!((direct.queue_size_max, direct.backlog_max), (5, Some(0)));
        let oldest = |candidates: i32| {
            let text = format!(
                "max_batch_size: 8 sequence_batching {{ oldest {{ max_candidate_sequences: \
                 {candidates} preferred_batch_size: [ 4, 2, 4 ] max_queue_delay_microseconds: 3 \
                 preserve_ordering: true }} }}"
            );
            facts(&text).unwrap()
        };
        assert_eq!([4, 0, -1].map(|count| oldest(count).slot_count), [4, 8, 8]);
        let SequenceStrategy::Oldest(batching) = oldest(4).strategy else {
            panic!("not the oldest strategy")
        };
        assert_eq!(batching.preferred_batch_sizes, [2, 4]);
        assert_eq!(
            (batching.max_queue_delay_us, batching.is_preserving_order),
            (3, true)
        );
    }

    #[test]
    fn controls_have_the_configured_values() {
        let controls = facts(
            "sequence_batching { \
             control_input { name: 'S' \
             control { kind: CONTROL_SEQUENCE_START int32_false_true: [ -1, 258 ] } } \
             control_input { name: 'E' \
             control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } } \
             control_input { name: 'R' \
             control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ true, false ] } } \
             control_input { name: 'C' \
             control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }",
        )
        .unwrap()
        .controls;
        let flag = |name: &str, data_type, off: &[u8], on: &[u8]| {
            Some(FlagControl {
                name: name.into(),
                data_type,
                values: [off.to_vec(), on.to_vec()],
            })
        };
        let expected = Controls {
            start: flag("S", DataType::Int32, &[255; 4], &[2, 1, 0, 0]),
            end: flag("E", DataType::Fp32, &[0; 4], &[0, 0, 128, 63]),
            ready: flag("R", DataType::Bool, &[1], &[0]),
            correlation_id: Some(IdControl {
                name: "C".into(),
                data_type: DataType::Bytes,
            }),
        };
        assert_eq!(controls, expected);
    }

    #[test]
    fn limits_must_be_numbers() {
        for value in ["", "-1", "1.5", "many", "4294967296"] {
            let text = format!(
                "sequence_batching {{ }} parameters {{ key: 'CONCH_SEQUENCE_BACKLOG_MAX' value {{ \
                 string_value: '{value}' }} }}"
            );
            let expected = format!(
                "parameter 'CONCH_SEQUENCE_BACKLOG_MAX' of model 'm' must be a number of \
                 sequences, got '{value}'"
            );
            assert_eq!(facts(&text), Err(expected));
        }
    }
}
