//! Requests of a stream that are in flight, and the order in which their responses are written.
//!
//! Responses of one-to-one models leave in the order of their requests, whatever becomes ready
//! first: they form one *line*. Each request of a decoupled model is a lane of its own, with its
//! responses in the order in which the model sent them. Whoever has something to write takes turns,
//! message by message, the line as one of them; and as another one all requests of decoupled models
//! under preserve-ordering, whose responses leave in the order in which the engine delivers them.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use conch_engine::{Credits, Delivery, Error, Response};
use conch_memory::Charge;

use super::message::{RenderFuture, ResponseHead, StreamItem};
use crate::grpc::infer::StreamedRequest;
use crate::grpc::status::GrpcStatus;
use crate::grpc::trace::CallTrace;
use crate::shard::StreamRequest;

/// Requests of one stream that are not answered to the end. More stay with the client, by way of
/// its window.
const REQUESTS_MAX: usize = 512;
/// Responses of one stream that wait for the client to read. Those that are to come add to it,
/// within their requests' credits.
const WAITING_MAX: usize = 1024;

/// A request that the engine has; dropping it cancels it.
pub(super) trait EngineRequest {
    fn slot(&self) -> u64;
    fn credits(&self) -> Option<&Arc<Credits>>;
    /// It is over: dropping it does nothing any more.
    fn note_final(&mut self);
}

impl EngineRequest for StreamRequest {
    fn slot(&self) -> u64 {
        StreamRequest::slot(self)
    }

    fn credits(&self) -> Option<&Arc<Credits>> {
        StreamRequest::credits(self)
    }

    fn note_final(&mut self) {
        StreamRequest::note_final(self);
    }
}

/// One request, until its last response is written.
struct StreamFlow<F> {
    response_head: ResponseHead,
    /// None once its final delivery has come.
    flight: Option<F>,
    /// Of the request, also after its end: what waits to be read is paid for.
    credits: Option<Arc<Credits>>,
    is_decoupled: bool,
    is_ordered: bool,
    wants_empty_final: bool,
    items: VecDeque<StreamItem>,
    call_trace: Option<Rc<CallTrace>>,
    /// For what is kept of the request.
    _charge: Option<Charge>,
}

/// Requests in the engine's hands by their slot, the others by a number of ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FlowKey {
    Slot(u64),
    Refused(u64),
}

/// Who may write.
enum WriteTurn {
    /// The first of the line.
    Line,
    /// The first of what is ordered.
    Ordered,
    Flow(FlowKey),
    /// The stream ends here.
    End(GrpcStatus),
}

/// A message to be written, or the status with which the stream ends.
pub(super) struct OutgoingMessage {
    pub(super) message: RenderFuture,
    /// For when it is written.
    pub(super) credit_refund: Option<CreditRefund>,
    pub(super) call_trace: Option<Rc<CallTrace>>,
}

/// What a response was paid with.
pub(super) struct CreditRefund {
    credits: Arc<Credits>,
    bytes: u64,
}

impl CreditRefund {
    pub(super) fn refund(self) {
        self.credits.refund(self.bytes);
    }
}

pub(super) struct StreamScheduler<F> {
    flows: BTreeMap<FlowKey, StreamFlow<F>>,
    line: VecDeque<FlowKey>,
    /// The line is among the ready.
    is_line_ready: bool,
    /// Of decoupled models under preserve-ordering: whose item is written when, one entry for each.
    /// Among the ready unless empty.
    ordered: VecDeque<FlowKey>,
    ready: VecDeque<WriteTurn>,
    waiting_count: usize,
    refused_count: u64,
    ends_at_error: bool,
    has_ended: bool,
    has_changed: bool,
}

impl<F: EngineRequest> StreamScheduler<F> {
    pub(super) fn new(ends_at_error: bool) -> StreamScheduler<F> {
        StreamScheduler {
            flows: BTreeMap::new(),
            line: VecDeque::new(),
            is_line_ready: false,
            ordered: VecDeque::new(),
            ready: VecDeque::new(),
            waiting_count: 0,
            refused_count: 0,
            ends_at_error,
            has_ended: false,
            has_changed: false,
        }
    }

