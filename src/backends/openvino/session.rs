//! What an instance runs: a request of a compiled model.

use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{self, Contents, Feed, Signature, Target, TensorInfo};
use sdk::{Error, Interrupt};

use crate::batching::Batching;
use crate::ov::{AlignedBuffer, InferRequest, Tensor};
use crate::shapes::Shapes;

/// What the sessions of a compiled model share: how batches are brought to it.
pub struct ModelInterface {
    pub batching: Batching,
    pub signature: Signature,
    /// Where requests can bring shapes that do not fit.
    pub shapes: Option<Shapes>,
    /// Whether runs may be ended early. Where OpenVINO learns shapes as it runs, those of a run
    /// that ended early could be taken for the next one's.
    pub is_interruptible: bool,
}

/// A request of a compiled model.
pub struct Session {
    /// Shared with the outputs of the last run, and with what interrupts it.
    request: Arc<InferRequest>,
    /// Held by each output of the last run: its memory is written by the next one.
    outputs: Arc<()>,
    interface: Arc<ModelInterface>,
    /// The shapes of the last run, which need no second look.
    last_dims: Vec<i64>,
    model_name: String,
    /// Copies of inputs that are not aligned, or are filled up; kept for their memory.
    copies: Vec<AlignedBuffer>,
}

impl Session {
    pub fn new(request: InferRequest, interface: &Arc<ModelInterface>, model_name: &str) -> Self {
        let inputs = &interface.signature.inputs;
        Session {
            request: Arc::new(request),
            outputs: Arc::new(()),
            copies: inputs.iter().map(|_| AlignedBuffer::default()).collect(),
            interface: Arc::clone(interface),
            last_dims: Vec::new(),
            model_name: model_name.to_owned(),
        }
    }
}

impl engine::Session for Session {
    type Output = Output;

    fn signature(&self) -> &Signature {
        &self.interface.signature
    }

    fn interrupt(&self) -> Option<Arc<dyn Interrupt>> {
        self.interface
            .is_interruptible
            .then(|| Arc::clone(&self.request) as Arc<dyn Interrupt>)
    }

    fn run(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Output>>, Error> {
        if Arc::get_mut(&mut self.outputs).is_none() {
            return Err(Error::internal("outputs of the run before are still held"));
        }
        let rows = feeds.first().and_then(|feed| feed.shape.first()).copied();
        let rows = usize::try_from(rows.unwrap_or(0)).unwrap_or(0);
        self.interface.batching.check(rows)?;
        // In the model's order, which is also that of the feeds.
        let find = |info: &TensorInfo| {
            let feed = feeds.iter().find(|feed| *feed.name == *info.name);
            feed.ok_or_else(|| {
                Error::invalid(format!(
                    "no request gives input '{}' of model '{}'",
                    info.name(),
                    self.model_name
                ))
            })
        };
        let given: Vec<_> = self
            .interface
            .signature
            .inputs
            .iter()
            .map(find)
            .collect::<Result<_, _>>()?;
        if let Some(shapes) = &self.interface.shapes {
            let dims: Vec<_> = given
                .iter()
                .map(|feed| run_dims(self.interface.batching, feed))
                .collect();
            let all = dims.concat();
            if all != self.last_dims {
                let dims: Vec<_> = dims.iter().map(Vec::as_slice).collect();
                shapes.check(&dims)?;
                self.last_dims = all;
            }
        }
        let mut inputs = Vec::with_capacity(given.len());
        for (feed, copy) in given.into_iter().zip(&mut self.copies) {
            inputs.push(input(&self.request, self.interface.batching, feed, copy)?);
        }
        self.request.run(&inputs)?;
        let index_of = |target: &Target<'_, '_>| {
            let mut names = self.interface.signature.outputs.iter();
            names.position(|info| info.name == target.info.name)
        };
        targets
            .iter()
            .map(|target| {
                let index = index_of(target).ok_or_else(|| {
                    Error::internal(format!("model without output '{}'", target.info.name()))
                })?;
                Ok(Some(Output {
                    tensor: self.request.output(index)?,
                    batching: self.interface.batching,
                    rows,
                    _held: Arc::clone(&self.outputs),
                }))
            })
            .collect()
    }
}

/// An output in OpenVINO's memory.
pub struct Output {
    tensor: Tensor<'static>,
    batching: Batching,
    /// Rows that the requests have.
    rows: usize,
    _held: Arc<()>,
}

impl engine::Output for Output {
    fn read(&self) -> Result<Contents<'_>, Error> {
        let (data_type, mut shape) = self.tensor.shape()?;
        let mut bytes = self.tensor.bytes()?;
        if let Batching::Fixed { rows, .. } = self.batching {
            let first = shape.first().copied();
            if first.and_then(|first| usize::try_from(first).ok()) != Some(rows) {
                return Err(Error::internal(format!(
                    "expected the batch size of openvino model output to be {rows}, got {}",
                    first.unwrap_or(0)
                )));
            }
            bytes = bytes.get(..bytes.len() / rows * self.rows).unwrap_or(bytes);
            if let Some(first) = shape.first_mut() {
                *first = i64::try_from(self.rows).unwrap_or(i64::MAX);
            }
        }
        Ok(Contents {
            data_type,
            shape,
            data: bytes.into(),
        })
    }
}

