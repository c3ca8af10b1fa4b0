//! From the message's fields to the engine's [`Draft`], with upstream's complaints about what only
//! the wire can get wrong.
//!
//! What depends on the model (names, shapes, sizes) is checked later, by `admit`.

use std::sync::Arc;

use conch_config::DataType;
use conch_engine::shared_memory::{RegionWindow, RequestRegions};
use conch_engine::{
    CorrelationId, Draft, DraftInput, ModelVersion, Parameter, ParameterValue, Regions,
    SequenceFlags, truncated,
};
use conch_memory::{Budget, ByteView, try_text};
use smallvec::{SmallVec, smallvec};

use super::contents::{self, ContentsInput};
use super::message::{
    InferHead, InferTarget, InputTensor, MessageParameters, ParameterChoice, RequestedOutput, find,
};
use super::region::RegionPart;
use crate::api::regions;
use crate::grpc::status::{GrpcStatus, invalid};
use crate::shard::{Shard, yield_now};

/// Tensors made of typed contents, or copied from registered memory, in order; the last may be the
/// reason why there are no more.
pub(in crate::grpc) type TypedTensors = Vec<Result<ByteView, GrpcStatus>>;

/// Outputs, and as how many classes they are wanted.
pub(super) type ClassCounts = Vec<(Box<str>, u32)>;

/// Converts the typed contents of each input that has some (unless `has_raws`, which is an error
/// told later), and copies what must not be read in registered memory, in order, up to the first
/// that cannot be. Yields between slices.
pub(super) async fn convert(
    (shard, budget): (&Shard, &Arc<Budget>),
    model: &ModelVersion,
    target: &InferTarget<'_>,
    message: &InferHead<'_>,
    has_raws: bool,
) -> TypedTensors {
    let mut converted = TypedTensors::new();
    for input in &message.inputs {
        if input.contents.is_empty() {
            let Ok(Some((_, view))) = copied_from(input, model, regions::of(shard)) else {
                continue;
            };
            let copy = regions::copy(shard, budget, &view).await;
            let is_last = copy.is_err();
            converted.push(copy.map_err(GrpcStatus::from));
            if is_last {
                break;
            }
            continue;
        }
        if has_raws {
            break;
        }
        let subject = ContentsInput {
            input: input.name,
            model: target.model_name,
            data_type: DataType::from_name(input.data_type),
            is_strict: shard.options.strict_integers,
        };
        let view = contents::read(&input.contents, &subject, &shard.pool, budget, yield_now).await;
        let is_last = view.is_err();
        converted.push(view);
        if is_last {
            break;
        }
    }
    converted
}

/// The registered memory of an input that must be copied, if it is one.
fn copied_from(
    input: &InputTensor<'_>,
    model: &ModelVersion,
    regions: &Regions,
) -> Result<Option<(RegionWindow, ByteView)>, GrpcStatus> {
    let Some(part) = RegionPart::read(&input.parameters, input.name)? else {
        return Ok(None);
    };
    let window = part.window(regions)?;
    let view = window.view().clone();
    let data_type = DataType::from_name(input.data_type).unwrap_or(DataType::Uint8);
    let must_copy = regions::must_copy(model, input.name, data_type, &view);
    Ok(must_copy.then_some((window, view)))
}

