//! Retries of requests to stores.

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};

/// Of one request: after a refusal about two seconds in all, without an answer at all 25.
pub(crate) fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: 4,
        retry_timeout: Duration::from_secs(20),
    }
}
