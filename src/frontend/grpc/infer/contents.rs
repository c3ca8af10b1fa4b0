//! Typed tensor contents (`InferTensorContents`) into the tensor's wire layout.
//!
//! Two passes over the bytes: the first counts the elements of each kind and so finds every
//! mistake, the second writes them into one block of the exact size. Both are sliced: a shard never
//! spends more than a fraction of a millisecond on them in one turn.

use std::sync::Arc;

use conch_config::DataType;
use conch_engine::truncated;
use conch_memory::{Block, Budget, ByteView, Charge, Pool};

use crate::grpc::status::{GrpcCode, GrpcStatus};
use crate::grpc::wire::{FieldReader, FieldValue, MalformedMessage, varint};

/// Bytes handled between two yields: about 0.2 ms at the speed of the slowest kind (varints).
const SLICE_BYTES: usize = 64 << 10;
/// Blocks up to this size are not charged; see [`super::reader`].
const UNCHARGED_BYTES: usize = 4 << 10;

/// How upstream prints a data type that it does not know.
pub(super) const INVALID_DATA_TYPE: &str = "<invalid>";

/// The field numbers of InferTensorContents, in the order in which upstream looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentsField {
    Bool = 1,
    Int = 2,
    Int64 = 3,
    Uint = 4,
    Uint64 = 5,
    Fp32 = 6,
    Fp64 = 7,
    Bytes = 8,
}

const KINDS: [ContentsField; 8] = [
    ContentsField::Bool,
    ContentsField::Int,
    ContentsField::Int64,
    ContentsField::Uint,
    ContentsField::Uint64,
    ContentsField::Fp32,
    ContentsField::Fp64,
    ContentsField::Bytes,
];

impl ContentsField {
    fn from_number(number: u32) -> Option<ContentsField> {
        KINDS.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Bytes of a packed element, none for varints and strings.
    fn packed_bytes(self) -> Option<usize> {
        match self {
            ContentsField::Fp32 => Some(4),
            ContentsField::Fp64 => Some(8),
            _ => None,
        }
    }

    /// The data type that this kind stands for, given what the input declares: the narrow types
    /// share a kind.
    fn data_type(self, declared: Option<DataType>) -> DataType {
        match (self, declared) {
            (ContentsField::Int, Some(narrow @ (DataType::Int8 | DataType::Int16))) => narrow,
            (ContentsField::Uint, Some(narrow @ (DataType::Uint8 | DataType::Uint16))) => narrow,
            (ContentsField::Bool, _) => DataType::Bool,
            (ContentsField::Int, _) => DataType::Int32,
            (ContentsField::Int64, _) => DataType::Int64,
            (ContentsField::Uint, _) => DataType::Uint32,
            (ContentsField::Uint64, _) => DataType::Uint64,
            (ContentsField::Fp32, _) => DataType::Fp32,
            (ContentsField::Fp64, _) => DataType::Fp64,
            (ContentsField::Bytes, _) => DataType::Bytes,
        }
    }
}

/// The input whose contents are read; for messages.
pub(super) struct ContentsInput<'a> {
    pub(super) input: &'a str,
    pub(super) model: &'a str,
    /// None if the declared data type is no known name.
    pub(super) data_type: Option<DataType>,
    /// Integers that the data type cannot hold are refused.
    pub(super) is_strict: bool,
}

/// Counts work and yields to the rest of the shard when a slice is full.
struct YieldBudget<P> {
    spent_bytes: usize,
    pause: P,
}

impl<P: AsyncFn()> YieldBudget<P> {
    async fn spend(&mut self, bytes: usize) {
        self.spent_bytes += bytes;
        if self.spent_bytes >= SLICE_BYTES {
            self.spent_bytes = 0;
            (self.pause)().await;
        }
    }
}

