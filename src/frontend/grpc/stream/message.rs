//! A message of a stream, from what it says to its bytes.

use conch_engine::{Error, Response};

use crate::api::Classes;
use crate::grpc::infer::{Pieces, encode_failure, encode_streamed};
use crate::grpc::status::GrpcStatus;

/// What a request's responses repeat of it, and how they are rendered.
#[derive(Clone)]
pub(super) struct ResponseHead {
    pub(super) id: Box<str>,
    pub(super) model_name: Box<str>,
    pub(super) model_version: Box<str>,
    pub(super) classes: Classes,
}

/// A response that is to be written.
pub(super) enum StreamItem {
    /// The request was not accepted.
    Refused(GrpcStatus),
    Outcome(Result<Response, Error>, bool),
    /// A decoupled model has ended without a response, and the client wants to know.
    Empty,
}

/// A message's bytes, or the status with which the stream ends.
pub(super) type RenderedMessage = Result<Pieces, GrpcStatus>;

pub(super) enum RenderFuture {
    Ready(RenderedMessage),
    /// It takes too long for a shard.
    Long(Box<OffloadedRender>),
}

/// What [`ResponseHead::render`] has to do elsewhere.
pub(super) struct OffloadedRender {
    response_head: ResponseHead,
    item: StreamItem,
    ends_at_error: bool,
}

impl OffloadedRender {
    /// Of the tensors whose classes are looked for.
    pub(super) fn byte_size(&self) -> u64 {
        match &self.item {
            StreamItem::Outcome(Ok(response), _) => response.byte_size(),
            _ => 0,
        }
    }

    pub(super) fn render(self) -> RenderedMessage {
        self.response_head.render(self.item, self.ends_at_error)
    }
}

impl ResponseHead {
    /// `item` as a message, or what is needed to make it one.
    pub(super) fn message(&self, item: StreamItem, ends_at_error: bool) -> RenderFuture {
        match &item {
            StreamItem::Outcome(Ok(response), _) if self.classes.is_long(response) => {
                RenderFuture::Long(Box::new(OffloadedRender {
                    response_head: self.clone(),
                    item,
                    ends_at_error,
                }))
            }
            _ => RenderFuture::Ready(self.render(item, ends_at_error)),
        }
    }

    fn render(&self, item: StreamItem, ends_at_error: bool) -> RenderedMessage {
        let ResponseHead {
            id,
            model_name,
            model_version,
            classes,
        } = self;
        match item {
            StreamItem::Refused(status) => Ok(encode_failure(&status.message, id, None)),
            StreamItem::Empty => Ok(encode_failure(
                "",
                id,
                Some((model_name, model_version, true)),
            )),
            StreamItem::Outcome(outcome, is_final) => {
                let encoded = outcome
                    .map_err(GrpcStatus::from)
                    .and_then(|response| encode_streamed(response, id, classes, is_final));
                match encoded {
                    Err(status) if ends_at_error => Err(status),
                    Err(status) => {
                        let target = Some((&**model_name, &**model_version, is_final));
                        Ok(encode_failure(&status.message, id, target))
                    }
                    pieces => pieces,
                }
            }
        }
    }
}