    /// Whether another request may be read.
    pub(super) fn has_room(&self) -> bool {
        self.flows.len() < REQUESTS_MAX && self.waiting_count < WAITING_MAX
    }

    /// Nobody waits for anything.
    pub(super) fn is_idle(&self) -> bool {
        self.flows.is_empty()
    }

    /// The client has sent its last request.
    pub(super) fn note_end(&mut self) {
        self.has_ended = true;
    }

    /// The client has sent its last request and has all responses.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended && self.flows.is_empty()
    }

    /// Whether something was added, booked or given out since the last time.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// The client's next request.
    pub(super) fn add(&mut self, streamed: StreamedRequest<F>) {
        let mut flow = StreamFlow {
            response_head: ResponseHead {
                id: streamed.id,
                model_name: streamed.model_name,
                model_version: streamed.model_version,
                classes: streamed.classes,
            },
            flight: None,
            credits: None,
            is_decoupled: streamed.is_decoupled,
            is_ordered: streamed.is_ordered,
            wants_empty_final: streamed.wants_empty_final,
            items: VecDeque::new(),
            call_trace: streamed.call_trace,
            _charge: streamed.charge,
        };
        let key = match streamed.flight {
            Ok(flight) => {
                let key = FlowKey::Slot(flight.slot());
                flow.credits = flight.credits().cloned();
                flow.flight = Some(flight);
                key
            }
            Err(status) => {
                flow.items.push_back(StreamItem::Refused(status));
                self.waiting_count += 1;
                self.refused_count += 1;
                FlowKey::Refused(self.refused_count)
            }
        };
        let is_refused = flow.flight.is_none();
        if !flow.is_decoupled {
            self.line.push_back(key);
        } else if is_refused {
            self.ready.push_back(WriteTurn::Flow(key));
        }
        self.flows.insert(key, flow);
        self.check_line();
        self.has_changed = true;
    }

    /// What the engine delivers for one of the requests.
    pub(super) fn deliver(&mut self, delivery: Delivery) {
        let (key, is_final) = (FlowKey::Slot(delivery.slot()), delivery.is_final());
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        self.has_changed = true;
        if let Some(call_trace) = &flow.call_trace {
            call_trace.note_response();
        }
        if is_final && let Some(mut flight) = flow.flight.take() {
            flight.note_final();
        }
        if !flow.is_decoupled {
            self.deliver_in_line(key, delivery.into_outcome(), is_final);
            return;
        }
        let had_items = !flow.items.is_empty();
        match delivery {
            Delivery::Partial { outcome, .. } | Delivery::Final { outcome, .. } => {
                flow.items.push_back(StreamItem::Outcome(outcome, is_final));
            }
            Delivery::End { .. } if flow.wants_empty_final => {
                flow.items.push_back(StreamItem::Empty);
            }
            Delivery::End { .. } => {
                if !had_items {
                    self.flows.remove(&key);
                }
                return;
            }
            Delivery::Flags { .. } => return,
        }
        self.waiting_count += 1;
        if flow.is_ordered {
            if self.ordered.is_empty() {
                self.ready.push_back(WriteTurn::Ordered);
            }
            self.ordered.push_back(key);
        } else if !had_items {
            self.ready.push_back(WriteTurn::Flow(key));
        }
    }

    /// A one-to-one model has one response, which leaves when the request is complete. Of several
    /// the first is passed on, as upstream.
    fn deliver_in_line(
        &mut self,
        key: FlowKey,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
    ) {
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        if let Some(outcome) = outcome
            && flow.items.is_empty()
        {
            flow.items.push_back(StreamItem::Outcome(outcome, true));
            self.waiting_count += 1;
        }
        if !is_final {
            return;
        }
        if flow.items.is_empty() {
            let error = Error::internal("expected a single response, got 0");
            flow.items.push_back(StreamItem::Outcome(Err(error), true));
            self.waiting_count += 1;
        }
        if self.ends_at_error
            && let Some(StreamItem::Outcome(Err(error), _)) = flow.items.front()
        {
            // Whoever is in front of it in the line does not matter.
            let status = GrpcStatus::from(error.clone());
            self.ready.push_back(WriteTurn::End(status));
        }
        self.check_line();
    }

    /// The line takes part if its first is complete.
    fn check_line(&mut self) {
        let first = self.line.front().and_then(|key| self.flows.get(key));
        if !self.is_line_ready && first.is_some_and(|flow| flow.flight.is_none()) {
            self.is_line_ready = true;
            self.ready.push_back(WriteTurn::Line);
        }
    }

    /// The next message to be written; none if there is nothing yet.
    pub(super) fn next(&mut self) -> Option<OutgoingMessage> {
        let key = match self.ready.pop_front()? {
            WriteTurn::End(status) => {
                return Some(OutgoingMessage {
                    message: RenderFuture::Ready(Err(status)),
                    credit_refund: None,
                    call_trace: None,
                });
            }
            WriteTurn::Line => {
                self.is_line_ready = false;
                self.line.pop_front()?
            }
            WriteTurn::Ordered => {
                let key = self.ordered.pop_front()?;
                if !self.ordered.is_empty() {
                    self.ready.push_back(WriteTurn::Ordered);
                }
                key
            }
            WriteTurn::Flow(key) => key,
        };
        let flow = self.flows.get_mut(&key)?;
        let item = flow.items.pop_front()?;
        self.waiting_count -= 1;
        self.has_changed = true;
        let outgoing = flow.send(item, self.ends_at_error);
        if !flow.items.is_empty() {
            if !flow.is_ordered {
                self.ready.push_back(WriteTurn::Flow(key));
            }
        } else if flow.flight.is_none() {
            self.flows.remove(&key);
        }
        self.check_line();
        Some(outgoing)
    }
}

