//! The requests of a stream: message by message, as long as there is room for another.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use conch_memory::Budget;

use super::scheduler::StreamScheduler;
use super::setup::{MESSAGES_PER_TURN, StreamSetup};
use crate::coding::ContentCoding;
use crate::grpc::body::{CallFailure, CompressedMessage};
use crate::grpc::frame::{MESSAGE_BYTES_MAX, MessagePrefix};
use crate::grpc::infer::{self, CompleteMessage, MessageReader};
use crate::grpc::peer_timeout::PeerTimeout;
use crate::grpc::status::GrpcStatus;
use crate::grpc::trace::RequestWait;
use crate::grpc::transport::CallBody;
use crate::grpc::uploads::{PartialMessage, PartialMessages, check_memory};
use crate::shard::{ResponseQueue, Shard, StreamRequest, yield_now};

/// Reads requests and submits them until the client has sent its last.
pub(super) async fn take_in(
    shard: &Rc<Shard>,
    uploads: &Rc<PartialMessages>,
    body: CallBody,
    terms: &StreamSetup,
    scheduler: &RefCell<StreamScheduler<StreamRequest>>,
    responses: &Rc<ResponseQueue>,
) -> Result<(), CallFailure> {
    let mut messages = MessageSplitter::new(body, terms, uploads);
    // Since there was last nothing to read.
    let mut count = 0;
    loop {
        // Who makes room polls this again.
        std::future::poll_fn(|_| match scheduler.borrow().has_room() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        let wait = RequestWait::begin(shard);
        let Some(mut arrived) = messages.next(shard).await? else {
            return Ok(());
        };
        if messages.take_pause() {
            count = 0;
        }
        let wait = wait.end();
        infer::check_model(&terms.sender, &mut arrived);
        if shard.server.demand().is_some() && !arrived.is_refused() {
            // Boxed: rare, and its state would make every stream larger. The requests behind it
            // wait as well.
            Box::pin(infer::ensure_loaded(shard, &mut arrived)).await;
        }
        let typed = infer::convert(shard, &terms.sender.budget, &arrived).await;
        let (sender, deadline_ns) = (&terms.sender, terms.deadline_ns);
        if let Some(room) = infer::acquire(shard, &mut arrived, sender, deadline_ns) {
            // The requests behind it wait as well.
            let outcome = room.await;
            infer::note_acquired(shard, &mut arrived, outcome);
        }
        let streamed = infer::submit_streamed(
            shard,
            arrived,
            typed,
            (&terms.sender, terms.deadline_ns),
            responses,
            wait,
        )?;
        scheduler.borrow_mut().add(streamed);
        count += 1;
        if count == MESSAGES_PER_TURN {
            count = 0;
            yield_now().await;
        }
    }
}

/// A message that has not come in full.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are of the large kind"
)]
enum OpenMessage {
    Plain(MessageReader),
    Packed(CompressedMessage),
}

/// What was cut off at the end of a message.
enum CutMessage {
    Arrived(CompleteMessage),
    Packed(CompressedMessage),
}

/// Cuts the stream's bytes into messages.
struct MessageSplitter {
    body: CallBody,
    /// What is left of the last frame.
    rest: Bytes,
    prefix: MessagePrefix,
    /// What messages are compressed with that say they are.
    coding: Option<ContentCoding>,
    budget: Arc<Budget>,
    open: Option<OpenMessage>,
    uploads: Rc<PartialMessages>,
    /// Of the open message, unless it came whole.
    upload: Option<PartialMessage>,
    /// There was nothing to read since the last look.
    has_paused: bool,
}

impl MessageSplitter {
    fn new(body: CallBody, terms: &StreamSetup, uploads: &Rc<PartialMessages>) -> MessageSplitter {
        MessageSplitter {
            body,
            rest: Bytes::new(),
            prefix: MessagePrefix::default(),
            coding: terms.compression.incoming,
            budget: Arc::clone(&terms.sender.budget),
            open: None,
            uploads: Rc::clone(uploads),
            upload: None,
            has_paused: false,
        }
    }

    fn take_pause(&mut self) -> bool {
        std::mem::take(&mut self.has_paused)
    }

    /// The next message; none when the client has sent its last.
    async fn next(&mut self, shard: &Shard) -> Result<Option<CompleteMessage>, CallFailure> {
        let mut peer_timeout = PeerTimeout::new(None);
        loop {
            match self.cut(shard)? {
                Some(CutMessage::Arrived(arrived)) => return Ok(Some(arrived)),
                // Boxed: most streams have none, and its state would make each larger.
                Some(CutMessage::Packed(compressed)) => {
                    return Ok(Some(Box::pin(compressed.unpack_tensors(shard)).await?));
                }
                None => {}
            }
            // Between messages a client may stay silent for as long as it likes.
            let is_between = self.open.is_none() && self.prefix.is_empty();
            let (body, has_paused) = (&mut self.body, &mut self.has_paused);
            let frame = std::future::poll_fn(|context| match body.poll_next(context) {
                Poll::Ready(Some(Ok(data))) => Poll::Ready(Ok::<_, CallFailure>(Some(data))),
                Poll::Ready(Some(Err(failure))) => Poll::Ready(Err(failure.into())),
                Poll::Ready(None) => Poll::Ready(Ok(None)),
                Poll::Pending => {
                    *has_paused = true;
                    if is_between {
                        return Poll::Pending;
                    }
                    peer_timeout.poll(context).map(|status| Err(status.into()))
                }
            })
            .await?;
            match frame {
                Some(frame) => {
                    peer_timeout.note_progress();
                    self.rest = frame;
                }
                None if is_between => return Ok(None),
                None => return Err(GrpcStatus::unparsable().into()),
            }
        }
    }

    /// Takes from the last frame up to the end of a message.
    fn cut(&mut self, shard: &Shard) -> Result<Option<CutMessage>, GrpcStatus> {
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let taken = self
                    .prefix
                    .take(&self.rest, MESSAGE_BYTES_MAX, self.coding)?;
                let (length, rest) = taken;
                let used_bytes = self.rest.len() - rest.len();
                self.rest.advance(used_bytes);
                let Some(length) = length else {
                    return Ok(None);
                };
                check_memory()?;
                let prefix = std::mem::take(&mut self.prefix);
                none.insert(match prefix.packed() {
                    Some(coding) => OpenMessage::Packed(CompressedMessage::new(
                        shard,
                        &self.budget,
                        length,
                        Some(coding),
                    )?),
                    None => {
                        let reader = MessageReader::new(&shard.pool, &self.budget, length);
                        OpenMessage::Plain(reader.with_models(shard.models_on_gpus()))
                    }
                })
            }
        };
        let left = match open {
            OpenMessage::Plain(reader) => reader.left(),
            OpenMessage::Packed(compressed) => compressed.left(),
        };
        let own = self.rest.split_to(self.rest.len().min(left));
        let is_whole = own.len() == left;
        match open {
            OpenMessage::Plain(reader) => reader.feed(&own)?,
            OpenMessage::Packed(compressed) => compressed.push(own)?,
        }
        if !is_whole {
            if self.upload.is_none() {
                self.upload = Some(self.uploads.begin()?);
            }
            return Ok(None);
        }
        self.upload = None;
        Ok(match self.open.take() {
            Some(OpenMessage::Plain(reader)) => Some(CutMessage::Arrived(reader.finish()?)),
            Some(OpenMessage::Packed(compressed)) => Some(CutMessage::Packed(compressed)),
            None => None,
        })
    }
}
