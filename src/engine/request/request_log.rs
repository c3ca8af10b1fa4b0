//! The life of a request in the log: its states at verbose level 1, in upstream's words
//! (`core/src/infer_request.cc`, SetState).
//!
//! Each change costs one load while that level is off. Called where the request changes its state,
//! from any thread. Null requests are left out.

use std::fmt;

use conch_log::{self as log, LogFields};

use crate::error::truncated;
use crate::request::context::{Request, RequestContext};
use crate::request::messages::RequestIdPrefix;

/// What becomes of a request, as upstream names it.
#[derive(Clone, Copy, Debug)]
pub enum RequestState {
    Initialized,
    Pending,
    Executing,
    Released,
    FailedEnqueue,
}

impl fmt::Display for RequestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RequestState::Initialized => "INITIALIZED",
            RequestState::Pending => "PENDING",
            RequestState::Executing => "EXECUTING",
            RequestState::Released => "RELEASED",
            RequestState::FailedEnqueue => "FAILED_ENQUEUE",
        })
    }
}

/// Whether anything of it is logged.
#[inline]
pub fn is_shown() -> bool {
    log::is_shown(log::LogLevel::Verbose(1))
}

/// The request with this id changes its state.
#[inline]
pub fn log_change(id: &str, from: RequestState, to: RequestState) {
    if is_shown() {
        let fields = LogFields {
            request_id: id,
            model: "",
        };
        log::verbose_with_fields!(
            1,
            fields,
            "{}Setting state from {from} to {to}",
            RequestIdPrefix(id)
        );
    }
}

/// The request is admitted.
pub(crate) fn note_prepared(origin: &RequestContext, request: &Request) {
    if !is_shown() {
        return;
    }
    log_change(
        &origin.id,
        RequestState::Initialized,
        RequestState::Initialized,
    );
    let model = &origin.model;
    let fields = LogFields {
        request_id: &origin.id,
        model: &model.name,
    };
    log::verbose_with_fields!(
        1,
        fields,
        "{}prepared: request id: {}, model: {}, actual version: {}, flags: 0x{:x}, \
             correlation id: {}, batch size: {}, priority: {}, timeout (us): {}",
        RequestIdPrefix(&origin.id),
        truncated(&origin.id),
        model.name,
        model.version,
        request.sequence_flags,
        request.correlation_id,
        request.batch_size,
        request.priority,
        request.timeout_us
    );
}
