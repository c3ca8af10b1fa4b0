//! From the message's fields to the engine's [`Draft`], with upstream's complaints about what only the wire can get wrong.
//!
//! What depends on the model (names, shapes, sizes) is checked later, by `admit`.

use std::sync::Arc;

use conch_config::DataType;
use conch_engine::regions::{Usage, Window};
use conch_engine::{
    CorrelationId, Draft, DraftInput, ModelVersion, Parameter, ParameterValue, Regions, truncated,
};
use conch_memory::{Budget, View, try_text};
use smallvec::{SmallVec, smallvec};

use super::Typed;
use super::contents::{self, Subject};
use super::message::{Choice, InputTensor, Message, Parameters, RequestedOutput, Target};
use super::region::Part;
use crate::api::regions;
use crate::grpc::status::{Code, Status};
use crate::shard::{Shard, breathe};

/// Outputs, and as how many classes they are wanted.
pub(super) type ClassCounts = Vec<(Box<str>, u32)>;

const SEQUENCE_START: u32 = 1;
const SEQUENCE_END: u32 = 2;

pub(super) fn invalid(message: String) -> Status {
    Status::new(Code::InvalidArgument, message)
}

/// Converts the typed contents of each input that has some (unless `has_raws`, which is an error told later), and copies what must not be
/// read in registered memory, in order, up to the first that cannot be. Yields between slices.
pub(super) async fn convert(
    (shard, budget): (&Shard, &Arc<Budget>),
    model: &ModelVersion,
    target: &Target<'_>,
    message: &Message<'_>,
    has_raws: bool,
) -> Typed {
    let mut converted = Typed::new();
    for input in &message.inputs {
        if input.contents.is_empty() {
            let Ok(Some((_, view))) = copied_from(input, model, regions::of(shard)) else {
                continue;
            };
            let copy = regions::copy(shard, budget, &view).await;
            let is_last = copy.is_err();
            converted.push(copy.map_err(Status::from));
            if is_last {
                break;
            }
            continue;
        }
        if has_raws {
            break;
        }
        let subject = Subject {
            input: input.name,
            model: target.model_name,
            data_type: DataType::from_name(input.data_type),
            is_strict: shard.options.strict_integers,
        };
        let view = contents::read(&input.contents, &subject, &shard.pool, budget, breathe).await;
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
) -> Result<Option<(Window, View)>, Status> {
    let Some(part) = Part::read(&input.parameters, input.name)? else {
        return Ok(None);
    };
    let window = part.window(regions)?;
    let view = window.view().clone();
    let data_type = DataType::from_name(input.data_type).unwrap_or(DataType::Uint8);
    let must_copy = regions::must_copy(model, input.name, data_type, &view);
    Ok(must_copy.then_some((window, view)))
}

/// Builds the draft of `message` for `model`; `raws` are the raw contents in order, `typed` what [`convert`] made of the others.
///
/// What comes with it are the outputs that are wanted as classes, and how many of them.
pub(super) fn build<'a>(
    model: &ModelVersion,
    regions: &Regions,
    target: &Target<'a>,
    message: Message<'a>,
    raws: SmallVec<[View; 2]>,
    typed: Typed,
) -> Result<(Draft<'a>, ClassCounts), Status> {
    let mut draft = Draft {
        id: target.id,
        ..Draft::default()
    };
    apply_parameters(&mut draft, &message.parameters)?;
    let has_raws = !raws.is_empty();
    let mut raws = raws.into_iter();
    let mut typed = typed.into_iter();
    let mut unknown_type = None;
    let mut usage: Option<Usage> = None;
    for input in message.inputs {
        let data_type = DataType::from_name(input.data_type);
        let subject = Subject {
            input: input.name,
            model: target.model_name,
            data_type,
            is_strict: false,
        };
        let data = match source_of(&input, has_raws, &subject)? {
            Source::Contents => typed.next().ok_or_else(|| no_data(&subject))??,
            Source::Raw => raws.next().ok_or_else(|| no_data(&subject))?,
            Source::Region(part) => {
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
            Wish::Nothing => {}
            Wish::Classes(count) => class_counts.push((output.name.into(), count)),
            Wish::Region(part) => {
                let usage = usage.get_or_insert_default();
                usage.add_output(output.name, part.window(regions)?);
            }
        }
        draft.requested_outputs.push(output.name);
    }
    draft.usage = usage.map(Arc::new);
    Ok((draft, class_counts))
}

/// Where an input's data is.
enum Source<'a> {
    Contents,
    Raw,
    Region(Part<'a>),
}

fn source_of<'a>(
    input: &InputTensor<'a>,
    has_raws: bool,
    subject: &Subject<'_>,
) -> Result<Source<'a>, Status> {
    let Subject {
        input: name, model, ..
    } = subject;
    let has_contents = !input.contents.is_empty();
    if let Some(part) = Part::read(&input.parameters, name)? {
        if has_contents {
            return Err(invalid(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'",
                name = truncated(&name)
            )));
        }
        return Ok(Source::Region(part));
    }
    match (has_contents, has_raws) {
        (true, true) => Err(invalid(format!(
            "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'",
            name = truncated(&name)
        ))),
        (true, false) => Ok(Source::Contents),
        (false, _) => Ok(Source::Raw),
    }
}

