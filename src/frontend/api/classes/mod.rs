//! The classification extension: an output's largest elements, as text, in place of its tensor.
//!
//! Both protocols ask for it per output (`classification`: how many classes). The response's output
//! becomes a BYTES tensor of `value:index[:label]` elements before it is encoded, and the encoders
//! know nothing of it. What takes long is to be done off the shard: see [`Classes::is_long`].

mod top;

use std::sync::Arc;

use conch_config::DataType;
use conch_engine::{Error, Output, Response, Shape};
use conch_memory::{Block, Budget, ByteView, Charge};

/// The largest output, per entry of the batch, as upstream.
const ELEMENTS_MAX: u64 = 1_000_000;
/// The text of one output's classes. A full million of FP32 elements with labels of 200 bytes each.
const TEXT_BYTES_MAX: usize = 256 << 20;
/// What may be done at once on a shard: a part of a turn's 500 us.
const INLINE_NS_MAX: u64 = 200_000;
/// Finding the largest, per element, and writing, per class: measured on a slow core, rounded up.
const ELEMENT_NS: u64 = 20;
const CLASS_NS: u64 = 200;

/// Which outputs of one request are wanted as classes. Without any it is an empty `Option`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes(Option<Arc<ClassRequest>>);

#[derive(Debug)]
struct ClassRequest {
    /// Output and how many classes; never 0.
    counts: Vec<(Box<str>, u32)>,
    /// Texts are charged against it for as long as they live.
    budget: Arc<Budget>,
}

impl Classes {
    /// `counts` names outputs that the model has, each once.
    pub(crate) fn new(counts: Vec<(Box<str>, u32)>, budget: &Arc<Budget>) -> Classes {
        if counts.is_empty() {
            return Classes(None);
        }
        let budget = Arc::clone(budget);
        Classes(Some(Arc::new(ClassRequest { counts, budget })))
    }

    /// Whether applying them to `response` takes too long for a shard.
    pub(crate) fn is_long(&self, response: &Response) -> bool {
        let Some(wanted) = &self.0 else { return false };
        let work_ns = |output: &Output| {
            let elements = output.data.len() as u64 / element_bytes(output).unwrap_or(1).max(1);
            let written = match wanted.count(output) {
                0 => return 0,
                count => {
                    elements.min(u64::from(count).saturating_mul(batch_size(response, output)))
                }
            };
            elements
                .saturating_mul(ELEMENT_NS)
                .saturating_add(written.saturating_mul(CLASS_NS))
        };
        let work_ns = response
            .outputs
            .iter()
            .fold(0u64, |sum, output| sum.saturating_add(work_ns(output)));
        work_ns > INLINE_NS_MAX
    }

    /// Turns the wanted outputs of `response` into their classes.
    ///
    /// # Errors
    /// INVALID_ARG, in upstream's words, for a type without an order and for an output that is too
    /// large; INTERNAL if an output's bytes do not agree with its shape; UNAVAILABLE if there is no
    /// memory for the text.
    pub(crate) fn apply(&self, response: &mut Response) -> Result<(), Error> {
        let Some(wanted) = &self.0 else { return Ok(()) };
        let model = Arc::clone(&response.model);
        let is_batching = model.config.is_batching();
        for output in &mut response.outputs {
            let count = wanted.count(output);
            if count > 0 {
                let label = |name: &str, class| model.label(name, class);
                let text = ClassText::new(&wanted.budget);
                classify(output, count, is_batching, label, text)?;
            }
        }
        Ok(())
    }
}

impl ClassRequest {
    fn count(&self, output: &Output) -> u32 {
        self.counts
            .iter()
            .find(|(name, _)| **name == *output.name)
            .map_or(0, |(_, count)| *count)
    }
}

/// As many rows as there are lists of classes.
fn batch_size(response: &Response, output: &Output) -> u64 {
    match output.shape.first() {
        Some(first) if response.model.config.is_batching() => {
            u64::try_from(*first).unwrap_or(0).max(1)
        }
        _ => 1,
    }
}

fn element_bytes(output: &Output) -> Option<u64> {
    output.data_type.element_bytes().map(|bytes| bytes as u64)
}