/// Builds the draft of `message` for `model`; `raws` are the raw contents in order, `typed` what
/// [`convert`] made of the others.
///
/// What comes with it are the outputs that are wanted as classes, and how many of them.
pub(super) fn build<'a>(
    model: &ModelVersion,
    regions: &Regions,
    target: &InferTarget<'a>,
    message: InferHead<'a>,
    raws: SmallVec<[ByteView; 2]>,
    typed: TypedTensors,
) -> Result<(Draft<'a>, ClassCounts), GrpcStatus> {
    let mut draft = Draft {
        id: target.id,
        ..Draft::default()
    };
    apply_parameters(&mut draft, &message.parameters)?;
    let has_raws = !raws.is_empty();
    let mut raws = raws.into_iter();
    let mut typed = typed.into_iter();
    let mut unknown_type = None;
    let mut usage: Option<RequestRegions> = None;
    for input in message.inputs {
        let data_type = DataType::from_name(input.data_type);
        let subject = ContentsInput {
            input: input.name,
            model: target.model_name,
            data_type,
            is_strict: false,
        };
        let data = match source_of(&input, has_raws, &subject)? {
            InputSource::Contents => typed.next().ok_or_else(|| no_data(&subject))??,
            InputSource::Raw => raws.next().ok_or_else(|| no_data(&subject))?,
            InputSource::Region(part) => {
                let view = usage
                    .get_or_insert_default()
                    .add_input(part.window(regions)?);
                let kind = data_type.unwrap_or(DataType::Uint8);
                if regions::must_copy(model, input.name, kind, &view) {
                    typed.next().ok_or_else(|| no_data(&subject))??
                } else {
                    view
                }
            }
        };
        if data_type.is_none() && unknown_type.is_none() {
            unknown_type = Some(input.name);
        }
        draft.inputs.push(DraftInput {
            name: input.name,
            data_type: data_type.unwrap_or(DataType::Uint8),
            shape: input.shape,
            // An empty tensor has no piece, as in upstream.
            chunks: if data.is_empty() {
                SmallVec::new()
            } else {
                smallvec![data]
            },
        });
    }
    if let Some(name) = unknown_type {
        return Err(refuse_unknown_type(name, model, target));
    }
    let mut class_counts = ClassCounts::new();
    for output in &message.outputs {
        match check_output(output)? {
            OutputRequest::Nothing => {}
            OutputRequest::Classes(count) => class_counts.push((output.name.into(), count)),
            OutputRequest::Region(part) => {
                let usage = usage.get_or_insert_default();
                usage.add_output(output.name, part.window(regions)?);
            }
        }
        draft.requested_outputs.push(output.name);
    }
    draft.features.regions = usage.map(Arc::new);
    Ok((draft, class_counts))
}

/// Where an input's data is.
enum InputSource<'a> {
    Contents,
    Raw,
    Region(RegionPart<'a>),
}

fn source_of<'a>(
    input: &InputTensor<'a>,
    has_raws: bool,
    subject: &ContentsInput<'_>,
) -> Result<InputSource<'a>, GrpcStatus> {
    let ContentsInput {
        input: name, model, ..
    } = subject;
    let has_contents = !input.contents.is_empty();
    if let Some(part) = RegionPart::read(&input.parameters, name)? {
        if has_contents {
            return Err(invalid(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' \
                 for model '{model}'",
                name = truncated(&name)
            )));
        }
        return Ok(InputSource::Region(part));
    }
    match (has_contents, has_raws) {
        (true, true) => Err(invalid(format!(
            "contents field must not be specified when using raw_input_contents for '{name}' for \
             model '{model}'",
            name = truncated(&name)
        ))),
        (true, false) => Ok(InputSource::Contents),
        (false, _) => Ok(InputSource::Raw),
    }
}

fn no_data(subject: &ContentsInput<'_>) -> GrpcStatus {
    let ContentsInput { input, model, .. } = subject;
    invalid(format!(
        "unable to find data for input tensor '{input}' for model '{model}' in request.",
        input = truncated(&input)
    ))
}

/// Upstream finds an unknown type when it compares with the model's.
fn refuse_unknown_type(name: &str, model: &ModelVersion, target: &InferTarget<'_>) -> GrpcStatus {
    let Some((_, spec)) = model.config.input(name) else {
        return invalid(format!(
            "unexpected inference input '{name}' for model '{}'",
            model.name,
            name = truncated(&name)
        ));
    };
    let id = if target.id.is_empty() {
        "<id_unknown>"
    } else {
        target.id
    };
    invalid(format!(
        "[request id: {id}] inference input '{name}' data-type is '{}', but model '{}' expects \
         '{}'",
        contents::INVALID_DATA_TYPE,
        model.name,
        spec.data_type.name(),
        name = truncated(&name),
        id = truncated(&id)
    ))
}

