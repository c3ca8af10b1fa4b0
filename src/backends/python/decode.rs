//! What a stub answers, checked: messages, and tensors in its segment.

use std::ffi::CString;
use std::ops::Range;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use conch_python_ipc::SharedSegment;
use conch_python_ipc::wire::{self, Malformed, MessageReader, TensorPlace, TensorRow};
use sdk::serde_json::{self, Map, Value};
use sdk::{Code, DataType, Error, Outgoing, TensorBytes, TensorMemory, element_count};
use serde::Deserialize;

use crate::devices::{DeviceOutput, StubDevices};
use crate::process::{LentBlock, Reply, StubProcess};
use crate::shared_tensor;

/// The reply to a command that is not to execute requests: what it was asked for, or an error.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CommandReply {
    #[serde(rename = "e")]
    pub(crate) error: Option<(i64, String)>,
    /// To `complete`.
    pub(crate) config: Option<Value>,
    /// To `initialize`: whether the model has `is_ready`.
    #[serde(default)]
    pub(crate) is_ready: bool,
}

/// What became of one request.
#[derive(Debug)]
pub(crate) enum ResponseRow<'m> {
    Response(ResponseMessage<'m>),
    /// It is to be executed again.
    Again,
    /// Its sender answers it.
    Later,
}

/// A response as a stub writes it.
#[derive(Debug)]
pub(crate) enum ResponseMessage<'m> {
    Error(Error),
    Outputs {
        outputs: Vec<TensorRow<'m>>,
        /// JSON.
        parameters: &'m str,
    },
}

/// A response that a stub posted, or the end of its request.
#[derive(Debug)]
pub(crate) struct SendMessage<'m> {
    /// Of the request.
    pub(crate) number: u64,
    pub(crate) flags: u32,
    pub(crate) response: Option<ResponseMessage<'m>>,
}

/// Where the outputs of a message may lie.
pub(crate) struct OutputPlaces<'p> {
    /// The stub's, with the message.
    pub(crate) segment: &'p SharedSegment,
    /// Where the tensors of the message begin.
    pub(crate) tensors_at: u64,
    /// Ours, and the inputs of the requests that are answered.
    pub(crate) inputs: Option<(&'p SharedSegment, Range<u64>)>,
    /// Whose block the tensors lie in, if the server may send them from there.
    pub(crate) lender: Option<Lender<'p>>,
    /// Those of the stub's process.
    pub(crate) devices: Option<&'p StubDevices>,
}

/// A reply, and its process.
#[derive(Clone, Copy)]
pub(crate) struct Lender<'p> {
    pub(crate) process: &'p Arc<StubProcess>,
    pub(crate) reply: &'p Reply<'p>,
}

impl CommandReply {
    /// # Errors
    /// `Internal` if the text is no reply; the stub's error.
    pub(crate) fn parse(text: &[u8]) -> Result<CommandReply, Error> {
        let reply: CommandReply =
            serde_json::from_slice(text).map_err(|error| malformed(&error))?;
        match reply.error {
            Some(error) => Err(stub_error(error)),
            None => Ok(reply),
        }
    }
}

fn malformed(error: &dyn std::fmt::Display) -> Error {
    Error::internal(format!("the Python stub sent a malformed reply: {error}"))
}

/// The rows of the reply to the command to execute `count` requests.
///
/// # Errors
/// `Internal` if the message is no such reply; the stub's error.
pub(crate) fn reply_rows(message: &[u8], count: usize) -> Result<Vec<ResponseRow<'_>>, Error> {
    if message.first() != Some(&wire::REPLY) {
        // An error of all; what is none is no reply.
        CommandReply::parse(message)?;
        return Err(malformed(&Malformed));
    }
    let mut reader = MessageReader::new(message);
    let malformed = |error| malformed(&error);
    let _kind = reader.byte();
    let answered = reader.count().map_err(malformed)?;
    // Before anything is made of them: they are as many as the stub says.
    if answered != count {
        return Err(Error::internal(format!(
            "the Python stub answered {answered} of {count} requests"
        )));
    }
    let rows = (0..count).map(|_| ResponseRow::read(&mut reader));
    rows.collect::<Result<_, _>>().map_err(malformed)
}