fn no_data(subject: &Subject<'_>) -> Status {
    let Subject { input, model, .. } = subject;
    invalid(format!(
        "unable to find data for input tensor '{input}' for model '{model}' in request.",
        input = truncated(&input)
    ))
}

/// Upstream finds an unknown type when it compares with the model's.
fn refuse_unknown_type(name: &str, model: &ModelVersion, target: &Target<'_>) -> Status {
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
        "[request id: {id}] inference input '{name}' data-type is '{}', but model '{}' expects '{}'",
        super::INVALID_DATA_TYPE,
        model.name,
        spec.data_type.name(),
        name = truncated(&name),
        id = truncated(&id)
    ))
}

pub(super) fn find<'a>(parameters: &Parameters<'a>, name: &str) -> Option<Choice<'a>> {
    parameters
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, choice)| *choice)
}

/// What is wanted of an output beside its bytes in the answer.
#[derive(Debug, PartialEq)]
enum Wish<'a> {
    Nothing,
    /// So many classes.
    Classes(u32),
    /// In registered memory.
    Region(Part<'a>),
}

fn check_output<'a>(output: &RequestedOutput<'a>) -> Result<Wish<'a>, Status> {
    let part = Part::read(&output.parameters, output.name)?;
    let class_count = match find(&output.parameters, "classification") {
        None => None,
        // More than there are elements is all of them.
        Some(Choice::Int(count)) if count > 0 => Some(u32::try_from(count).unwrap_or(u32::MAX)),
        Some(Choice::Int(_)) => {
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
        (Some(part), None) => Ok(Wish::Region(part)),
        (None, Some(count)) => Ok(Wish::Classes(count)),
        (None, None) => Ok(Wish::Nothing),
    }
}

/// Whether the client asks for an empty response where a decoupled model ends without one. Of the right kind, or the request is refused.
pub(super) fn wants_empty_final(message: &Message<'_>) -> bool {
    let name = "triton_enable_empty_final_response";
    matches!(find(&message.parameters, name), Some(Choice::Bool(true)))
}