/// The tensor that `pieces` (together one InferTensorContents) hold. `pause` lets the rest of the
/// shard run between slices.
pub(super) async fn read(
    pieces: &[&[u8]],
    subject: &ContentsInput<'_>,
    pool: &Arc<Pool>,
    budget: &Arc<Budget>,
    pause: impl AsyncFn(),
) -> Result<ByteView, GrpcStatus> {
    let mut yield_budget = YieldBudget {
        spent_bytes: 0,
        pause,
    };
    let mut counts = [0u64; KINDS.len()];
    let mut text_bytes = 0u64;
    for piece in pieces {
        let mut fields = FieldReader::new(piece);
        while let Some((number, value)) = fields.next().map_err(|_| GrpcStatus::unparsable())? {
            let Some(kind) = ContentsField::from_number(number) else {
                continue;
            };
            let count = count_elements(kind, value, &mut yield_budget)
                .await
                .map_err(|_| GrpcStatus::unparsable())?;
            let place = counts
                .get_mut(kind as usize - 1)
                .expect("kinds are numbered 1 to 8");
            *place += count;
            if let (ContentsField::Bytes, FieldValue::Bytes(bytes)) = (kind, value) {
                text_bytes += bytes.len() as u64;
            }
        }
    }
    let Some((kind, count)) = judge(&counts, subject)? else {
        return Ok(ByteView::empty());
    };
    let size_bytes = match kind.data_type(subject.data_type).element_bytes() {
        Some(element_bytes) => count.checked_mul(element_bytes as u64),
        // A 4-byte length in front of every element.
        None => count
            .checked_mul(4)
            .and_then(|lengths| lengths.checked_add(text_bytes)),
    };
    let size_bytes = size_bytes
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(GrpcStatus::unparsable)?;
    let mut charge = Charge::empty(budget);
    if size_bytes > UNCHARGED_BYTES {
        charge
            .cover(size_bytes as u64)
            .map_err(crate::grpc::status::exhausted)?;
    }
    let mut block = pool.try_take(size_bytes)?;
    block.set_charge(charge);
    let element_bytes = kind.data_type(subject.data_type).element_bytes();
    let mut all_fit = true;
    for piece in pieces {
        let mut fields = FieldReader::new(piece);
        while let Some((number, value)) = fields.next().map_err(|_| GrpcStatus::unparsable())? {
            if ContentsField::from_number(number) == Some(kind) {
                all_fit &=
                    write_elements(kind, element_bytes, value, &mut block, &mut yield_budget).await;
            }
        }
    }
    if subject.is_strict && !all_fit {
        let message = format!(
            "an element is out of the range of {} for input '{}'",
            kind.data_type(subject.data_type).name(),
            truncated(subject.input)
        );
        return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
    }
    debug_assert_eq!(block.len(), size_bytes, "both passes see the same elements");
    Ok(ByteView::from(block))
}

/// The one kind that is present, or upstream's complaint; none if there are no elements at all.
fn judge(
    counts: &[u64; 8],
    subject: &ContentsInput<'_>,
) -> Result<Option<(ContentsField, u64)>, GrpcStatus> {
    let mut chosen = None;
    for (kind, count) in KINDS.into_iter().zip(counts) {
        if *count == 0 {
            continue;
        }
        let ContentsInput {
            input,
            model,
            data_type,
            ..
        } = subject;
        if chosen.is_some() {
            let message = format!(
                "unexpected explicit tensor data for input tensor '{input}' for model '{model}', \
                 binary data was already supplied.",
                input = truncated(&input)
            );
            return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
        }
        let found = kind.data_type(*data_type);
        if Some(found) != *data_type {
            let message = format!(
                "unexpected explicit tensor data for input tensor '{input}' for model '{model}' of \
                 type '{}', expected datatype '{}'",
                found.name(),
                data_type.map_or(INVALID_DATA_TYPE, DataType::name),
                input = truncated(&input)
            );
            return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
        }
        chosen = Some((kind, *count));
    }
    Ok(chosen)
}

