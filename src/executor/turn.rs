//! The end of a task's turn.

use std::future::poll_fn;
use std::task::Poll;

/// Ends the task's turn. It goes on in the executor's next one, after all others that are ready and
/// after sockets and timers were looked at.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
