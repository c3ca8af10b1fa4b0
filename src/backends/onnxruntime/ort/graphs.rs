//! CUDA graphs of a session: each replays the work of one run, on the addresses that this run had.
//!
//! So each has memory of its own for all inputs and outputs, which runs of the same shapes use. The
//! first run of shapes captures; beyond [`GRAPHS_MAX`] shapes, and where a tensor is not on the
//! device or its size is not known, a run is an ordinary one.

use std::ffi::CString;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Feed, FeedData, Target};
use sdk::{DataType, DeviceBlock, DeviceBlocks, Error, StreamHandle};

use super::run_options::{RawRunOptions, RunOptions};

/// Graphs of one session. Each keeps the memory of its tensors, and what ONNX Runtime keeps of it.
const GRAPHS_MAX: usize = 16;

/// How graphs are made.
#[derive(Clone, Debug)]
pub struct GraphOptions {
    pub blocks: DeviceBlocks,
    /// The session's, on which feeds are copied to where graphs read them.
    pub stream: StreamHandle,
    /// Whether the first dimension of every tensor is the batch's.
    pub is_batching: bool,
    /// Whether inputs of different sizes are joined, which leaves no dimension that outputs have
    /// too.
    pub has_ragged_inputs: bool,
}

/// The graphs of a session.
pub(super) struct Graphs {
    options: GraphOptions,
    known: Vec<Graph>,
}

/// One graph, on memory of its own.
pub(super) struct Graph {
    /// Of the runs that capture and replay it.
    pub(super) options: Arc<RawRunOptions>,
    stream: StreamHandle,
    /// In the order of the feeds.
    pub(super) inputs: Vec<GraphTensor>,
    /// In the order of the targets.
    pub(super) outputs: Vec<GraphTensor>,
}

/// An input or output of a graph.
pub(super) struct GraphTensor {
    pub(super) name: CString,
    pub(super) data_type: DataType,
    pub(super) shape: Vec<i64>,
    pub(super) block: DeviceBlock,
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
    /// `Unavailable` if the device has no room for its tensors; `Internal` with ONNX Runtime's own
    /// words.
    pub(super) fn graph_for(
        &mut self,
        options: &RunOptions,
        feeds: &[Feed<'_>],
        targets: &[Target<'_, '_>],
    ) -> Result<Option<&mut Graph>, Error> {
        let is_on_device = |feed: &Feed<'_>| matches!(feed.data, FeedData::Device(_));
        if feeds.is_empty() || !feeds.iter().all(is_on_device) {
            return Ok(None);
        }
        let mut graphs = self.known.iter();
        if let Some(position) = graphs.position(|graph| graph.is_for(feeds, targets)) {
            return Ok(self.known.get_mut(position));
        }
        if self.known.len() == GRAPHS_MAX {
            return Ok(None);
        }
        let Some(shapes) = self.output_shapes(feeds, targets) else {
            return Ok(None);
        };
        let graph = self.make(options, feeds, targets, shapes)?;
        self.known.push(graph);
        Ok(self.known.last_mut())
    }

    fn make(
        &self,
        options: &RunOptions,
        feeds: &[Feed<'_>],
        targets: &[Target<'_, '_>],
        output_shapes: Vec<Vec<i64>>,
    ) -> Result<Graph, Error> {
        let inputs = feeds
            .iter()
            .map(|feed| self.tensor(feed.name.to_owned(), feed.data_type, feed.shape.to_vec()));
        let outputs = targets.iter().zip(output_shapes).map(|(target, shape)| {
            self.tensor(target.info.name.clone(), target.info.data_type, shape)
        });
        // 0 is not to be used.
        let id = i32::try_from(self.known.len() + 1).unwrap_or(i32::MAX);
        Ok(Graph {
            options: options.of_graph(id)?,
            stream: self.options.stream.clone(),
            inputs: inputs.collect::<Result<_, Error>>()?,
            outputs: outputs.collect::<Result<_, Error>>()?,
        })
    }

    fn tensor(
        &self,
        name: CString,
        data_type: DataType,
        shape: Vec<i64>,
    ) -> Result<GraphTensor, Error> {
        let len = data_type.byte_count(&shape);
        let len = len.ok_or_else(|| Error::internal("a tensor of a graph without a size"))?;
        Ok(GraphTensor {
            name,
            data_type,
            shape,
            block: self.options.blocks.allocate(len)?,
        })
    }

    /// Shapes of the outputs, if they are known before the run.
    fn output_shapes(
        &self,
        feeds: &[Feed<'_>],
        targets: &[Target<'_, '_>],
    ) -> Option<Vec<Vec<i64>>> {
        if self.options.has_ragged_inputs {
            return None;
        }
        let rows = match self.options.is_batching {
            true => Some(common_rows(feeds.iter().map(|feed| feed.shape))?),
            false => None,
        };
        let is_fixed = |target: &Target<'_, '_>| target.info.data_type.element_bytes().is_some();
        targets
            .iter()
            .map(|target| shape_of(&target.info.dims, rows).filter(|_| is_fixed(target)))
            .collect()
    }
}

/// The first dimension of all shapes, if there is one that they have in common.
fn common_rows<'s>(mut shapes: impl Iterator<Item = &'s [i64]>) -> Option<i64> {
    let rows = *shapes.next()?.first()?;
    shapes
        .all(|shape| shape.first() == Some(&rows))
        .then_some(rows)
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

impl Graph {
    /// Whether it is that of such a run. The shapes of outputs follow from those of inputs.
    fn is_for(&self, feeds: &[Feed<'_>], targets: &[Target<'_, '_>]) -> bool {
        let mut inputs = self.inputs.iter().zip(feeds);
        let mut outputs = self.outputs.iter().zip(targets);
        (self.inputs.len(), self.outputs.len()) == (feeds.len(), targets.len())
            && inputs.all(|(own, feed)| *own.name == *feed.name && own.shape == feed.shape)
            && outputs.all(|(own, target)| own.name == target.info.name)
    }

    /// Enqueues the copies of the feeds to where the graph reads them.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    ///
    /// # Safety
    /// The feeds stay as they are until the stream has got there.
    pub(super) unsafe fn fill(&mut self, feeds: &[Feed<'_>]) -> Result<(), Error> {
        for (input, feed) in self.inputs.iter_mut().zip(feeds) {
            if let FeedData::Device(bytes) = feed.data {
                // SAFETY: by this function's contract; nobody else uses the block meanwhile.
                unsafe { input.block.fill(&self.stream, bytes)? };
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

    #[test]
    fn rows_are_those_that_all_inputs_have() {
        for (shapes, expected) in [
            (&[&[3, 4][..], &[3]][..], Some(3)),
            (&[&[3, 4], &[2, 4]], None),
            (&[&[3], &[]], None),
            (&[&[]], None),
            (&[], None),
        ] {
            assert_eq!(common_rows(shapes.iter().copied()), expected, "{shapes:?}");
        }
    }
}
