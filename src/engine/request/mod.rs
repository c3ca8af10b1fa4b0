//! A request from draft to response.

pub mod context;
pub mod correlation_id;
pub mod draft;
pub(crate) mod ensemble_run;
pub mod messages;
pub mod observer;
pub mod parameter;
pub mod pending_responses;
pub mod request_log;
pub mod response;
pub mod tensor;
pub mod timestamps;
pub mod trace;