/// Makes `output` the `count` classes of each of its rows: of each entry of the batch, or of all of
/// it.
fn classify<'a>(
    output: &mut Output,
    count: u32,
    is_batching: bool,
    label: impl Fn(&str, usize) -> Option<&'a std::ffi::CStr>,
    mut text: ClassText,
) -> Result<(), Error> {
    let unsupported = || {
        Error::invalid(format!(
            "class result not available for output due to unsupported type '{}'",
            output.data_type.name()
        ))
    };
    let is_ordered = !matches!(
        output.data_type,
        DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes
    );
    let width = element_bytes(output)
        .filter(|_| is_ordered)
        .ok_or_else(unsupported)?;
    let mismatch = || {
        Error::internal(format!(
            "output tensor shape does not match size of output for '{}'",
            output.name
        ))
    };
    // An empty batch counts as no batch, as upstream.
    let (batch_size, dims) = match output.shape.split_first() {
        Some((first, rest)) if is_batching && *first != 0 => (Some(*first), rest),
        _ => (None, output.shape.as_slice()),
    };
    let elements = dims
        .iter()
        .try_fold(1u64, |product, dim| {
            product.checked_mul(u64::try_from(*dim).ok()?)
        })
        .ok_or_else(mismatch)?;
    if elements > ELEMENTS_MAX {
        return Err(Error::invalid("classification output tensor too large"));
    }
    let rows = u64::try_from(batch_size.unwrap_or(1)).map_err(|_| mismatch())?;
    let row_bytes = elements * width;
    let used = rows
        .checked_mul(row_bytes)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(mismatch)?;
    let bytes = output
        .data
        .as_slice()
        .ok_or_else(|| Error::internal("an output lies in memory that the CPU cannot read"))?;
    let bytes = bytes.get(..used).ok_or_else(mismatch)?;
    if row_bytes > 0 {
        let label = |class| label(&output.name, class);
        for row in bytes.chunks(usize::try_from(row_bytes).map_err(|_| mismatch())?) {
            top::write(&mut text, output.data_type, row, count, label)?;
        }
    }
    let class_count = elements.min(u64::from(count)).cast_signed();
    output.shape = Shape::from_iter(batch_size.into_iter().chain([class_count]));
    output.data_type = DataType::Bytes;
    output.data = text.finish();
    Ok(())
}

/// Elements of a BYTES tensor, charged as they are written.
struct ClassText {
    block: Block,
    charge: Charge,
    /// Of the element that is being written.
    element: Vec<u8>,
}

impl ClassText {
    fn new(budget: &Arc<Budget>) -> ClassText {
        ClassText {
            block: Block::with_capacity(256),
            charge: Charge::empty(budget),
            element: Vec::with_capacity(64),
        }
    }

