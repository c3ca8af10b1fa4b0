//! The tensors that tell a model where in its sequence a request is.

use std::sync::Arc;

use conch_config::{Controls, DataType, FlagControl, IdControl, SequenceBatching};
use conch_memory::ByteView;
use smallvec::smallvec;

use crate::request::context::Request;
use crate::request::correlation_id::CorrelationId;
use crate::tensor::{Input, Shape};

/// The control inputs of a model, made once.
#[derive(Debug)]
pub(crate) struct ControlInputs {
    start: Option<[Input; 2]>,
    end: Option<[Input; 2]>,
    ready: Option<[Input; 2]>,
    correlation_id: Option<IdControl>,
    /// Of each of them: one element, with the batch dimension of a batching model.
    shape: Shape,
}

impl ControlInputs {
    pub(crate) fn new(settings: &SequenceBatching, is_batching: bool) -> ControlInputs {
        let Controls {
            start,
            end,
            ready,
            correlation_id,
        } = &settings.controls;
        let shape: Shape = std::iter::repeat_n(1, if is_batching { 2 } else { 1 }).collect();
        let pair = |control: &Option<FlagControl>| {
            let control = control.as_ref()?;
            let value = |bytes: &Vec<u8>| {
                let (name, bytes) = (Arc::clone(&control.name), ByteView::copy_of(bytes));
                tensor(name, control.data_type, &shape, bytes)
            };
            Some(control.values.each_ref().map(value))
        };
        ControlInputs {
            start: pair(start),
            end: pair(end),
            ready: pair(ready),
            correlation_id: correlation_id.clone(),
            shape,
        }
    }

    /// Adds them to a request of a sequence.
    pub(crate) fn attach(&self, request: &mut Request) {
        let flags = request.sequence_flags;
        self.set(request, [flags.is_start(), flags.is_end(), true]);
        if let Some(control) = &self.correlation_id {
            let bytes = id_bytes(&request.correlation_id, control.data_type);
            self.set_id(request, control, &bytes);
        }
    }

    /// Adds them to a request that only fills a row: it is not ready, and has no id.
    pub(crate) fn attach_to_null(&self, request: &mut Request) {
        self.set(request, [false; 3]);
        if let Some(control) = &self.correlation_id {
            let bytes = id_bytes(&CorrelationId::default(), control.data_type);
            self.set_id(request, control, &bytes);
        }
    }

    fn set(&self, request: &mut Request, values: [bool; 3]) {
        for (pair, value) in [&self.start, &self.end, &self.ready]
            .into_iter()
            .zip(values)
        {
            if let Some([off, on]) = pair {
                put(request, if value { on } else { off }.clone());
            }
        }
    }

    fn set_id(&self, request: &mut Request, control: &IdControl, bytes: &[u8]) {
        let (name, bytes) = (Arc::clone(&control.name), ByteView::copy_of(bytes));
        put(request, tensor(name, control.data_type, &self.shape, bytes));
    }
}

fn tensor(name: Arc<str>, data_type: DataType, shape: &Shape, bytes: ByteView) -> Input {
    Input {
        name,
        data_type,
        shape: shape.clone(),
        byte_size: bytes.len() as u64,
        chunks: smallvec![bytes],
    }
}

/// Adds `input`, in place of one of its name that an earlier run of the request has.
fn put(request: &mut Request, input: Input) {
    let own = request.inputs.iter_mut().find(|own| own.name == input.name);
    match own {
        Some(own) => *own = input,
        None => request.inputs.push(input),
    }
}

/// The id as one element: a narrower number has the low bytes of the id, as upstream's.
fn id_bytes(id: &CorrelationId, data_type: DataType) -> Vec<u8> {
    let text = match id {
        CorrelationId::Unsigned(number) if data_type != DataType::Bytes => {
            let mut bytes = number.to_le_bytes().to_vec();
            bytes.truncate(data_type.element_bytes().unwrap_or(bytes.len()));
            return bytes;
        }
        // Admission sees to it that ids have the type of their control; a null request has none.
        CorrelationId::Unsigned(_) => "",
        CorrelationId::Text(text) => text,
    };
    // At most 128 characters of 4 bytes.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_cut_to_their_type() {
        let id = CorrelationId::Unsigned(0x0102_0304_0506_0708);
        let text = CorrelationId::Text("sé".into());
        for (id, data_type, expected) in [
            (&id, DataType::Uint64, &[8, 7, 6, 5, 4, 3, 2, 1][..]),
            (&id, DataType::Int64, &[8, 7, 6, 5, 4, 3, 2, 1]),
            (&id, DataType::Uint32, &[8, 7, 6, 5]),
            (&id, DataType::Int32, &[8, 7, 6, 5]),
            (&text, DataType::Bytes, b"\x03\0\0\0s\xc3\xa9"),
            (&CorrelationId::default(), DataType::Bytes, &[0; 4]),
        ] {
            assert_eq!(id_bytes(id, data_type), expected, "{id:?} {data_type:?}");
        }
    }
}
