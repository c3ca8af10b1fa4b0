//! What is counted of the frames in both directions, whoever handles them.

use std::rc::Rc;

use conch_engine::clock;

use super::state::TransportState;
use crate::grpc::floods::FloodLimits;
use crate::grpc::frames::{FrameHead, FrameObserver};
use crate::grpc::pings::PingStrikes;
use crate::options::GrpcConnections;

pub(super) struct FrameLimits {
    transport_state: Rc<TransportState>,
    strikes: PingStrikes,
    floods: FloodLimits,
    /// The highest that the peer has opened, or tried to.
    last_stream: u32,
    /// What there was too much of.
    excess: Option<&'static str>,
    /// When the bytes came that are being looked at.
    now_ns: u64,
}

impl FrameLimits {
    pub(super) fn new(
        transport_state: &Rc<TransportState>,
        options: &GrpcConnections,
    ) -> FrameLimits {
        let now_ns = clock::monotonic_ns();
        transport_state.received_ns.set(now_ns);
        FrameLimits {
            transport_state: Rc::clone(transport_state),
            strikes: PingStrikes::new(options),
            floods: FloodLimits::new(now_ns),
            last_stream: 0,
            excess: None,
            now_ns,
        }
    }

    pub(super) fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Bytes came, whose frames are noted next.
    pub(super) fn begin_bytes(&mut self) {
        self.now_ns = clock::monotonic_ns();
        self.transport_state.received_ns.set(self.now_ns);
    }

    pub(super) fn note_received(&mut self, frame: FrameHead) {
        if let Some(stream) = frame.opens() {
            self.last_stream = stream.max(self.last_stream);
            self.transport_state.has_calls.set(true);
            return;
        }
        let has_calls = self.transport_state.has_calls.get();
        if frame.is_ping() && self.strikes.note_ping(self.now_ns, has_calls) {
            self.excess = self.excess.or(Some("too_many_pings"));
        }
        let flood = self.floods.note_received(frame, self.now_ns);
        self.excess = self.excess.or(flood);
    }

    /// All that came has been followed by `frames`.
    ///
    /// # Errors
    /// What the peer sends too many of.
    pub(super) fn end_bytes(&mut self, frames: &FrameObserver) -> Result<(), &'static str> {
        self.transport_state
            .note_block(frames.is_in_block(), self.now_ns);
        if FloodLimits::has_too_many_updates(frames.table_update_count()) {
            self.excess = self.excess.or(Some("too_many_table_updates"));
        }
        match self.excess {
            Some(words) => Err(words),
            None => Ok(()),
        }
    }

    pub(super) fn note_sent(&mut self, frame: FrameHead) {
        if frame.excuses_pings() {
            self.strikes.excuse();
        }
        self.floods.note_sent(frame);
    }
}
