//! From a response to a flat JSON object: members by name, an output of one element without
//! brackets.

use conch_engine::{Code, Error, Output, ParameterValue, Response};
use conch_memory::try_reserve;
use smallvec::SmallVec;

use crate::http::infer::encode::{element_count, text_bytes, write_data, write_parameter};
use crate::http::json::write;

/// What stands before and behind the JSON of a server-sent event.
const EVENT_HEAD: &[u8] = b"data: ";
const EVENT_TAIL: &[u8] = b"\n\n";

/// A member of the object.
enum ObjectMember<'a> {
    Text(&'a str),
    Version(i64),
    Parameter(&'a ParameterValue),
    Output(&'a Output),
}

/// Appends the object of `outcome`, which answers the request `id`: an error's if it is one, or if
/// the response has no JSON form. Returns the error's code.
pub(super) fn write_object(
    target: &mut Vec<u8>,
    outcome: &Result<Response, Error>,
    id: &str,
) -> Option<Code> {
    let start = target.len();
    let written = match outcome {
        Ok(response) => write_response(target, response, id),
        Err(error) => Err(error.clone()),
    };
    let error = written.err()?;
    target.truncate(start);
    write_error(target, &error);
    Some(error.code)
}

/// [`write_object`] as a server-sent event.
pub(super) fn write_event(
    target: &mut Vec<u8>,
    outcome: &Result<Response, Error>,
    id: &str,
) -> Option<Code> {
    target.extend_from_slice(EVENT_HEAD);
    let code = write_object(target, outcome, id);
    target.extend_from_slice(EVENT_TAIL);
    code
}

/// Appends `{"error":"<message>"}`.
pub(super) fn write_error(target: &mut Vec<u8>, error: &Error) {
    target.extend_from_slice(b"{\"error\":");
    write::string(target, error.message.as_bytes());
    target.push(b'}');
}

fn write_response(target: &mut Vec<u8>, response: &Response, id: &str) -> Result<(), Error> {
    try_reserve(target, text_bytes(id, response))?;
    let mut members: SmallVec<[(&str, ObjectMember<'_>); 8]> = SmallVec::new();
    if !id.is_empty() {
        members.push(("id", ObjectMember::Text(id)));
    }
    members.push(("model_name", ObjectMember::Text(&response.model.name)));
    members.push((
        "model_version",
        ObjectMember::Version(response.model.version),
    ));
    members.extend(
        response
            .parameters
            .iter()
            .map(|parameter| (&*parameter.name, ObjectMember::Parameter(&parameter.value))),
    );
    members.extend(
        response
            .outputs
            .iter()
            .map(|output| (&*output.name, ObjectMember::Output(output))),
    );
    // Of two with one name the first counts, and the sort keeps their order.
    members.sort_by_key(|(name, _)| *name);
    members.dedup_by_key(|(name, _)| *name);
    for (index, (name, member)) in members.iter().enumerate() {
        target.push(if index == 0 { b'{' } else { b',' });
        write::string(target, name.as_bytes());
        target.push(b':');
        match member {
            ObjectMember::Text(text) => write::string(target, text.as_bytes()),
            ObjectMember::Version(version) => {
                target.push(b'"');
                write::signed(target, *version);
                target.push(b'"');
            }
            ObjectMember::Parameter(value) => write_parameter(target, value),
            ObjectMember::Output(output) if element_count(output)? == 1 => {
                write_data(target, output)?
            }
            ObjectMember::Output(output) => {
                target.push(b'[');
                write_data(target, output)?;
                target.push(b']');
            }
        }
    }
    target.push(b'}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use conch_config::{DataType, ResolvedConfig, normalize, parse_text};
    use conch_engine::{Parameter, ResponseParts};
    use conch_memory::ByteView;

    use super::*;

    const CONFIG: &str = r#"
        name: "m" backend: "b"
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
    "#;

    fn output(name: &str, data_type: DataType, shape: &[i64], bytes: &[u8]) -> Output {
        Output {
            name: name.into(),
            data_type,
            shape: shape.iter().copied().collect(),
            data: ByteView::copy_of(bytes),
        }
    }

    fn written(
        outputs: Vec<Output>,
        parameters: Vec<Parameter>,
        id: &str,
    ) -> (String, Option<Code>) {
        let mut message = parse_text("config.pbtxt", CONFIG).unwrap();
        normalize(&mut message);
        let config = ResolvedConfig::from_message(message).unwrap();
        let response = Response::from(ResponseParts {
            model: conch_engine::testing::version("m", 3, &Arc::new(config)),
            outputs: outputs.into_iter().collect(),
            parameters,
        });
        let mut text = b"before ".to_vec();
        let code = write_event(&mut text, &Ok(response), id);
        let text = String::from_utf8(text).unwrap();
        let text = text.strip_prefix("before data: ").unwrap();
        (text.strip_suffix("\n\n").unwrap().to_owned(), code)
    }

    #[test]
    fn members_stand_in_order() {
        let outputs = || {
            vec![
                output("z", DataType::Int8, &[1, 1], &[255]),
                output("A", DataType::Uint8, &[2], &[1, 2]),
                output("scalar", DataType::Bool, &[], &[1]),
                output("none", DataType::Fp32, &[0, 4], &[]),
                output("text", DataType::Bytes, &[1], b"\x02\0\0\0\"\n"),
                // Taken already.
                output("id", DataType::Int8, &[1], &[7]),
                output("p", DataType::Int8, &[1], &[7]),
            ]
        };
        let parameters = vec![Parameter {
            name: "p".into(),
            value: ParameterValue::Double(0.5),
        }];
        assert_eq!(
            written(outputs(), parameters, "r").0,
            concat!(
                r#"{"A":[1,2],"id":"r","model_name":"m","model_version":"3","none":[],"#,
                r#""p":0.5,"scalar":true,"text":"\"\n","z":-1}"#
            )
        );
        assert!(written(outputs(), Vec::new(), "").0.contains(r#""id":7"#));
    }

    #[test]
    fn what_has_no_json_form_is_an_error() {
        for (bad, code, message) in [
            (
                output("H", DataType::Fp16, &[1], &[0, 0]),
                Code::InvalidArg,
                "sending FP16 data via JSON is not supported. Please use the binary data format \
                 for output",
            ),
            (
                output("S", DataType::Fp32, &[2], &[0; 4]),
                Code::Internal,
                "Failed to write 'data' field: output tensor shape does not match size of output \
                 for 'S'",
            ),
            (
                output("S", DataType::Bytes, &[-1], &[]),
                Code::Internal,
                "Failed to write 'data' field: output tensor shape does not match size of output \
                 for 'S'",
            ),
        ] {
            let good = output("A", DataType::Uint8, &[1], &[1]);
            let expected = (format!(r#"{{"error":"{message}"}}"#), Some(code));
            assert_eq!(written(vec![good, bad], Vec::new(), "r"), expected);
        }
    }
}
