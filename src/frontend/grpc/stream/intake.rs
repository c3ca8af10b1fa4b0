//! The requests of a stream: message by message, as long as there is room for another.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use conch_memory::Budget;
use h2::RecvStream;

use super::traffic::Traffic;
use super::{MESSAGES_PER_TURN, Terms};
use crate::coding::Coding;
use crate::grpc::body::{Failure, Pile, release};
use crate::grpc::frame::{MESSAGE_BYTES_MAX, Prefix};
use crate::grpc::infer::{self, Arrived, Reader};
use crate::grpc::patience::Patience;
use crate::grpc::status::Status;
use crate::grpc::trace::Wait;
use crate::grpc::uploads::{Upload, Uploads, check_memory};
use crate::shard::{Flight, Shard, Tray, breathe};

/// Reads requests and submits them until the client has sent its last.
pub(super) async fn take_in(
    shard: &Rc<Shard>,
    uploads: &Rc<Uploads>,
    body: RecvStream,
    terms: &Terms,
    traffic: &RefCell<Traffic<Flight>>,
    tray: &Rc<Tray>,
) -> Result<(), Failure> {
    let mut messages = Messages::new(body, terms, uploads);
    // Since there was last nothing to read.
    let mut count = 0;
    loop {
        // Who makes room polls this again.
        std::future::poll_fn(|_| match traffic.borrow().has_room() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        let wait = Wait::begin(shard);
        let Some(mut arrived) = messages.next(shard).await? else {
            return Ok(());
        };
        if messages.take_pause() {
            count = 0;
        }
        let wait = wait.end();
        if shard.server.demand().is_some() {
            // Boxed: rare, and its state would make every stream larger. The requests behind it wait as well.
            Box::pin(infer::summon(shard, &mut arrived)).await;
        }
        let typed = infer::convert(shard, &terms.sender.budget, &arrived).await;
        let streamed = infer::submit_streamed(shard, arrived, typed, terms, tray, wait)?;
        traffic.borrow_mut().add(streamed);
        count += 1;
        if count == MESSAGES_PER_TURN {
            count = 0;
            breathe().await;
        }
    }
}

/// A message that has not come in full.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are of the large kind"
)]
enum Open {
    Plain(Reader),
    Packed(Pile),
}

/// What was cut off at the end of a message.
enum Cut {
    Arrived(Arrived),
    Packed(Pile),
}

/// Cuts the stream's bytes into messages.
struct Messages {
    body: RecvStream,
    /// What is left of the last frame.
    rest: Bytes,
    prefix: Prefix,
    /// What messages are compressed with that say they are.
    coding: Option<Coding>,
    budget: Arc<Budget>,
    open: Option<Open>,
    uploads: Rc<Uploads>,
    /// Of the open message, unless it came whole.
    upload: Option<Upload>,
    /// There was nothing to read since the last look.
    has_paused: bool,
}

impl Messages {
    fn new(body: RecvStream, terms: &Terms, uploads: &Rc<Uploads>) -> Messages {
        Messages {
            body,
            rest: Bytes::new(),
            prefix: Prefix::default(),
            coding: terms.packing.incoming,
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
    async fn next(&mut self, shard: &Shard) -> Result<Option<Arrived>, Failure> {
        let mut patience = Patience::new(None);
        loop {
            match self.cut(shard)? {
                Some(Cut::Arrived(arrived)) => return Ok(Some(arrived)),
                // Boxed: most streams have none, and its state would make each larger.
                Some(Cut::Packed(pile)) => {
                    return Ok(Some(Box::pin(pile.unpack_tensors(shard)).await?));
                }
                None => {}
            }
            // Between messages a client may stay silent for as long as it likes.
            let is_between = self.open.is_none() && self.prefix.is_empty();
            let (body, has_paused) = (&mut self.body, &mut self.has_paused);
            let frame = std::future::poll_fn(|context| match body.poll_data(context) {
                Poll::Ready(Some(Ok(data))) => Poll::Ready(Ok(Some(data))),
                Poll::Ready(Some(Err(_))) => Poll::Ready(Err(Failure::Gone)),
                Poll::Ready(None) => Poll::Ready(Ok(None)),
                Poll::Pending => {
                    *has_paused = true;
                    if is_between {
                        return Poll::Pending;
                    }
                    patience.poll(context).map(|status| Err(status.into()))
                }
            })
            .await?;
            match frame {
                Some(frame) => {
                    patience.note_progress();
                    release(body, frame.len());
                    self.rest = frame;
                }
                None if is_between => return Ok(None),
                None => return Err(Status::unparsable().into()),
            }
        }
    }

    /// Takes from the last frame up to the end of a message.
    fn cut(&mut self, shard: &Shard) -> Result<Option<Cut>, Status> {
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
                    Some(coding) => {
                        Open::Packed(Pile::new(shard, &self.budget, length, Some(coding))?)
                    }
                    None => Open::Plain(Reader::new(&shard.pool, &self.budget, length)),
                })
            }
        };
        let left = match open {
            Open::Plain(reader) => reader.left(),
            Open::Packed(pile) => pile.left(),
        };
        let own = self.rest.split_to(self.rest.len().min(left));
        let is_whole = own.len() == left;
        match open {
            Open::Plain(reader) => reader.feed(&own)?,
            Open::Packed(pile) => pile.push(own)?,
        }
        if !is_whole {
            if self.upload.is_none() {
                self.upload = Some(self.uploads.begin()?);
            }
            return Ok(None);
        }
        self.upload = None;
        Ok(match self.open.take() {
            Some(Open::Plain(reader)) => Some(Cut::Arrived(reader.finish()?)),
            Some(Open::Packed(pile)) => Some(Cut::Packed(pile)),
            None => None,
        })
    }
}
