//! What a stub answers, checked: texts, and tensors in its segment.

use std::ffi::CString;

use conch_backend_sdk as sdk;
use conch_python_ipc::SharedSegment;
use sdk::serde_json::Value;
use sdk::{Code, DataType, Error, Outgoing, element_count};
use serde::Deserialize;

use crate::shared_tensor;

/// Dimensions that a tensor of a stub's may have.
const RANK_MAX: usize = 64;

/// The reply to a command: what it was asked for, or an error.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CommandReply {
    #[serde(rename = "e")]
    pub(crate) error: Option<(i64, String)>,
    /// To `complete`.
    pub(crate) config: Option<Value>,
    /// To `initialize`: whether the model has `is_ready`.
    #[serde(default)]
    pub(crate) is_ready: bool,
    /// To `execute`: one for each request.
    #[serde(rename = "r", default)]
    pub(crate) responses: Vec<ResponseRow>,
}

/// What became of one request.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ResponseRow {
    Response(ResponseText),
    Mark(Mark),
    /// Its sender answers it.
    Later(()),
}

/// What a stub says of a request in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mark {
    /// It is to be executed again.
    Again,
}

/// A response as a stub writes it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ResponseText {
    #[serde(rename = "e")]
    pub(crate) error: Option<(i64, String)>,
    #[serde(rename = "o", default)]
    pub(crate) outputs: Vec<TensorRow>,
    #[serde(rename = "p", default)]
    parameters: serde_json::Map<String, Value>,
}

/// Name, data type, shape, offset behind the message, bytes.
pub(crate) type TensorRow = (String, u32, Vec<i64>, u64, u64);

impl CommandReply {
    /// # Errors
    /// `Internal` if the text is no reply; the stub's error.
    pub(crate) fn parse(text: &[u8]) -> Result<CommandReply, Error> {
        let reply: CommandReply = serde_json::from_slice(text).map_err(|error| {
            Error::internal(format!("the Python stub sent a malformed reply: {error}"))
        })?;
        match reply.error {
            Some(error) => Err(stub_error(error)),
            None => Ok(reply),
        }
    }
}

/// An error of a stub's.
pub(crate) fn stub_error((code, message): (i64, String)) -> Error {
    let code = match code {
        1 => Code::Internal,
        2 => Code::NotFound,
        3 => Code::InvalidArgument,
        4 => Code::Unavailable,
        5 => Code::Unsupported,
        6 => Code::AlreadyExists,
        7 => Code::Cancelled,
        _ => Code::Unknown,
    };
    Error::new(code, message)
}

impl ResponseText {
    /// Puts the outputs and parameters into a response. The tensors lie in `segment`, from
    /// `tensors_at` on.
    ///
    /// # Errors
    /// `Internal` for a tensor that cannot be; whatever the server reports.
    pub(crate) fn fill(
        &self,
        response: &mut Outgoing,
        segment: &SharedSegment,
        tensors_at: u64,
    ) -> Result<(), Error> {
        for (name, number, shape, offset, bytes) in &self.outputs {
            let wrong = |what: &str| Error::internal(format!("output '{name}': {what}"));
            let data_type = DataType::from_number(*number).ok_or_else(|| wrong("no data type"))?;
            check_size(data_type, shape, *bytes).map_err(&wrong)?;
            let at = tensors_at.checked_add(*offset);
            let source = at.and_then(|at| shared_tensor::bytes(segment, at, *bytes));
            let source = source.ok_or_else(|| wrong("it lies outside of the shared memory"))?;
            let name = CString::new(name.as_str()).map_err(|_| wrong("its name has a NUL"))?;
            let mut buffer = response.output(&name, data_type, shape, source.len())?;
            buffer.write(source)?;
        }
        for (name, value) in &self.parameters {
            let key = CString::new(name.as_str())
                .map_err(|_| Error::internal("the name of a response parameter has a NUL"))?;
            match value {
                Value::String(text) => response.set_text(&key, text)?,
                Value::Bool(flag) => response.set_boolean(&key, *flag)?,
                Value::Number(number) => match number.as_i64() {
                    Some(number) => response.set_integer(&key, number)?,
                    None => {
                        response.set_double_if_known(&key, number.as_f64().unwrap_or_default())?
                    }
                },
                _ => {
                    return Err(Error::invalid(format!(
                        "response parameter '{name}' is neither text nor number nor truth value"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Whether so many bytes are what a tensor has.
fn check_size(data_type: DataType, shape: &[i64], bytes: u64) -> Result<(), &'static str> {
    if shape.len() > RANK_MAX {
        return Err("it has too many dimensions");
    }
    let Some(element_bytes) = data_type.element_bytes() else {
        return Ok(());
    };
    let count = element_count(shape).ok_or("its shape makes no tensor")?;
    let expected = (count as u64).checked_mul(element_bytes as u64);
    match expected == Some(bytes) {
        true => Ok(()),
        false => Err("its bytes do not agree with its shape"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        let reply = CommandReply::parse(
            br#"{"r":[{"o":[["OUT",11,[1,2],0,8]],"p":{"a":1}},null,"again",{"e":[7,"gone"]}]}"#,
        )
        .unwrap();
        let [first, second, third, fourth] = &*reply.responses else {
            panic!("{reply:?}");
        };
        let ResponseRow::Response(first) = first else {
            panic!("{first:?}");
        };
        assert_eq!(first.outputs, [("OUT".to_owned(), 11, vec![1, 2], 0, 8)]);
        assert_eq!(first.parameters["a"], 1);
        assert!(matches!(second, ResponseRow::Later(())));
        assert!(matches!(third, ResponseRow::Mark(Mark::Again)));
        let ResponseRow::Response(fourth) = fourth else {
            panic!("{fourth:?}");
        };
        assert_eq!(fourth.error, Some((7, "gone".to_owned())));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for (text, expected) in [
            (&br#"{"e":[5,"not so"]}"#[..], "not so"),
            (b"", "malformed reply"),
            (b"\xff\xff", "malformed reply"),
            (br#"{"r":[1]}"#, "malformed reply"),
            (br#"{"r":[{"o":[["OUT",11,[1],-1,8]]}]}"#, "malformed reply"),
            (br#"{"r":[{"o":[["OUT",11]]}]}"#, "malformed reply"),
        ] {
            let error = CommandReply::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn sizes_agree_with_shapes() {
        for (data_type, shape, bytes, is_right) in [
            (DataType::Fp32, &[2, 3][..], 24, true),
            (DataType::Fp32, &[2, 3], 23, false),
            (DataType::Fp32, &[], 4, true),
            (DataType::Fp32, &[0, 5], 0, true),
            (DataType::Fp32, &[-1], 4, false),
            (DataType::Int64, &[i64::MAX, i64::MAX], 8, false),
            (DataType::Bytes, &[2], 100, true),
            (DataType::Bytes, &[1; 65], 4, false),
        ] {
            let found = check_size(data_type, shape, bytes);
            assert_eq!(found.is_ok(), is_right, "{data_type:?} {shape:?} {bytes}");
        }
    }
}
