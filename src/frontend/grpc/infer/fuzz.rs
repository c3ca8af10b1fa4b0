//! What the fuzz targets of gRPC do with their input.

use std::sync::Arc;

use conch_config::DataType;
use conch_memory::{Budget, Pool};
use conch_proto::Message;
use conch_proto::inference::ModelInferRequest;
use futures_util::FutureExt;

use super::contents::{self, ContentsInput};
use super::message::{InferHead, InferTarget};
use super::reader::{CompleteMessage, MessageReader};
use crate::grpc::wire::{FieldReader, FieldValue};

const TENSORS_MAX: usize = 64;
/// Field numbers: of parameters, in messages and in inputs, and of inputs.
const PARAMETERS: u32 = 4;
const INPUT: u32 = 5;

/// A ModelInferRequest as it arrives, in pieces of `piece_bytes`.
///
/// # Panics
/// If pieces make another message than the whole, or prost reads another one.
pub fn grpc_infer(message: &[u8], piece_bytes: usize) {
    let (pool, budget) = (Pool::new(1 << 20), Budget::new(1 << 30));
    let read = |piece_bytes| {
        let mut reader = MessageReader::new(&pool, &budget, message.len());
        let mut pieces = message.chunks(piece_bytes);
        pieces.try_for_each(|piece| reader.feed(piece)).ok()?;
        reader.finish().ok()
    };
    let whole = read(message.len().max(1));
    let parts = |read: &Option<CompleteMessage>| {
        let read = read.as_ref()?;
        let raws = read.raws.iter().map(|raw| raw.as_ref().to_vec());
        Some((read.head.clone(), raws.collect::<Vec<_>>()))
    };
    assert_eq!(parts(&read(piece_bytes.max(1))), parts(&whole));
    let Some((head, raws)) = parts(&whole) else {
        return;
    };
    let (Ok(target), Ok(read)) = (
        InferTarget::read(&head),
        InferHead::read(&head, TENSORS_MAX, TENSORS_MAX),
    ) else {
        return;
    };
    if has_sound_maps(message)
        && let Ok(expected) = ModelInferRequest::decode(message)
    {
        assert_eq!(target.model_name, expected.model_name);
        assert_eq!(target.model_version, expected.model_version);
        assert_eq!(target.id, expected.id);
        assert_eq!(raws, expected.raw_input_contents);
        let names = read.inputs.iter().map(|input| input.name);
        let expected = expected.inputs.iter().take(TENSORS_MAX);
        assert!(names.eq(expected.map(|input| &*input.name)));
    }
    for input in &read.inputs {
        convert(&input.contents, input.data_type, &pool, &budget);
    }
}

/// Whether all parameters, also those of inputs, are maps on the wire. prost takes others
/// for maps, too, where protobuf's own libraries skip them, as the reader does.
fn has_sound_maps(message: &[u8]) -> bool {
    let mut fields = FieldReader::new(message);
    while let Ok(Some(field)) = fields.next() {
        match field {
            (INPUT, FieldValue::Bytes(input)) if !has_sound_maps(input) => {
                return false;
            }
            (PARAMETERS, FieldValue::Bytes(_)) => {}
            (PARAMETERS, _) => return false,
            _ => {}
        }
    }
    true
}

fn convert(pieces: &[&[u8]], data_type: &str, pool: &Arc<Pool>, budget: &Arc<Budget>) {
    let subject = ContentsInput {
        input: "input",
        model: "model",
        data_type: DataType::from_name(data_type),
        is_strict: true,
    };
    let pause = || std::future::ready(());
    let read = contents::read(pieces, &subject, pool, budget, async || pause().await);
    assert!(read.now_or_never().is_some(), "nothing waits here");
}
