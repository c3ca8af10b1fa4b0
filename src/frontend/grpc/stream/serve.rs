//! The future of a stream.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use super::intake;
use super::message::RenderFuture;
use super::scheduler::{OutgoingMessage, StreamScheduler};
use super::setup::{MESSAGES_PER_TURN, StreamSetup};
use crate::grpc::body::{CallFailure, send_pieces};
use crate::grpc::compression::pack;
use crate::grpc::delays;
use crate::grpc::peer_timeout::PeerTimeout;
use crate::grpc::reply;
use crate::grpc::status::GrpcStatus;
use crate::grpc::trace::{SEND_END, SEND_START, note};
use crate::grpc::transport::{CallBody, Responder};
use crate::grpc::uploads::PartialMessages;
use crate::shard::{ResponseQueue, Shard, StreamRequest, Timer, yield_now};

/// Serves one stream until the client has sent its last request and has all responses, or leaves.
/// What is in flight when it ends is cancelled.
pub(in crate::grpc) async fn serve(
    shard: &Rc<Shard>,
    terms: StreamSetup,
    uploads: &Rc<PartialMessages>,
    body: CallBody,
    respond: &mut Responder,
) -> Result<(), CallFailure> {
    reply::send_head(respond, terms.compression.outgoing)?;
    match run(shard, terms, uploads, body, respond).await {
        Ok(()) => reply::send_ok(respond)?,
        Err(CallFailure::Status(status)) => reply::send_error(respond, &status)?,
        Err(failure @ CallFailure::Gone) => return Err(failure),
    }
    Ok(())
}

async fn run(
    shard: &Rc<Shard>,
    terms: StreamSetup,
    uploads: &Rc<PartialMessages>,
    body: CallBody,
    respond: &mut Responder,
) -> Result<(), CallFailure> {
    let scheduler = RefCell::new(StreamScheduler::new(terms.ends_at_error));
    let responses = Rc::new(ResponseQueue::default());
    let mut intake = pin!(intake::take_in(
        shard, uploads, body, &terms, &scheduler, &responses
    ));
    let mut outlet = pin!(write_due(shard, &scheduler, respond, &terms));
    let mut drained = pin!(shard.drained());
    let mut deadline = terms.deadline_ns.map(Timer::at);
    let mut has_ended = false;
    std::future::poll_fn(|context| {
        loop {
            if !has_ended && let Poll::Ready(outcome) = intake.as_mut().poll(context) {
                outcome?;
                has_ended = true;
                scheduler.borrow_mut().note_end();
            }
            while let Some(delivery) = responses.take(context) {
                scheduler.borrow_mut().deliver(delivery);
            }
            if let Poll::Ready(outcome) = outlet.as_mut().poll(context) {
                return Poll::Ready(outcome);
            }
            // What was written has made room for what is read.
            if !scheduler.borrow_mut().take_change() {
                break;
            }
        }
        if let Some(timer) = &mut deadline
            && Pin::new(timer).poll(context).is_ready()
        {
            return Poll::Ready(Err(GrpcStatus::deadline_exceeded().into()));
        }
        if drained.as_mut().poll(context).is_ready() && scheduler.borrow().is_idle() {
            return Poll::Ready(Err(GrpcStatus::shutting_down().into()));
        }
        Poll::Pending
    })
    .await
}

/// Writes what is due until nothing more will be.
async fn write_due(
    shard: &Shard,
    scheduler: &RefCell<StreamScheduler<StreamRequest>>,
    respond: &mut Responder,
    terms: &StreamSetup,
) -> Result<(), CallFailure> {
    let coding = terms.compression.outgoing;
    let mut peer_timeout = PeerTimeout::new(None);
    // Since there was last nothing to write.
    let mut count = 0;
    loop {
        let next = std::future::poll_fn(|context| {
            let mut scheduler = scheduler.borrow_mut();
            if let Some(next) = scheduler.next() {
                return Poll::Ready(Ok(Some(next)));
            }
            if scheduler.is_over() {
                return Poll::Ready(Ok(None));
            }
            count = 0;
            // A client that leaves is noticed here, or by who waits for its window.
            match respond.poll_reset(context) {
                Poll::Ready(_) => Poll::Ready(Err(CallFailure::Gone)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await?;
        let Some(outgoing) = next else {
            return Ok(());
        };
        let OutgoingMessage {
            message,
            credit_refund,
            call_trace,
        } = outgoing;
        let mut pieces = match message {
            RenderFuture::Ready(rendered) => rendered?,
            RenderFuture::Long(long) => {
                // The others of the stream wait for it; taking in and booking go on.
                let cost_bytes = long.byte_size();
                let pieces = shard.offload(cost_bytes, move || long.render()).await?;
                peer_timeout.note_progress();
                pieces
            }
        };
        if let Some(coding) = coding {
            pieces = Box::pin(pack(shard, pieces, coding)).await;
        }
        if let Some(delay) = shard.options.grpc_delays.write {
            Box::pin(delays::wait(delay, "the write of the response")).await;
        }
        note(call_trace.as_ref(), SEND_START);
        send_pieces(respond, &terms.sender.budget, pieces, &mut peer_timeout).await?;
        note(call_trace.as_ref(), SEND_END);
        if let Some(credit_refund) = credit_refund {
            credit_refund.refund();
        }
        count += 1;
        if count == MESSAGES_PER_TURN {
            count = 0;
            yield_now().await;
        }
    }
}