/// What is wanted of an output beside its bytes in the answer.
#[derive(Debug, PartialEq)]
enum OutputRequest<'a> {
    Nothing,
    /// So many classes.
    Classes(u32),
    /// In registered memory.
    Region(RegionPart<'a>),
}

fn check_output<'a>(output: &RequestedOutput<'a>) -> Result<OutputRequest<'a>, GrpcStatus> {
    let part = RegionPart::read(&output.parameters, output.name)?;
    let class_count = match find(&output.parameters, "classification") {
        None => None,
        // More than there are elements is all of them.
        Some(ParameterChoice::Int(count)) if count > 0 => {
            Some(u32::try_from(count).unwrap_or(u32::MAX))
        }
        Some(ParameterChoice::Int(_)) => {
            return Err(invalid(
                "invalid value for 'classification' parameter, expected >= 0".into(),
            ));
        }
        Some(_) => {
            return Err(invalid(
                "invalid value type for 'classification' parameter, expected int64_param".into(),
            ));
        }
    };
    match (part, class_count) {
        (Some(_), Some(_)) => Err(invalid(
            "output can't set both 'shared_memory_region' and 'classification'".into(),
        )),
        (Some(part), None) => Ok(OutputRequest::Region(part)),
        (None, Some(count)) => Ok(OutputRequest::Classes(count)),
        (None, None) => Ok(OutputRequest::Nothing),
    }
}

/// Whether the client asks for an empty response where a decoupled model ends without one. Of the
/// right kind, or the request is refused.
pub(super) fn wants_empty_final(message: &InferHead<'_>) -> bool {
    let name = "triton_enable_empty_final_response";
    matches!(
        find(&message.parameters, name),
        Some(ParameterChoice::Bool(true))
    )
}

fn apply_parameters(
    draft: &mut Draft<'_>,
    parameters: &MessageParameters<'_>,
) -> Result<(), GrpcStatus> {
    for (name, choice) in parameters {
        match *name {
            "sequence_id" => {
                draft.correlation_id = match *choice {
                    ParameterChoice::Int(id) => CorrelationId::Unsigned(id.cast_unsigned()),
                    ParameterChoice::Text(id) => CorrelationId::Text(try_text(id)?),
                    _ => return Err(wrong_kind(name, "int64_param or string_param")),
                };
            }
            "sequence_start" => apply_flag(draft, name, *choice, SequenceFlags::START)?,
            "sequence_end" => apply_flag(draft, name, *choice, SequenceFlags::END)?,
            "priority" => {
                draft.priority = match *choice {
                    ParameterChoice::Int(priority) => u64::try_from(priority).map_err(|_| {
                        invalid("invalid value for 'priority', expected value >= 0.".into())
                    })?,
                    ParameterChoice::Uint(priority) => priority,
                    _ => return Err(wrong_kind(name, "int64_param or uint64_param")),
                };
            }
            "timeout" => {
                draft.timeout_us = match *choice {
                    // Upstream hands the bits on: a negative value is a very long time.
                    ParameterChoice::Int(timeout_us) => timeout_us.cast_unsigned(),
                    _ => return Err(wrong_kind(name, "int64_param")),
                };
            }
            // For streams, see `wants_empty_final`; a unary call has exactly one response.
            "triton_enable_empty_final_response" => match choice {
                ParameterChoice::Bool(_) => {}
                _ => return Err(wrong_kind(name, "bool_param")),
            },
            _ if name.starts_with("triton_") => {
                return Err(invalid(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. \
                     Only the following keys starting \
                     with 'triton_' are allowed: triton_enable_empty_final_response"
                        .into(),
                ));
            }
            _ => {
                let value = match *choice {
                    ParameterChoice::Int(value) => ParameterValue::Int(value),
                    ParameterChoice::Bool(value) => ParameterValue::Bool(value),
                    ParameterChoice::Text(value) => ParameterValue::Text(try_text(value)?),
                    ParameterChoice::Double(value) => ParameterValue::Double(value),
                    ParameterChoice::Uint(_) | ParameterChoice::Missing => {
                        return Err(wrong_kind(name, "int64_param, bool_param, or string_param"));
                    }
                };
                draft.parameters.push(Parameter {
                    name: try_text(name)?,
                    value,
                });
            }
        }
    }
    Ok(())
}

