//! The life of an inference call in the log, in upstream's words: its handler, its state, and that
//! its client left.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use conch_log as log;

use super::calls::CallEnd;
use super::delays::{self, ServerDelays};
use super::method::GrpcMethod;

/// Which of upstream's handlers serves a call.
#[derive(Clone, Copy)]
pub(super) enum HandlerKind {
    Infer,
    Stream,
}

impl HandlerKind {
    const fn name(self) -> &'static str {
        match self {
            HandlerKind::Infer => "ModelInferHandler",
            HandlerKind::Stream => "ModelStreamInferHandler",
        }
    }
}

/// The handler of a call of this path, if there is one and the log shows it.
pub(super) fn logged(path: &str) -> Option<HandlerKind> {
    if !log::is_shown(log::LogLevel::Verbose(1)) {
        return None;
    }
    match GrpcMethod::of(path)? {
        GrpcMethod::ModelInfer => Some(HandlerKind::Infer),
        GrpcMethod::ModelStreamInfer => Some(HandlerKind::Stream),
        _ => None,
    }
}

/// Runs a call and logs its life.
pub(super) async fn log(
    kind: HandlerKind,
    delays: ServerDelays,
    call: impl Future<Output = CallEnd>,
) -> CallEnd {
    let mut handler = CallHandler::begin(kind);
    let end = call.await;
    handler.end(end);
    if end == CallEnd::Gone
        && let Some(delay) = delays.release
    {
        delays::wait(delay, "the release of a cancelled call").await;
    }
    end
}

/// What upstream says of its handlers at the start: of the inferences two wait, and one of the
/// streams.
pub(crate) fn note_handlers() {
    announce(HandlerKind::Infer);
    announce(HandlerKind::Infer);
    announce(HandlerKind::Stream);
}

/// Logs that a handler is there for the next call, as upstream does at the start and whenever a
/// call takes one; returns its number.
fn announce(kind: HandlerKind) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    log::verbose!(1, "New request handler for {}, {number}", kind.name());
    number
}

/// One call. Dropped before its end, its connection ended.
struct CallHandler {
    kind: HandlerKind,
    number: u32,
    is_over: bool,
}

impl CallHandler {
    fn begin(kind: HandlerKind) -> CallHandler {
        let number = announce(kind);
        log::verbose!(2, "StateNew, {number} Step START");
        CallHandler {
            kind,
            number,
            is_over: false,
        }
    }

    fn end(&mut self, end: CallEnd) {
        self.is_over = true;
        let (name, number) = (self.kind.name(), self.number);
        if end == CallEnd::Gone {
            log::verbose!(
                1,
                "Cancellation notification received for {name}, rpc_ok=1, context {number}, state \
                 {number}"
            );
        }
    }
}

impl Drop for CallHandler {
    fn drop(&mut self) {
        if !self.is_over && !thread::panicking() {
            self.end(CallEnd::Gone);
        }
        log::verbose!(2, "StateRelease, {} Step FINISH", self.number);
    }
}
