//! The frames of an answer beside its messages: its head, and its status.

use conch_http2::{HeaderField, StreamClosed};
use smallvec::smallvec;

use super::status::{GrpcStatus, StatusFields, StatusTexts};
use super::transport::Responder;
use crate::coding::ContentCoding;

const CONTENT_TYPE: HeaderField<'_> = HeaderField::repeated(0, "content-type", b"application/grpc");
const ACCEPT_ENCODING: HeaderField<'_> =
    HeaderField::repeated(1, "grpc-accept-encoding", b"identity, deflate, gzip");
const STATUS_OK: HeaderField<'_> = HeaderField::repeated(2, "grpc-status", b"0");
const HTTP_OK: u16 = 200;

/// Sends the head of an answer that carries messages, compressed with `coding` where they say so.
///
/// # Errors
/// The client has withdrawn the call, or is gone.
pub(super) fn send_head(
    respond: &mut Responder,
    coding: Option<ContentCoding>,
) -> Result<(), StreamClosed> {
    let mut fields: StatusFields<'_> = smallvec![CONTENT_TYPE, ACCEPT_ENCODING];
    if let Some(coding) = coding {
        fields.push(HeaderField::new("grpc-encoding", coding.name().as_bytes()));
    }
    respond.send_head(HTTP_OK, &fields, false)
}

/// Ends a call that succeeded.
///
/// # Errors
/// The client has withdrawn the call, or is gone.
pub(super) fn send_ok(respond: &mut Responder) -> Result<(), StreamClosed> {
    respond.send_trailers(&[STATUS_OK])
}

/// Ends a call that failed after its head was sent.
///
/// # Errors
/// The client has withdrawn the call, or is gone.
pub(super) fn send_error(respond: &mut Responder, status: &GrpcStatus) -> Result<(), StreamClosed> {
    let texts = StatusTexts::of(status);
    respond.send_trailers(&texts.fields())
}

/// The whole answer of a call that failed before it sent anything ("trailers-only").
///
/// # Errors
/// The head has been sent, or the client has withdrawn the call, or is gone.
pub(super) fn send_status_only(
    respond: &mut Responder,
    status: &GrpcStatus,
) -> Result<(), StreamClosed> {
    let texts = StatusTexts::of(status);
    let mut fields: StatusFields<'_> = smallvec![CONTENT_TYPE, ACCEPT_ENCODING];
    fields.extend(texts.fields());
    respond.send_head(HTTP_OK, &fields, true)
}