impl<'m> ResponseRow<'m> {
    /// As [`ResponseMessage::is_awaited`].
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self, ResponseRow::Response(response) if response.is_awaited())
    }

    /// Bytes of its outputs, as the stub says.
    pub(crate) fn output_bytes(&self) -> u64 {
        match self {
            ResponseRow::Response(ResponseMessage::Outputs { outputs, .. }) => outputs
                .iter()
                .map(|row| row.bytes)
                .fold(0, u64::saturating_add),
            _ => 0,
        }
    }

    fn read(reader: &mut MessageReader<'m>) -> Result<ResponseRow<'m>, Malformed> {
        match reader.byte()? {
            wire::ROW_LATER => Ok(ResponseRow::Later),
            wire::ROW_AGAIN => Ok(ResponseRow::Again),
            wire::ROW_RESPONSE => ResponseMessage::read(reader).map(ResponseRow::Response),
            _ => Err(Malformed),
        }
    }
}

impl<'m> SendMessage<'m> {
    /// # Errors
    /// If the message is none.
    pub(crate) fn read(message: &'m [u8]) -> Result<SendMessage<'m>, Malformed> {
        let mut reader = MessageReader::new(message);
        reader.byte()?;
        Ok(SendMessage {
            number: reader.u64()?,
            flags: reader.u32()?,
            response: match reader.flag()? {
                true => Some(ResponseMessage::read(&mut reader)?),
                false => None,
            },
        })
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

impl<'m> ResponseMessage<'m> {
    fn read(reader: &mut MessageReader<'m>) -> Result<ResponseMessage<'m>, Malformed> {
        if reader.flag()? {
            let code = i64::from(reader.u32()?);
            let error = stub_error((code, reader.text()?.to_owned()));
            return Ok(ResponseMessage::Error(error));
        }
        let parameters = reader.text()?;
        let count = reader.count()?;
        let outputs = (0..count)
            .map(|_| reader.tensor())
            .collect::<Result<_, _>>()?;
        Ok(ResponseMessage::Outputs {
            outputs,
            parameters,
        })
    }

    /// Whether the stub waits until it has its block back, since outputs lie on GPUs.
    pub(crate) fn is_awaited(&self) -> bool {
        match self {
            ResponseMessage::Error(_) => false,
            ResponseMessage::Outputs { outputs, .. } => {
                let is_on_device =
                    |row: &TensorRow<'_>| matches!(row.place, TensorPlace::Device(_));
                outputs.iter().any(is_on_device)
            }
        }
    }

    /// Puts the outputs and parameters into a response.
    ///
    /// # Errors
    /// The stub's error; `Internal` for a tensor that cannot be; whatever the server reports.
    pub(crate) fn fill(
        &self,
        response: &mut Outgoing,
        places: &OutputPlaces<'_>,
    ) -> Result<(), Error> {
        let (outputs, parameters) = match self {
            ResponseMessage::Error(error) => return Err(error.clone()),
            ResponseMessage::Outputs {
                outputs,
                parameters,
            } => (outputs, *parameters),
        };
        check_sum(outputs.iter().map(|row| row.bytes), places.segment)?;
        let lent = places.lend(outputs);
        for row in outputs {
            let name = row.name;
            let wrong = |what: &str| Error::internal(format!("output '{name}': {what}"));
            let data_type =
                DataType::from_number(row.data_type).ok_or_else(|| wrong("no data type"))?;
            let shape: Vec<i64> = row.dims.iter().collect();
            check_size(data_type, &shape, row.bytes).map_err(&wrong)?;
            let name = CString::new(name).map_err(|_| wrong("its name has a NUL"))?;
            if let (TensorPlace::Device(place), Some(devices)) = (row.place, places.devices) {
                let output = DeviceOutput {
                    name: &name,
                    data_type,
                    shape: &shape,
                    bytes: row.bytes,
                };
                devices.copy_output(response, &output, place)?;
                continue;
            }
            let source = places.bytes(row);
            let source = source.ok_or_else(|| wrong("it lies outside of the shared memory"))?;
            let lent = lent
                .as_ref()
                .filter(|_| data_type.element_bytes().is_some())
                .and_then(|block| places.memory(row, block));
            if let Some(memory) = lent {
                response.output_from(&name, data_type, &shape, memory)?;
                continue;
            }
            let mut buffer = response.output(&name, data_type, &shape, source.len())?;
            buffer.write(source)?;
        }
        match parameters {
            "" => Ok(()),
            parameters => set_parameters(response, parameters),
        }
    }
}

/// Smaller outputs are copied: servers copy them as well before they send them.
const LENT_BYTES_MIN: u64 = 64 << 10;

impl<'p> OutputPlaces<'p> {
    /// The block of the message, if outputs are large enough to be sent from there.
    fn lend(&self, outputs: &[TensorRow<'_>]) -> Option<Arc<LentBlock>> {
        let is_lent = |row: &&TensorRow<'_>| {
            row.bytes >= LENT_BYTES_MIN && matches!(row.place, TensorPlace::Behind(_))
        };
        let bytes = outputs.iter().filter(is_lent).map(|row| row.bytes).sum();
        let lender = self.lender.filter(|_| bytes > 0)?;
        lender.reply.lend(lender.process, bytes)
    }

    /// The bytes of an output in the block of the message, to be sent from there.
    fn memory(&self, row: &TensorRow<'_>, block: &Arc<LentBlock>) -> Option<TensorMemory> {
        let TensorPlace::Behind(offset) = row.place else {
            return None;
        };
        let at = self.tensors_at.checked_add(offset)?;
        let owner = Arc::clone(block) as _;
        let is_lent = row.bytes >= LENT_BYTES_MIN;
        is_lent
            .then(|| shared_tensor::memory(self.segment, at, row.bytes, owner))
            .flatten()
    }

    pub(crate) fn bytes(&self, row: &TensorRow<'_>) -> Option<TensorBytes<'p>> {
        match row.place {
            TensorPlace::Behind(offset) => {
                let at = self.tensors_at.checked_add(offset)?;
                shared_tensor::bytes(self.segment, at, row.bytes)
            }
            TensorPlace::Receivers(offset) => {
                let (segment, inputs) = self.inputs.as_ref()?;
                let end = offset.checked_add(row.bytes)?;
                let is_inside = inputs.start <= offset && end <= inputs.end;
                match is_inside {
                    true => shared_tensor::bytes(segment, offset, row.bytes),
                    false => None,
                }
            }
            TensorPlace::Senders { .. } | TensorPlace::Device(_) => None,
        }
    }
}

fn set_parameters(response: &mut Outgoing, parameters: &str) -> Result<(), Error> {
    let parameters: Map<String, Value> =
        serde_json::from_str(parameters).map_err(|error| malformed(&error))?;
    for (name, value) in &parameters {
        let key = CString::new(name.as_str())
            .map_err(|_| Error::internal("the name of a response parameter has a NUL"))?;
        match value {
            Value::String(text) => response.set_text(&key, text)?,
            Value::Bool(flag) => response.set_boolean(&key, *flag)?,
            Value::Number(number) => match number.as_i64() {
                Some(number) => response.set_integer(&key, number)?,
                None => response.set_double_if_known(&key, number.as_f64().unwrap_or_default())?,
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

/// Whether tensors of one message can lie beside each other: what is copied of them has a bound.
///
/// # Errors
/// `Internal` if they have more bytes than the segment.
pub(crate) fn check_sum(
    bytes: impl Iterator<Item = u64>,
    segment: &SharedSegment,
) -> Result<(), Error> {
    let mut bytes = bytes;
    match bytes.try_fold(0, u64::checked_add) {
        Some(sum) if sum <= segment.len() => Ok(()),
        _ => Err(Error::internal(
            "the tensors of a message have more bytes than the shared memory",
        )),
    }
}

/// Whether so many bytes are what a tensor has.
fn check_size(data_type: DataType, shape: &[i64], bytes: u64) -> Result<(), &'static str> {
    if shape.len() > wire::RANK_MAX {
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
    use conch_python_ipc::wire::MessageWriter;

    use super::*;

    fn reply() -> Vec<u8> {
        let mut message = MessageWriter::new(wire::REPLY);
        message.u32(4);
        message.byte(wire::ROW_RESPONSE);
        message.byte(0);
        message.text(r#"{"a":1}"#);
        message.u32(1);
        message.tensor("OUT", 11, &[1, 2], TensorPlace::Behind(0), 8);
        message.byte(wire::ROW_LATER);
        message.byte(wire::ROW_AGAIN);
        message.byte(wire::ROW_RESPONSE);
        message.byte(1);
        message.u32(7);
        message.text("gone");
        message.bytes().to_vec()
    }

    #[test]
    fn replies_are_read() {
        let message = reply();
        let rows = reply_rows(&message, 4).unwrap();
        let [first, second, third, fourth] = &*rows else {
            panic!("{rows:?}");
        };
        let ResponseRow::Response(ResponseMessage::Outputs {
            outputs,
            parameters,
        }) = first
        else {
            panic!("{first:?}");
        };
        assert_eq!((outputs.len(), outputs[0].name), (1, "OUT"));
        assert_eq!(*parameters, r#"{"a":1}"#);
        assert!(matches!(second, ResponseRow::Later));
        assert!(matches!(third, ResponseRow::Again));
        let ResponseRow::Response(ResponseMessage::Error(error)) = fourth else {
            panic!("{fourth:?}");
        };
        assert_eq!((error.code(), error.message()), (Code::Cancelled, "gone"));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let whole = reply();
        let cut: Vec<&[u8]> = (0..whole.len()).map(|len| &whole[..len]).collect();
        for message in cut {
            let error = reply_rows(message, 4).unwrap_err().to_string();
            assert!(error.contains("malformed reply"), "{error}");
        }
        for (message, count, expected) in [
            (&whole[..], 5, "answered 4 of 5 requests"),
            (br#"{"e":[5,"not so"]}"#, 4, "not so"),
            (b"{}", 4, "malformed reply"),
            (b"\xff\xff", 4, "malformed reply"),
        ] {
            let error = reply_rows(message, count).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn outputs_lie_behind_the_message_or_among_the_inputs() {
        let stubs = SharedSegment::create("stub", 1 << 20).unwrap();
        let ours = SharedSegment::create("ours", 1 << 20).unwrap();
        let places = OutputPlaces {
            segment: &stubs,
            tensors_at: 1 << 16,
            inputs: Some((&ours, 4096..8192)),
            lender: None,
            devices: None,
        };
        let end = 1 << 20;
        for (place, bytes, is_there) in [
            (TensorPlace::Behind(0), 8, true),
            (TensorPlace::Behind(end - (1 << 16)), 1, false),
            (TensorPlace::Behind(u64::MAX), 1, false),
            (TensorPlace::Behind(0), u64::MAX, false),
            (TensorPlace::Receivers(4096), 4096, true),
            (TensorPlace::Receivers(4095), 1, false),
            (TensorPlace::Receivers(4096), 4097, false),
            (TensorPlace::Receivers(u64::MAX), 1, false),
            (
                TensorPlace::Senders {
                    block: 4096,
                    offset: 4096,
                },
                1,
                false,
            ),
        ] {
            let mut message = MessageWriter::new(wire::REPLY);
            message.tensor("OUT", 1, &[1], place, bytes);
            let mut reader = MessageReader::new(message.bytes());
            reader.byte().unwrap();
            let row = reader.tensor().unwrap();
            assert_eq!(places.bytes(&row).is_some(), is_there, "{place:?} {bytes}");
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