fn apply_flag(
    draft: &mut Draft<'_>,
    name: &str,
    choice: ParameterChoice<'_>,
    flag: SequenceFlags,
) -> Result<(), GrpcStatus> {
    match choice {
        ParameterChoice::Bool(true) => draft.sequence_flags |= flag,
        ParameterChoice::Bool(false) => {}
        _ => return Err(wrong_kind(name, "bool_param")),
    }
    Ok(())
}

fn wrong_kind(name: &str, expected: &str) -> GrpcStatus {
    invalid(format!(
        "invalid value type for '{name}' parameter, expected {expected}.",
        name = truncated(&name)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::status::GrpcCode;

    fn applied<'a>(
        parameters: &[(&'a str, ParameterChoice<'a>)],
    ) -> Result<Draft<'static>, String> {
        let mut draft = Draft::default();
        apply_parameters(&mut draft, &parameters.iter().copied().collect())
            .map(|()| draft)
            .map_err(|status| {
                assert_eq!(status.code, GrpcCode::InvalidArgument);
                status.message.into_owned()
            })
    }

    #[test]
    fn parameters_reach_the_draft() {
        let draft = applied(&[
            ("sequence_id", ParameterChoice::Int(-1)),
            ("sequence_start", ParameterChoice::Bool(true)),
            ("sequence_end", ParameterChoice::Bool(false)),
            ("priority", ParameterChoice::Uint(7)),
            ("timeout", ParameterChoice::Int(1500)),
            (
                "triton_enable_empty_final_response",
                ParameterChoice::Bool(true),
            ),
            ("custom", ParameterChoice::Double(0.5)),
        ])
        .unwrap();
        assert_eq!(draft.correlation_id, CorrelationId::Unsigned(u64::MAX));
        assert_eq!(
            (draft.sequence_flags, draft.priority, draft.timeout_us),
            (SequenceFlags::START, 7, 1500)
        );
        let custom = Parameter {
            name: "custom".into(),
            value: ParameterValue::Double(0.5),
        };
        assert_eq!(draft.parameters, [custom]);
        let draft = applied(&[
            ("sequence_id", ParameterChoice::Text("s")),
            ("sequence_end", ParameterChoice::Bool(true)),
        ])
        .unwrap();
        assert_eq!(draft.correlation_id, CorrelationId::Text("s".into()));
        assert_eq!(draft.sequence_flags, SequenceFlags::END);
    }

    #[test]
    fn wrong_parameters_have_upstreams_words() {
        let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage. \
                        Only the following keys starting \
                        with 'triton_' are allowed: triton_enable_empty_final_response";
        let table = [
            (
                ("sequence_id", ParameterChoice::Bool(true)),
                "invalid value type for 'sequence_id' parameter, expected int64_param or \
                 string_param.",
            ),
            (
                ("sequence_start", ParameterChoice::Int(1)),
                "invalid value type for 'sequence_start' parameter, expected bool_param.",
            ),
            (
                ("sequence_end", ParameterChoice::Missing),
                "invalid value type for 'sequence_end' parameter, expected bool_param.",
            ),
            (
                ("priority", ParameterChoice::Text("1")),
                "invalid value type for 'priority' parameter, expected int64_param or \
                 uint64_param.",
            ),
            (
                ("priority", ParameterChoice::Int(-1)),
                "invalid value for 'priority', expected value >= 0.",
            ),
            (
                ("timeout", ParameterChoice::Uint(1)),
                "invalid value type for 'timeout' parameter, expected int64_param.",
            ),
            (("triton_other", ParameterChoice::Int(1)), reserved),
            (
                (
                    "triton_enable_empty_final_response",
                    ParameterChoice::Int(1),
                ),
                "invalid value type for 'triton_enable_empty_final_response' parameter, expected \
                 bool_param.",
            ),
            (
                ("custom", ParameterChoice::Uint(1)),
                "invalid value type for 'custom' parameter, expected int64_param, bool_param, or \
                 string_param.",
            ),
        ];
        for (parameter, expected) in table {
            assert_eq!(applied(&[parameter]).unwrap_err(), expected);
        }
    }

    type ChosenParameter = (&'static str, ParameterChoice<'static>);

    /// The classes and the region that an output's parameters ask for.
    type Asked = (Option<u32>, Option<&'static str>);

    const REGION: ChosenParameter = ("shared_memory_region", ParameterChoice::Text("r"));
    const SIZE: ChosenParameter = ("shared_memory_byte_size", ParameterChoice::Int(4));

    fn output(parameters: &[ChosenParameter]) -> Result<Asked, (GrpcCode, String)> {
        let parameters = parameters.iter().copied().collect();
        check_output(&RequestedOutput {
            name: "OUT",
            parameters,
        })
        .map(|wish| match wish {
            OutputRequest::Nothing => (None, None),
            OutputRequest::Classes(count) => (Some(count), None),
            OutputRequest::Region(part) => (None, Some(part.region)),
        })
        .map_err(|status| (status.code, status.message.into_owned()))
    }

    #[test]
    fn wrong_output_parameters_have_upstreams_words() {
        let table: &[(&[ChosenParameter], GrpcCode, &str)] = &[
            (
                &[("classification", ParameterChoice::Bool(true))],
                GrpcCode::InvalidArgument,
                "invalid value type for 'classification' parameter, expected int64_param",
            ),
            (
                &[("classification", ParameterChoice::Int(0))],
                GrpcCode::InvalidArgument,
                "invalid value for 'classification' parameter, expected >= 0",
            ),
            (
                &[REGION, SIZE, ("classification", ParameterChoice::Int(1))],
                GrpcCode::InvalidArgument,
                "output can't set both 'shared_memory_region' and 'classification'",
            ),
            (
                &[REGION],
                GrpcCode::InvalidArgument,
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' \
                 parameter for tensor 'OUT'",
            ),
            (
                &[SIZE],
                GrpcCode::InvalidArgument,
                "'shared_memory_byte_size' can not be specified without 'shared_memory_region' \
                 parameter for tensor 'OUT'",
            ),
            (
                &[("shared_memory_offset", ParameterChoice::Int(4))],
                GrpcCode::InvalidArgument,
                "'shared_memory_offset' can not be specified without 'shared_memory_region' \
                 parameter for tensor 'OUT'",
            ),
            (
                &[("shared_memory_region", ParameterChoice::Int(1))],
                GrpcCode::InvalidArgument,
                "invalid value type for 'shared_memory_region' parameter for tensor 'OUT', \
                 expected string_param.",
            ),
            (
                &[
                    REGION,
                    ("shared_memory_offset", ParameterChoice::Text("1")),
                    SIZE,
                ],
                GrpcCode::InvalidArgument,
                "invalid value type for 'shared_memory_offset' parameter for tensor 'OUT', \
                 expected int64_param.",
            ),
        ];
        for (parameters, code, message) in table {
            assert_eq!(output(parameters), Err((*code, (*message).to_owned())));
        }
    }

    #[test]
    fn output_parameters_ask_for_classes_or_a_region() {
        assert_eq!(
            output(&[("other", ParameterChoice::Int(1))]),
            Ok((None, None))
        );
        let three = [("classification", ParameterChoice::Int(3))];
        assert_eq!(output(&three), Ok((Some(3), None)));
        let huge = [("classification", ParameterChoice::Int(i64::MAX))];
        assert_eq!(output(&huge), Ok((Some(u32::MAX), None)));
        assert_eq!(output(&[REGION, SIZE]), Ok((None, Some("r"))));
    }
}