    /// Appends one element.
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        self.element.clear();
        write(&mut self.element);
        let length = u32::try_from(self.element.len())
            .map_err(|_| Error::invalid("the text of a class is too long"))?;
        let needed = self.block.len() + 4 + self.element.len();
        if needed > self.block.capacity() {
            self.grow(needed)?;
        }
        self.block.extend_from_slice(&length.to_le_bytes());
        self.block.extend_from_slice(&self.element);
        Ok(())
    }

    fn grow(&mut self, needed: usize) -> Result<(), Error> {
        if needed > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the classes of an output take more than {TEXT_BYTES_MAX} bytes of text"
            )));
        }
        let capacity = needed.max(self.block.capacity().saturating_mul(2));
        self.charge.cover(capacity as u64).map_err(|exhausted| {
            Error::unavailable(format!(
                "the server's limit of {} bytes for requests is reached (--memory-limit-bytes)",
                exhausted.limit_bytes
            ))
        })?;
        Ok(self.block.try_reserve(capacity)?)
    }

    fn finish(mut self) -> ByteView {
        if self.block.is_empty() {
            return ByteView::empty();
        }
        self.block.set_charge(self.charge);
        ByteView::from(self.block)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn output(data_type: DataType, shape: &[i64], bytes: &[u8]) -> Output {
        Output {
            name: "OUT".into(),
            data_type,
            shape: Shape::from_slice(shape),
            data: ByteView::copy_of(bytes),
        }
    }

    fn no_label(_: &str, _: usize) -> Option<&'static CStr> {
        None
    }

    fn budget() -> Arc<Budget> {
        Budget::new(1 << 30)
    }

    /// Shape and elements of what becomes of a tensor.
    fn classes(
        mut output: Output,
        count: u32,
        is_batching: bool,
    ) -> Result<(Vec<i64>, Vec<String>), Error> {
        classify(
            &mut output,
            count,
            is_batching,
            no_label,
            ClassText::new(&budget()),
        )?;
        assert_eq!(output.data_type, DataType::Bytes);
        let mut rest = output.data.as_ref();
        let mut elements = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let (element, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            elements.push(String::from_utf8(element.to_vec()).unwrap());
            rest = behind;
        }
        Ok((output.shape.to_vec(), elements))
    }

    #[test]
    fn each_entry_of_a_batch_has_its_own_classes() {
        let bytes = [1u8, 5, 3, 9, 9, 0];
        for (is_batching, shape, count, expected_shape, expected) in [
            (
                true,
                &[2, 3][..],
                2,
                &[2, 2][..],
                &["5:1", "3:2", "9:0", "9:1"][..],
            ),
            (false, &[2, 3], 2, &[2], &["9:3", "9:4"]),
            (true, &[2, 3], 1, &[2, 1], &["5:1", "9:0"]),
            (
                true,
                &[1, 2, 3],
                u32::MAX,
                &[1, 6],
                &["9:3", "9:4", "5:1", "3:2", "1:0", "0:5"],
            ),
            (
                true,
                &[6],
                1,
                &[6, 1],
                &["1:0", "5:0", "3:0", "9:0", "9:0", "0:0"],
            ),
            (false, &[], 3, &[1], &["1:0"]),
        ] {
            let output = output(DataType::Uint8, shape, &bytes);
            let (shape, elements) = classes(output, count, is_batching).unwrap();
            assert_eq!(
                (&*shape, &*elements),
                (expected_shape, expected.map_owned().as_slice())
            );
        }
    }

    trait Owned {
        fn map_owned(&self) -> Vec<String>;
    }

    impl Owned for &[&str] {
        fn map_owned(&self) -> Vec<String> {
            self.iter().map(|text| (*text).to_owned()).collect()
        }
    }

    #[test]
    fn nothing_has_no_classes() {
        for (is_batching, shape, expected) in [
            (true, &[0, 4][..], &[0][..]),
            (true, &[3, 0], &[3, 0]),
            (false, &[0], &[0]),
            (true, &[i64::MAX, 0], &[i64::MAX, 0]),
        ] {
            let (shape, elements) =
                classes(output(DataType::Fp32, shape, &[]), 5, is_batching).unwrap();
            assert_eq!((&*shape, elements.len()), (expected, 0));
        }
    }

    #[test]
    fn what_has_no_classes_is_refused() {
        let unsupported = "class result not available for output due to unsupported type 'FP16'";
        let mismatch = "output tensor shape does not match size of output for 'OUT'";
        let large = "classification output tensor too large";
        for (data_type, shape, byte_count, expected) in [
            (DataType::Fp16, &[1, 2][..], 4, unsupported),
            (DataType::Fp32, &[1, 3], 8, mismatch),
            (DataType::Fp32, &[1, -1], 8, mismatch),
            (DataType::Fp32, &[-1, 2], 8, mismatch),
            (DataType::Fp32, &[i64::MAX, 2], 8, mismatch),
            (DataType::Fp32, &[1, i64::MAX, i64::MAX], 8, mismatch),
            (DataType::Uint8, &[1, 1_000_001], 1_000_001, large),
        ] {
            let output = output(data_type, shape, &vec![0; byte_count]);
            let refused = classes(output, 1, true).unwrap_err();
            assert_eq!(refused.message, expected, "{data_type:?} {shape:?}");
        }
        for data_type in [DataType::Bool, DataType::Bytes, DataType::Bf16] {
            let refused = classes(output(data_type, &[1, 2], &[0; 8]), 1, true).unwrap_err();
            assert!(
                refused
                    .message
                    .ends_with(&format!("'{}'", data_type.name()))
            );
        }
    }

    #[test]
    fn texts_are_charged_while_they_live() {
        let budget = Budget::new(128 << 10);
        let bytes = vec![7; 2_000];
        let mut small = output(DataType::Uint8, &[1, 2_000], &bytes);
        classify(
            &mut small,
            u32::MAX,
            true,
            no_label,
            ClassText::new(&budget),
        )
        .unwrap();
        assert!(budget.used_bytes() >= small.data.len() as u64);
        drop(small);
        assert_eq!(budget.used_bytes(), 0);
        let bytes = vec![7; 200_000];
        let mut large = output(DataType::Uint8, &[1, 200_000], &bytes);
        let refused = classify(
            &mut large,
            u32::MAX,
            true,
            no_label,
            ClassText::new(&budget),
        )
        .unwrap_err();
        assert_eq!(
            refused,
            Error::unavailable(
                "the server's limit of 131072 bytes for requests is reached (--memory-limit-bytes)"
            )
        );
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn labels_stand_behind_the_index() {
        let mut output = output(DataType::Int8, &[3], &[1, 3, 2]);
        let label = |name: &str, class| (name == "OUT" && class == 1).then_some(c"cat");
        classify(&mut output, 2, false, label, ClassText::new(&budget())).unwrap();
        assert_eq!(output.data.as_ref(), b"\x07\0\0\x003:1:cat\x03\0\0\x002:2");
    }
}