/// How many elements one field holds: one, or many if it is packed. A field of another wire type
/// counts none, as it is unknown.
async fn count_elements(
    kind: ContentsField,
    value: FieldValue<'_>,
    yield_budget: &mut YieldBudget<impl AsyncFn()>,
) -> Result<u64, MalformedMessage> {
    match (kind, value) {
        (ContentsField::Bytes, FieldValue::Bytes(_)) => {
            yield_budget.spend(8).await;
            Ok(1)
        }
        (ContentsField::Bytes, _) => Ok(0),
        (ContentsField::Fp32, FieldValue::Fixed32(_))
        | (ContentsField::Fp64, FieldValue::Fixed64(_)) => {
            yield_budget.spend(8).await;
            Ok(1)
        }
        (ContentsField::Fp32 | ContentsField::Fp64, FieldValue::Bytes(packed)) => {
            let element_bytes = kind.packed_bytes().expect("both have a width");
            if !packed.len().is_multiple_of(element_bytes) {
                return Err(MalformedMessage);
            }
            Ok((packed.len() / element_bytes) as u64)
        }
        (ContentsField::Fp32 | ContentsField::Fp64, _) => Ok(0),
        (_, FieldValue::Varint(_)) => {
            yield_budget.spend(8).await;
            Ok(1)
        }
        (_, FieldValue::Bytes(packed)) => {
            let (mut count, mut rest) = (0, packed);
            while !rest.is_empty() {
                let slice_end = {
                    let mut slice = rest.get(..SLICE_BYTES).unwrap_or(rest);
                    let whole = slice.len();
                    while let Some((_, used)) = next_varint(slice, rest.len() > whole)? {
                        count += 1;
                        slice = slice.get(used..).unwrap_or_default();
                    }
                    whole - slice.len()
                };
                rest = rest.get(slice_end..).unwrap_or_default();
                yield_budget.spend(slice_end).await;
            }
            Ok(count)
        }
        _ => Ok(0),
    }
}

/// The next varint of a slice; none at its end, or inside a varint that continues beyond it
/// (`continues`).
fn next_varint(slice: &[u8], continues: bool) -> Result<Option<(u64, usize)>, MalformedMessage> {
    match varint(slice)? {
        None if !slice.is_empty() && !continues => Err(MalformedMessage),
        outcome => Ok(outcome),
    }
}

/// Appends the elements of one field, which the first pass found sound. Returns whether they are as
/// they were.
async fn write_elements(
    kind: ContentsField,
    element_bytes: Option<usize>,
    value: FieldValue<'_>,
    block: &mut Block,
    yield_budget: &mut YieldBudget<impl AsyncFn()>,
) -> bool {
    let element_bytes = element_bytes.unwrap_or(0);
    let mut all_fit = true;
    match (kind, value) {
        (ContentsField::Bytes, FieldValue::Bytes(text)) => {
            let length = u32::try_from(text.len()).expect("messages end at 2^31 bytes");
            block.extend_from_slice(&length.to_le_bytes());
            block.extend_from_slice(text);
            yield_budget.spend(8 + text.len()).await;
        }
        (ContentsField::Fp32, FieldValue::Fixed32(bits)) => {
            block.extend_from_slice(&bits.to_le_bytes());
            yield_budget.spend(8).await;
        }
        (ContentsField::Fp64, FieldValue::Fixed64(bits)) => {
            block.extend_from_slice(&bits.to_le_bytes());
            yield_budget.spend(8).await;
        }
        (ContentsField::Fp32 | ContentsField::Fp64, FieldValue::Bytes(packed)) => {
            for slice in packed.chunks(SLICE_BYTES) {
                block.extend_from_slice(slice);
                yield_budget.spend(slice.len()).await;
            }
        }
        (_, FieldValue::Varint(element)) => {
            all_fit = put_element(kind, element, element_bytes, block);
            yield_budget.spend(8).await;
        }
        (_, FieldValue::Bytes(packed)) => {
            let mut rest = packed;
            while let Ok(Some((element, used))) = varint(rest) {
                all_fit &= put_element(kind, element, element_bytes, block);
                rest = rest.get(used..).unwrap_or_default();
                yield_budget.spend(used).await;
            }
        }
        _ => {}
    }
    all_fit
}