fn apply_parameters(draft: &mut Draft<'_>, parameters: &Parameters<'_>) -> Result<(), Status> {
    for (name, choice) in parameters {
        match *name {
            "sequence_id" => {
                draft.correlation_id = match *choice {
                    Choice::Int(id) => CorrelationId::Unsigned(id.cast_unsigned()),
                    Choice::Text(id) => CorrelationId::Text(try_text(id)?),
                    _ => return Err(wrong_kind(name, "int64_param or string_param")),
                };
            }
            "sequence_start" => apply_flag(draft, name, *choice, SEQUENCE_START)?,
            "sequence_end" => apply_flag(draft, name, *choice, SEQUENCE_END)?,
            "priority" => {
                draft.priority = match *choice {
                    Choice::Int(priority) => u64::try_from(priority).map_err(|_| {
                        invalid("invalid value for 'priority', expected value >= 0.".into())
                    })?,
                    Choice::Uint(priority) => priority,
                    _ => return Err(wrong_kind(name, "int64_param or uint64_param")),
                };
            }
            "timeout" => {
                draft.timeout_us = match *choice {
                    // Upstream hands the bits on: a negative value is a very long time.
                    Choice::Int(timeout_us) => timeout_us.cast_unsigned(),
                    _ => return Err(wrong_kind(name, "int64_param")),
                };
            }
            // For streams, see `wants_empty_final`; a unary call has exactly one response.
            "triton_enable_empty_final_response" => match choice {
                Choice::Bool(_) => {}
                _ => return Err(wrong_kind(name, "bool_param")),
            },
            _ if name.starts_with("triton_") => {
                return Err(invalid(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting \
                     with 'triton_' are allowed: triton_enable_empty_final_response"
                        .into(),
                ));
            }
            _ => {
                let value = match *choice {
                    Choice::Int(value) => ParameterValue::Int(value),
                    Choice::Bool(value) => ParameterValue::Bool(value),
                    Choice::Text(value) => ParameterValue::Text(try_text(value)?),
                    Choice::Double(value) => ParameterValue::Double(value),
                    Choice::Uint(_) | Choice::Missing => {
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
    choice: Choice<'_>,
    flag: u32,
) -> Result<(), Status> {
    match choice {
        Choice::Bool(true) => draft.sequence_flags |= flag,
        Choice::Bool(false) => {}
        _ => return Err(wrong_kind(name, "bool_param")),
    }
    Ok(())
}

fn wrong_kind(name: &str, expected: &str) -> Status {
    invalid(format!(
        "invalid value type for '{name}' parameter, expected {expected}.",
        name = truncated(&name)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied<'a>(parameters: &[(&'a str, Choice<'a>)]) -> Result<Draft<'static>, String> {
        let mut draft = Draft::default();
        apply_parameters(&mut draft, &parameters.iter().copied().collect())
            .map(|()| draft)
            .map_err(|status| {
                assert_eq!(status.code, Code::InvalidArgument);
                status.message.into_owned()
            })
    }

    #[test]
    fn parameters_reach_the_draft() {
        let draft = applied(&[
            ("sequence_id", Choice::Int(-1)),
            ("sequence_start", Choice::Bool(true)),
            ("sequence_end", Choice::Bool(false)),
            ("priority", Choice::Uint(7)),
            ("timeout", Choice::Int(1500)),
            ("triton_enable_empty_final_response", Choice::Bool(true)),
            ("custom", Choice::Double(0.5)),
        ])
        .unwrap();
        assert_eq!(draft.correlation_id, CorrelationId::Unsigned(u64::MAX));
        assert_eq!(
            (draft.sequence_flags, draft.priority, draft.timeout_us),
            (SEQUENCE_START, 7, 1500)
        );
        let custom = Parameter {
            name: "custom".into(),
            value: ParameterValue::Double(0.5),
        };
        assert_eq!(draft.parameters, [custom]);
        let draft = applied(&[
            ("sequence_id", Choice::Text("s")),
            ("sequence_end", Choice::Bool(true)),
        ])
        .unwrap();
        assert_eq!(draft.correlation_id, CorrelationId::Text("s".into()));
        assert_eq!(draft.sequence_flags, SEQUENCE_END);
    }

    #[test]
    fn wrong_parameters_have_upstreams_words() {
        let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting \
                        with 'triton_' are allowed: triton_enable_empty_final_response";
        let table = [
            (
                ("sequence_id", Choice::Bool(true)),
                "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
            ),
            (
                ("sequence_start", Choice::Int(1)),
                "invalid value type for 'sequence_start' parameter, expected bool_param.",
            ),
            (
                ("sequence_end", Choice::Missing),
                "invalid value type for 'sequence_end' parameter, expected bool_param.",
            ),
            (
                ("priority", Choice::Text("1")),
                "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
            ),
            (
                ("priority", Choice::Int(-1)),
                "invalid value for 'priority', expected value >= 0.",
            ),
            (
                ("timeout", Choice::Uint(1)),
                "invalid value type for 'timeout' parameter, expected int64_param.",
            ),
            (("triton_other", Choice::Int(1)), reserved),
            (
                ("triton_enable_empty_final_response", Choice::Int(1)),
                "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
            ),
            (
                ("custom", Choice::Uint(1)),
                "invalid value type for 'custom' parameter, expected int64_param, bool_param, or string_param.",
            ),
        ];
        for (parameter, expected) in table {
            assert_eq!(applied(&[parameter]).unwrap_err(), expected);
        }
    }

    #[test]
    fn output_parameters() {
        let check = |parameters: &[(&'static str, Choice<'static>)]| {
            let parameters = parameters.iter().copied().collect();
            check_output(&RequestedOutput {
                name: "OUT",
                parameters,
            })
            .map(|wish| match wish {
                Wish::Nothing => (None, None),
                Wish::Classes(count) => (Some(count), None),
                Wish::Region(part) => (None, Some(part.region)),
            })
            .map_err(|status| (status.code, status.message.into_owned()))
        };
        let region = ("shared_memory_region", Choice::Text("r"));
        let size = ("shared_memory_byte_size", Choice::Int(4));
        type Row<'a> = (&'a [(&'static str, Choice<'static>)], Code, &'a str);
        let table: &[Row<'_>] = &[
            (
                &[("classification", Choice::Bool(true))],
                Code::InvalidArgument,
                "invalid value type for 'classification' parameter, expected int64_param",
            ),
            (
                &[("classification", Choice::Int(0))],
                Code::InvalidArgument,
                "invalid value for 'classification' parameter, expected >= 0",
            ),
            (
                &[region, size, ("classification", Choice::Int(1))],
                Code::InvalidArgument,
                "output can't set both 'shared_memory_region' and 'classification'",
            ),
            (
                &[region],
                Code::InvalidArgument,
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'OUT'",
            ),
            (
                &[size],
                Code::InvalidArgument,
                "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'OUT'",
            ),
            (
                &[("shared_memory_offset", Choice::Int(4))],
                Code::InvalidArgument,
                "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'OUT'",
            ),
            (
                &[("shared_memory_region", Choice::Int(1))],
                Code::InvalidArgument,
                "invalid value type for 'shared_memory_region' parameter for tensor 'OUT', expected string_param.",
            ),
            (
                &[region, ("shared_memory_offset", Choice::Text("1")), size],
                Code::InvalidArgument,
                "invalid value type for 'shared_memory_offset' parameter for tensor 'OUT', expected int64_param.",
            ),
        ];
        for (parameters, code, message) in table {
            assert_eq!(check(parameters), Err((*code, (*message).to_owned())));
        }
        assert_eq!(check(&[("other", Choice::Int(1))]), Ok((None, None)));
        let three = [("classification", Choice::Int(3))];
        assert_eq!(check(&three), Ok((Some(3), None)));
        let huge = [("classification", Choice::Int(i64::MAX))];
        assert_eq!(check(&huge), Ok((Some(u32::MAX), None)));
        assert_eq!(check(&[region, size]), Ok((None, Some("r"))));
    }
}
