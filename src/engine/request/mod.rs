//! A request from draft to response.

pub mod batch_stages;
pub mod context;
pub mod correlation_id;
pub mod draft;
pub(crate) mod ensemble_run;
pub mod features;
pub mod inline;
pub mod instance_timeline;
pub mod messages;
pub mod observer;
pub mod parameter;
pub mod pending_responses;
pub mod refusal;
pub mod request_log;
pub mod response;
pub(crate) mod response_turn;
pub mod sequence_flags;
pub mod stages;
pub mod synthetic;
pub mod timestamps;
pub mod trace;