/// Appends the low bytes of a varint element, which narrows as upstream does. Booleans become 0 or
/// 1. Returns whether it fits.
fn put_element(kind: ContentsField, element: u64, element_bytes: usize, block: &mut Block) -> bool {
    let element = if kind == ContentsField::Bool {
        u64::from(element != 0)
    } else {
        element
    };
    let bytes = element.to_le_bytes();
    block.extend_from_slice(
        bytes
            .get(..element_bytes)
            .expect("elements have at most 8 bytes"),
    );
    let spare_bits = 64 - 8 * element_bytes.clamp(1, 8) as u32;
    match kind {
        ContentsField::Int => {
            element.cast_signed() << spare_bits >> spare_bits == element.cast_signed()
        }
        ContentsField::Uint => element << spare_bits >> spare_bits == element,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use conch_proto::Message as _;
    use conch_proto::inference::InferTensorContents;

    use super::*;
    use crate::grpc::wire::{put_tag, put_varint};
    use crate::testing::{block_on, yield_now};

    fn read_pieces(pieces: &[&[u8]], data_type: Option<DataType>) -> Result<Vec<u8>, GrpcStatus> {
        let (pool, budget) = (Pool::new(0), Budget::new(64 << 20));
        let subject = ContentsInput {
            input: "IN",
            model: "m",
            data_type,
            is_strict: false,
        };
        let view = block_on(read(pieces, &subject, &pool, &budget, yield_now))?;
        Ok(view.as_ref().to_vec())
    }

    fn check(contents: InferTensorContents, data_type: DataType, expected: &[u8]) {
        let wire = contents.encode_to_vec();
        assert_eq!(
            read_pieces(&[&wire], Some(data_type)).as_deref(),
            Ok(expected),
            "{contents:?}"
        );
    }

    #[test]
    fn every_kind_and_width() {
        use DataType::*;
        let some = InferTensorContents::default;
        check(
            InferTensorContents {
                bool_contents: vec![true, false],
                ..some()
            },
            Bool,
            &[1, 0],
        );
        let int = || InferTensorContents {
            int_contents: vec![-2, 258],
            ..some()
        };
        check(int(), Int8, &[0xfe, 2]);
        check(int(), Int16, &[0xfe, 0xff, 2, 1]);
        check(int(), Int32, &[0xfe, 0xff, 0xff, 0xff, 2, 1, 0, 0]);
        check(
            InferTensorContents {
                int64_contents: vec![-1],
                ..some()
            },
            Int64,
            &[0xff; 8],
        );
        let uint = || InferTensorContents {
            uint_contents: vec![u32::MAX, 258],
            ..some()
        };
        check(uint(), Uint8, &[0xff, 2]);
        check(uint(), Uint16, &[0xff, 0xff, 2, 1]);
        check(uint(), Uint32, &[0xff, 0xff, 0xff, 0xff, 2, 1, 0, 0]);
        check(
            InferTensorContents {
                uint64_contents: vec![u64::MAX],
                ..some()
            },
            Uint64,
            &[0xff; 8],
        );
        check(
            InferTensorContents {
                fp32_contents: vec![1.5],
                ..some()
            },
            Fp32,
            &1.5f32.to_le_bytes(),
        );
        check(
            InferTensorContents {
                fp64_contents: vec![-2.5],
                ..some()
            },
            Fp64,
            &(-2.5f64).to_le_bytes(),
        );
        let texts = vec![b"ab".to_vec(), Vec::new()];
        check(
            InferTensorContents {
                bytes_contents: texts,
                ..some()
            },
            Bytes,
            &[2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0],
        );
        check(some(), Int32, &[]);
    }

    #[test]
    fn unpacked_elements_and_merged_pieces() {
        let mut unpacked = Vec::new();
        for element in [3, 300] {
            put_tag(&mut unpacked, ContentsField::Int as u32, 0);
            put_varint(&mut unpacked, element);
        }
        let packed = InferTensorContents {
            int_contents: vec![5],
            ..Default::default()
        }
        .encode_to_vec();
        let expected = [3, 0, 0, 0, 44, 1, 0, 0, 5, 0, 0, 0];
        assert_eq!(
            read_pieces(&[&unpacked, &packed], Some(DataType::Int32)).as_deref(),
            Ok(&expected[..])
        );
    }

    #[test]
    fn many_elements_cross_slices() {
        let int_contents: Vec<i32> = (0..200_000).map(|index| index * 7 - 500_000).collect();
        let expected: Vec<u8> = int_contents
            .iter()
            .flat_map(|element| element.to_le_bytes())
            .collect();
        check(
            InferTensorContents {
                int_contents,
                ..Default::default()
            },
            DataType::Int32,
            &expected,
        );
        let fp32_contents = vec![0.25f32; 100_000];
        let expected = 0.25f32.to_le_bytes().repeat(100_000);
        check(
            InferTensorContents {
                fp32_contents,
                ..Default::default()
            },
            DataType::Fp32,
            &expected,
        );
    }

    #[test]
    fn mistakes_have_upstreams_words() {
        let both = InferTensorContents {
            int_contents: vec![1],
            fp32_contents: vec![1.0],
            ..Default::default()
        };
        let ints = InferTensorContents {
            int_contents: vec![1],
            ..Default::default()
        };
        let table = [
            (
                &both,
                Some(DataType::Int32),
                "unexpected explicit tensor data for input tensor 'IN' for model 'm', binary data \
                 was already supplied.",
            ),
            (
                &ints,
                Some(DataType::Fp32),
                "unexpected explicit tensor data for input tensor 'IN' for model 'm' of type \
                 'INT32', expected datatype 'FP32'",
            ),
            (
                &ints,
                None,
                "unexpected explicit tensor data for input tensor 'IN' for model 'm' of type \
                 'INT32', expected datatype '<invalid>'",
            ),
        ];
        for (contents, data_type, expected) in table {
            let status = read_pieces(&[&contents.encode_to_vec()], data_type).unwrap_err();
            assert_eq!(
                (status.code, &*status.message),
                (GrpcCode::InvalidArgument, expected)
            );
        }
        for broken in [
            &[0x12, 0x01, 0x80][..],
            &[0x32, 0x03, 0, 0, 0],
            &[0x42, 0x05, 0],
        ] {
            assert_eq!(
                read_pieces(&[broken], Some(DataType::Int32)),
                Err(GrpcStatus::unparsable()),
                "{broken:02x?}"
            );
        }
    }

    #[test]
    fn the_tensor_is_charged_before_it_is_taken() {
        let (pool, budget) = (Pool::new(0), Budget::new(1 << 20));
        // One wire byte per element becomes four.
        let contents = InferTensorContents {
            int_contents: vec![1; 400_000],
            ..Default::default()
        }
        .encode_to_vec();
        let subject = ContentsInput {
            input: "IN",
            model: "m",
            data_type: Some(DataType::Int32),
            is_strict: false,
        };
        let status = block_on(read(&[&contents], &subject, &pool, &budget, yield_now)).unwrap_err();
        assert_eq!(status.code, GrpcCode::ResourceExhausted);
        assert!(
            status.message.starts_with("the server's limit of ")
                && status
                    .message
                    .ends_with(" bytes for requests is reached (--memory-limit-bytes)"),
            "{}",
            status.message
        );
        assert_eq!(budget.used_bytes(), 0);
    }
}