impl<F: EngineRequest> StreamFlow<F> {
    fn send(&self, item: StreamItem, ends_at_error: bool) -> OutgoingMessage {
        let credit_refund = match (&item, &self.credits) {
            (StreamItem::Outcome(outcome, false), Some(credits)) => Some(CreditRefund {
                credits: Arc::clone(credits),
                bytes: outcome.as_ref().map_or(0, Response::byte_size),
            }),
            _ => None,
        };
        OutgoingMessage {
            message: self.response_head.message(item, ends_at_error),
            credit_refund,
            call_trace: self.call_trace.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use conch_proto::Message;
    use conch_proto::inference::ModelStreamInferResponse;

    use super::*;
    use crate::grpc::frame::PREFIX_BYTES;
    use crate::grpc::status::GrpcCode;

    struct Fake {
        slot: u64,
        credits: Option<Arc<Credits>>,
    }

    impl EngineRequest for Fake {
        fn slot(&self) -> u64 {
            self.slot
        }

        fn credits(&self) -> Option<&Arc<Credits>> {
            self.credits.as_ref()
        }

        fn note_final(&mut self) {}
    }

    fn streamed(flight: Result<u64, &'static str>, is_decoupled: bool) -> StreamedRequest<Fake> {
        let id = flight.map_or_else(str::to_owned, |slot| slot.to_string());
        StreamedRequest {
            flight: flight
                .map(|slot| Fake {
                    slot,
                    credits: is_decoupled.then(|| Arc::new(Credits::default())),
                })
                .map_err(|text| GrpcStatus::new(GrpcCode::InvalidArgument, text)),
            id: id.into(),
            model_name: "m".into(),
            model_version: "".into(),
            is_decoupled,
            is_ordered: false,
            wants_empty_final: false,
            classes: Default::default(),
            call_trace: None,
            charge: None,
        }
    }

    /// A delivery whose text is shown by [`written`].
    fn delivery(slot: u64, text: Option<&'static str>, is_final: bool) -> Delivery {
        Delivery::new(slot, text.map(|text| Err(Error::invalid(text))), is_final)
    }

    /// Everything that is due, as "id: text", and what ends the stream as it is.
    fn written(scheduler: &mut StreamScheduler<Fake>) -> Vec<String> {
        let mut rows = Vec::new();
        while let Some(outgoing) = scheduler.next() {
            if let Some(credit_refund) = outgoing.credit_refund {
                credit_refund.refund();
            }
            let rendered = match outgoing.message {
                RenderFuture::Ready(rendered) => rendered,
                RenderFuture::Long(long) => long.render(),
            };
            rows.push(match rendered {
                Ok(pieces) => {
                    let wire: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
                    let message = ModelStreamInferResponse::decode(&wire[PREFIX_BYTES..]).unwrap();
                    let id = message.infer_response.unwrap().id;
                    format!("{id}: {}", message.error_message)
                }
                Err(status) => format!("end: {}", status.message),
            });
        }
        rows
    }

    #[test]
    fn the_line_keeps_its_order_and_holds_nobody_else_up() {
        let mut scheduler = StreamScheduler::new(false);
        scheduler.add(streamed(Ok(1), false));
        scheduler.add(streamed(Err("refused"), false));
        scheduler.add(streamed(Ok(3), false));
        scheduler.add(streamed(Ok(4), true));
        scheduler.deliver(delivery(3, Some("c"), true));
        assert_eq!(written(&mut scheduler), [""; 0]);
        scheduler.deliver(delivery(4, Some("x"), false));
        assert_eq!(written(&mut scheduler), ["4: x"]);
        scheduler.deliver(delivery(1, Some("a"), true));
        assert_eq!(
            written(&mut scheduler),
            ["1: a", "refused: refused", "3: c"]
        );
        scheduler.note_end();
        assert!(!scheduler.is_over());
        scheduler.deliver(delivery(4, None, true));
        assert!(scheduler.is_over() && written(&mut scheduler).is_empty());
    }

    #[test]
    fn decoupled_requests_take_turns() {
        let mut scheduler = StreamScheduler::new(false);
        let rows = [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2")];
        scheduler.add(streamed(Ok(1), true));
        scheduler.add(streamed(Ok(2), true));
        for (slot, text) in rows {
            scheduler.deliver(delivery(slot, Some(text), false));
        }
        scheduler.add(streamed(Err("late"), false));
        assert_eq!(
            written(&mut scheduler),
            ["1: a1", "2: b1", "late: late", "1: a2", "2: b2", "1: a3"]
        );
        scheduler.deliver(delivery(1, Some("a4"), true));
        scheduler.deliver(delivery(2, None, true));
        scheduler.deliver(delivery(2, Some("after the end"), true));
        assert_eq!(written(&mut scheduler), ["1: a4"]);
        assert!(scheduler.is_idle() && scheduler.waiting_count == 0);
    }

    #[test]
    fn under_preserve_ordering_nobody_overtakes() {
        let mut scheduler = StreamScheduler::new(false);
        for slot in [1, 2] {
            scheduler.add(StreamedRequest {
                is_ordered: true,
                wants_empty_final: slot == 1,
                ..streamed(Ok(slot), true)
            });
        }
        scheduler.add(streamed(Ok(3), true));
        for (slot, text, is_final) in [
            (1, Some("a1"), false),
            (3, Some("c1"), false),
            (1, Some("a2"), false),
            (1, None, true),
            (2, Some("b1"), false),
            (2, Some("b2"), false),
            (3, Some("c2"), true),
            (2, None, true),
        ] {
            scheduler.deliver(delivery(slot, text, is_final));
        }
        assert_eq!(
            written(&mut scheduler),
            ["1: a1", "3: c1", "1: a2", "3: c2", "1: ", "2: b1", "2: b2"]
        );
        assert!(scheduler.is_idle() && scheduler.waiting_count == 0);
        assert!(scheduler.ready.is_empty() && scheduler.ordered.is_empty());
    }

    #[test]
    fn empty_ends_are_shown_to_who_asks() {
        for (wants_empty_final, expected) in [(true, &["1: "][..]), (false, &[])] {
            let mut scheduler = StreamScheduler::new(false);
            scheduler.add(StreamedRequest {
                wants_empty_final,
                ..streamed(Ok(1), true)
            });
            scheduler.deliver(delivery(1, None, true));
            assert_eq!(written(&mut scheduler), expected);
            assert!(scheduler.is_idle());
        }
    }

    #[test]
    fn a_failed_inference_ends_the_stream_if_asked_to() {
        let mut scheduler = StreamScheduler::new(true);
        scheduler.add(streamed(Err("refused"), false));
        scheduler.add(streamed(Ok(1), false));
        scheduler.add(streamed(Ok(2), false));
        assert_eq!(written(&mut scheduler), ["refused: refused"]);
        // Not in line: it ends the stream all the same.
        scheduler.deliver(delivery(2, Some("failed"), true));
        assert_eq!(written(&mut scheduler), ["end: failed"]);
        let mut scheduler = StreamScheduler::new(true);
        scheduler.add(streamed(Ok(3), true));
        scheduler.deliver(delivery(3, Some("failed"), false));
        assert_eq!(written(&mut scheduler), ["end: failed"]);
    }

    #[test]
    fn one_to_one_models_have_one_response() {
        let mut scheduler = StreamScheduler::new(false);
        for slot in [1, 2] {
            scheduler.add(streamed(Ok(slot), false));
        }
        scheduler.deliver(delivery(1, None, true));
        scheduler.deliver(delivery(2, Some("a"), false));
        scheduler.deliver(delivery(2, Some("b"), true));
        assert_eq!(
            written(&mut scheduler),
            ["1: expected a single response, got 0", "2: a"]
        );
        assert!(scheduler.is_idle() && scheduler.waiting_count == 0);
    }

    #[test]
    fn what_is_not_read_bounds_what_is_taken_in() {
        let mut scheduler = StreamScheduler::new(false);
        for slot in 0..REQUESTS_MAX as u64 {
            assert!(scheduler.has_room());
            scheduler.add(streamed(Ok(slot), false));
        }
        assert!(!scheduler.has_room());
        scheduler.deliver(delivery(0, Some("a"), true));
        assert!(!scheduler.has_room(), "until it is written");
        assert_eq!(written(&mut scheduler).len(), 1);
        assert!(scheduler.has_room());

        let mut scheduler = StreamScheduler::new(false);
        scheduler.add(streamed(Ok(1), true));
        for _ in 0..WAITING_MAX {
            assert!(scheduler.has_room());
            scheduler.deliver(delivery(1, Some("a"), false));
        }
        assert!(!scheduler.has_room());
    }

    #[test]
    fn what_is_written_is_paid_back() {
        let mut scheduler = StreamScheduler::new(false);
        let request = streamed(Ok(1), true);
        let credits = Arc::clone(request.flight.as_ref().ok().unwrap().credits().unwrap());
        scheduler.add(request);
        for _ in 0..3 {
            assert_eq!(
                credits.pay(0),
                conch_engine::flow_control::payment::Payment::Made
            );
            scheduler.deliver(delivery(1, Some("a"), false));
        }
        assert!(!credits.is_unused());
        written(&mut scheduler);
        assert!(credits.is_unused());
        // Also after its end.
        assert_eq!(
            credits.pay(0),
            conch_engine::flow_control::payment::Payment::Made
        );
        scheduler.deliver(delivery(1, Some("a"), false));
        scheduler.deliver(delivery(1, None, true));
        assert!(!credits.is_unused());
        written(&mut scheduler);
        assert!(credits.is_unused() && scheduler.is_idle());
    }
}
