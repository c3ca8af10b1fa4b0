//! CUDA graphs of a session: each replays the work of one run, on the addresses that this run had.
//!
//! So each has memory of its own for all inputs and outputs, which runs of the same shapes use. The
//! first run of shapes captures; beyond [`GRAPHS_MAX`] shapes, and where a tensor is not on the
//! device or its size is not known, a run is an ordinary one.

use std::ffi::{CStr, CString};

use conch_backend_sdk as sdk;
use sdk::engine::{Feed, FeedData, Target};
use sdk::{DeviceBlock, DeviceBlocks, Error, StreamHandle, element_count};

/// Graphs of one session. Each keeps the memory of its tensors, and what ONNX Runtime keeps of it.
const GRAPHS_MAX: usize = 16;

/// How graphs are made.
#[derive(Clone, Debug)]
pub struct GraphOptions {
    pub blocks: DeviceBlocks,
    /// Whether the first dimension of every tensor is the batch's.
    pub is_batching: bool,
}

/// The graphs of a session.
pub(super) struct Graphs {
    options: GraphOptions,
    known: Vec<Graph>,
}

/// The tensors of one graph.
pub(super) struct Graph {
    /// ONNX Runtime's number of it; 0 is not to be used.
    pub(super) id: i32,
    key: Vec<(CString, Vec<i64>)>,
    /// Of the feeds, in their order.
    pub(super) inputs: Vec<DeviceBlock>,
    /// Of the targets, in their order, with their shapes.
    pub(super) outputs: Vec<(Vec<i64>, DeviceBlock)>,
}

impl Graphs {
    pub(super) fn new(options: GraphOptions) -> Self {
        Graphs {
            options,
            known: Vec::new(),
        }
    }

    /// The graph for a run, which is new if no run had these shapes; none if it cannot have one.
    ///
    /// # Errors
    /// `Unavailable` if the device has no room for its tensors.
    pub(super) fn of(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &[Target<'_, '_>],
    ) -> Result<Option<&mut Graph>, Error> {
        let Some(shapes) = self.shapes(feeds, targets) else {
            return Ok(None);
        };
        let key = key_of(feeds, targets);
        let position = match self.known.iter().position(|graph| graph.key == key) {
            Some(position) => position,
            None if self.known.len() == GRAPHS_MAX => return Ok(None),
            None => {
                let graph = self.make(key, feeds, targets, shapes)?;
                self.known.push(graph);
                self.known.len() - 1
            }
        };
        Ok(self.known.get_mut(position))
    }

    fn make(
        &self,
        key: Vec<(CString, Vec<i64>)>,
        feeds: &[Feed<'_>],
        targets: &[Target<'_, '_>],
        shapes: Vec<Vec<i64>>,
    ) -> Result<Graph, Error> {
        let inputs = feeds.iter().map(|feed| match feed.data {
            FeedData::Device(bytes) => self.options.blocks.allocate(bytes.len()),
            FeedData::Host(_) => Err(Error::internal("a feed in main memory of a graph")),
        });
        let outputs = targets.iter().zip(shapes).map(|(target, shape)| {
            let elements = element_count(&shape);
            let element_bytes = target.info.data_type.element_bytes();
            let len = elements
                .zip(element_bytes)
                .and_then(|(a, b)| a.checked_mul(b));
            let len = len.ok_or_else(|| Error::internal("an output without a size"))?;
            Ok((shape, self.options.blocks.allocate(len)?))
        });
        Ok(Graph {
            id: i32::try_from(self.known.len() + 1).unwrap_or(i32::MAX),
            key,
            inputs: inputs.collect::<Result<_, Error>>()?,
            outputs: outputs.collect::<Result<_, Error>>()?,
        })
    }

    /// Shapes of the outputs, where all is on the device and known before the run.
    fn shapes(&self, feeds: &[Feed<'_>], targets: &[Target<'_, '_>]) -> Option<Vec<Vec<i64>>> {
        let on_device = |feed: &Feed<'_>| matches!(feed.data, FeedData::Device(_));
        if feeds.is_empty() || !feeds.iter().all(on_device) {
            return None;
        }
        let rows = match self.options.is_batching {
            true => Some(feeds.first()?.shape.first().copied()?),
            false => None,
        };
        let shape = |target: &Target<'_, '_>| shape_of(&target.info.dims, rows);
        let is_fixed = |target: &Target<'_, '_>| target.info.data_type.element_bytes().is_some();
        targets
            .iter()
            .map(|target| shape(target).filter(|_| is_fixed(target)))
            .collect()
    }
}

/// Dimensions of an output of so many rows, if the model leaves no other open.
fn shape_of(dims: &[i64], rows: Option<i64>) -> Option<Vec<i64>> {
    let mut shape = dims.to_vec();
    if let Some(rows) = rows {
        *shape.first_mut()? = rows;
    }
    shape
        .iter()
        .all(|&dimension| dimension >= 0)
        .then_some(shape)
}

fn key_of(feeds: &[Feed<'_>], targets: &[Target<'_, '_>]) -> Vec<(CString, Vec<i64>)> {
    let entry = |name: &CStr, shape: &[i64]| (name.to_owned(), shape.to_vec());
    let inputs = feeds.iter().map(|feed| entry(feed.name, feed.shape));
    let outputs = targets.iter().map(|target| entry(&target.info.name, &[]));
    inputs.chain(outputs).collect()
}

impl Graph {
    /// Enqueues the copies of the feeds to where the graph reads them.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    ///
    /// # Safety
    /// The feeds stay as they are until `stream` has got there.
    pub(super) unsafe fn fill(
        &mut self,
        stream: &StreamHandle,
        feeds: &[Feed<'_>],
    ) -> Result<(), Error> {
        for (block, feed) in self.inputs.iter_mut().zip(feeds) {
            if let FeedData::Device(bytes) = feed.data {
                // SAFETY: by this function's contract; nobody else uses the block meanwhile.
                unsafe { block.fill(stream, bytes)? };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_known_where_only_the_batch_is_open() {
        for (dims, rows, expected) in [
            (&[-1, 4][..], Some(3), Some(vec![3, 4])),
            (&[2, 4], Some(3), Some(vec![3, 4])),
            (&[-1, -1], Some(3), None),
            (&[], Some(3), None),
            (&[2, 4], None, Some(vec![2, 4])),
            (&[-1, 4], None, None),
            (&[], None, Some(vec![])),
        ] {
            assert_eq!(shape_of(dims, rows), expected, "{dims:?} {rows:?}");
        }
    }
}
