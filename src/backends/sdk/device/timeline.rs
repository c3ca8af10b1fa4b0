//! Times of the stages of a batch on the device, on the clock of the host.

use std::mem;
use std::sync::Arc;

use conch_cuda::{CudaError, Device, Event, Stream};

use crate::Request;
use crate::clock::monotonic_ns;

/// Marks in the streams of a batch: where its work begins, and where each stage ends. A mark with a
/// time costs the CPU about as much as a copy, so stages without copies have none.
pub(super) struct StageMarks {
    pub(super) begin: Event,
    /// Its computation begins.
    pub(super) staged_in: Event,
    pub(super) computed: Event,
    pub(super) staged_out: Event,
}

impl StageMarks {
    /// # Errors
    /// What the driver refuses.
    pub(super) fn new(device: &Arc<Device>) -> Result<StageMarks, CudaError> {
        Ok(StageMarks {
            begin: Event::timed(device)?,
            staged_in: Event::timed(device)?,
            computed: Event::timed(device)?,
            staged_out: Event::timed(device)?,
        })
    }
}

/// Which stages of a batch have marks. One without takes no time: computation begins with the
/// batch, or ends with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkedStages {
    pub(super) staged_in: bool,
    pub(super) computed: bool,
}

/// When the work of a batch began on its device and its stages ended, ns on the clock of
/// [`clock`](crate::clock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchTimeline {
    pub(super) begin_ns: u64,
    /// Its inputs were on the device, and its computation began.
    pub(super) staged_in_ns: u64,
    pub(super) computed_ns: u64,
    /// Its outputs were where they are wanted, or in staging memory.
    pub(super) staged_out_ns: u64,
}

impl BatchTimeline {
    /// Of a device that does not tell.
    pub(super) fn unknown(enqueued_ns: u64, noticed_ns: u64) -> BatchTimeline {
        BatchTimeline {
            begin_ns: enqueued_ns,
            staged_in_ns: enqueued_ns,
            computed_ns: noticed_ns,
            staged_out_ns: noticed_ns,
        }
    }

    /// Computation went on until `end_ns`.
    pub(super) fn extend_compute(&mut self, end_ns: u64) {
        self.computed_ns = self.computed_ns.max(end_ns);
        self.staged_out_ns = self.staged_out_ns.max(end_ns);
    }

    /// Adds the stages to the trace of a request that is traced.
    pub(super) fn report(&self, request: Request<'_>) {
        if !request.is_traced().unwrap_or(false) {
            return;
        }
        for (name, at_ns) in [
            (c"CONCH_DEVICE_STAGE_IN_START", self.begin_ns),
            (c"CONCH_DEVICE_COMPUTE_START", self.staged_in_ns),
            (c"CONCH_DEVICE_STAGE_OUT_START", self.computed_ns),
            (c"CONCH_DEVICE_STAGE_OUT_END", self.staged_out_ns),
        ] {
            if let Err(error) = request.report_activity_at(name, at_ns) {
                crate::verbose!("failed to trace a stage: {error}");
            }
        }
    }
}

/// The device's clock, by an event whose time on the host is known. That is the last one of the
/// batch that was read before: clocks drift apart, so the time between two events is only trusted
/// over a batch or a pause, and within what the host saw itself. Batches that are read by one clock
/// are in the order in which they were on the device.
pub(super) struct DeviceClock {
    anchor: Event,
    anchor_ns: u64,
}

impl DeviceClock {
    /// Blocks until the stream is idle.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(super) fn new(stream: &Stream) -> Result<DeviceClock, CudaError> {
        let anchor = Event::timed(stream.device())?;
        stream.record(&anchor)?;
        anchor.wait()?;
        Ok(DeviceClock {
            anchor,
            anchor_ns: monotonic_ns(),
        })
    }

    /// The times of marks that are reached, of a batch that was enqueued at `enqueued_ns` and found
    /// done at `noticed_ns`. Takes the last mark, and leaves another event in its place.
    pub(super) fn read(
        &mut self,
        marks: &mut StageMarks,
        marked: MarkedStages,
        enqueued_ns: u64,
        noticed_ns: u64,
    ) -> BatchTimeline {
        let mut earliest_ns = enqueued_ns;
        let mut time_of = |event: &Event| {
            let since_ns = event.ns_since(&self.anchor).ok()?;
            let at_ns = self.anchor_ns.saturating_add_signed(since_ns);
            earliest_ns = at_ns.clamp(earliest_ns, noticed_ns.max(earliest_ns));
            Some(earliest_ns)
        };
        // The driver is asked once for each mark that there is: it takes about a microsecond.
        let begin_ns = time_of(&marks.begin);
        let staged_in_ns = match marked.staged_in {
            true => time_of(&marks.staged_in),
            false => begin_ns,
        };
        let computed_ns = marked.computed.then(|| time_of(&marks.computed));
        let staged_out_ns = time_of(&marks.staged_out);
        let computed_ns = computed_ns.unwrap_or(staged_out_ns);
        let (Some(begin_ns), Some(staged_in_ns), Some(computed_ns), Some(staged_out_ns)) =
            (begin_ns, staged_in_ns, computed_ns, staged_out_ns)
        else {
            return BatchTimeline::unknown(enqueued_ns, noticed_ns);
        };
        mem::swap(&mut self.anchor, &mut marks.staged_out);
        self.anchor_ns = staged_out_ns;
        BatchTimeline {
            begin_ns,
            staged_in_ns,
            computed_ns,
            staged_out_ns,
        }
    }
}