impl Batching {
    /// # Errors
    /// Upstream's words if a batch of so many rows cannot be run.
    fn check(self, rows: usize) -> Result<(), Error> {
        match self {
            Batching::Fixed { rows: all, pads } if rows != all && !pads => {
                Err(Error::internal(format!(
                    "expected requests with batch size '{all}', got '{rows}'... this error can be \
                     avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to \
                     'YES' at a performance cost."
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The dimensions with which the model runs: those of a whole batch.
fn run_dims(batching: Batching, feed: &Feed<'_>) -> Vec<i64> {
    let mut dims = feed.shape.to_vec();
    if let (Batching::Fixed { rows, .. }, Some(first)) = (batching, dims.first_mut()) {
        *first = i64::try_from(rows).unwrap_or(i64::MAX);
    }
    dims
}

/// A tensor over the feed's own bytes where they are aligned and make a whole batch, else over a
/// copy.
fn input<'f>(
    request: &InferRequest,
    batching: Batching,
    feed: &Feed<'f>,
    copy: &'f mut AlignedBuffer,
) -> Result<Tensor<'f>, Error> {
    let element_bytes = feed.data_type.element_bytes().unwrap_or(1);
    let shape = run_dims(batching, feed);
    let given_bytes = feed.host()?;
    let mut byte_count = given_bytes.len();
    if let (Batching::Fixed { rows, .. }, Some(&first)) = (batching, feed.shape.first()) {
        let given = usize::try_from(first).unwrap_or(0);
        if given != rows {
            byte_count = (byte_count / given.max(1))
                .checked_mul(rows)
                .ok_or_else(|| Error::invalid("a batch beyond any memory"))?;
        }
    }
    let is_whole = byte_count == given_bytes.len() && byte_count > 0;
    if is_whole && given_bytes.is_aligned_to(element_bytes) {
        return Tensor::borrow(request.runtime(), feed.data_type, &shape, given_bytes);
    }
    let bytes = copy.fill(given_bytes, byte_count)?;
    Tensor::borrow(request.runtime(), feed.data_type, &shape, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_a_fixed_size() {
        let fixed = |pads| Batching::Fixed { rows: 4, pads };
        for (batching, rows, expected) in [
            (Batching::None, 1, true),
            (Batching::Open, 3, true),
            (fixed(true), 3, true),
            (fixed(false), 4, true),
            (fixed(false), 3, false),
        ] {
            assert_eq!(
                batching.check(rows).is_ok(),
                expected,
                "{batching:?} {rows}"
            );
        }
        assert_eq!(
            fixed(false).check(3).unwrap_err().message(),
            "expected requests with batch size '4', got '3'... this error can be avoided by \
             setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a \
             performance cost."
        );
    }
}
