//! Delays that the environment asks for, by upstream's names: its tests make races visible with
//! them. None is set in production.

use std::pin::Pin;
use std::time::Duration;

use conch_log as log;

use crate::shard::Timer;

/// How long a call waits, and where. None: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerDelays {
    /// Before the answer of a call that is no inference.
    pub(super) answer: Option<Duration>,
    /// Before an inference is submitted, and before it is answered.
    pub(super) submit: Option<Duration>,
    pub(super) complete: Option<Duration>,
    /// Before each response of a stream is written.
    pub(super) write: Option<Duration>,
    /// Before a cancelled inference is withdrawn, and before its call ends.
    pub(super) notice: Option<Duration>,
    pub(super) release: Option<Duration>,
}

impl ServerDelays {
    /// Those of the process.
    pub(crate) fn from_environment() -> ServerDelays {
        ServerDelays::read(|name| std::env::var(name).unwrap_or_default())
    }

    /// What a call waits for before it is withdrawn.
    pub(super) fn notice(&self) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        let delay = self.notice?;
        Some(Box::pin(wait(delay, "the notification of a cancellation")))
    }

    fn read(variable: impl Fn(&str) -> String) -> ServerDelays {
        // What is no number is none, as for upstream.
        let number = |name: &&str| variable(name).trim().parse::<u32>().unwrap_or(0);
        let sum = |names: &[&str]| {
            let sum: u64 = names.iter().map(number).map(u64::from).sum();
            Some(sum).filter(|sum| *sum > 0)
        };
        ServerDelays {
            answer: sum(&ANSWER_SECONDS).map(Duration::from_secs),
            submit: sum(&SUBMIT_MS).map(Duration::from_millis),
            complete: sum(&COMPLETE_MS).map(Duration::from_millis),
            write: sum(&WRITE_MS).map(Duration::from_millis),
            notice: sum(&NOTICE_MS).map(Duration::from_millis),
            release: sum(&RELEASE_MS).map(Duration::from_millis),
        }
    }
}

/// Waits for `delay`; `what` is about to be done.
pub(super) async fn wait(delay: Duration, what: &str) {
    log::info!("Delaying {what} by {} ms...", delay.as_millis());
    Timer::after(delay).await;
}

const ANSWER_SECONDS: [&str; 1] = ["TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC"];
const SUBMIT_MS: [&str; 2] = [
    "TRITONSERVER_DELAY_GRPC_PROCESS",
    "TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY",
];
const COMPLETE_MS: [&str; 2] = [
    "TRITONSERVER_DELAY_RESPONSE_COMPLETE_EXEC",
    "TRITONSERVER_DELAY_RESPONSE_COMPLETION",
];
const WRITE_MS: [&str; 2] = [
    "TRITONSERVER_DELAY_GRPC_RESPONSE",
    "TRITONSERVER_DELAY_GRPC_COMPLETE",
];
const NOTICE_MS: [&str; 1] = ["TRITONSERVER_DELAY_GRPC_NOTIFICATION"];
const RELEASE_MS: [&str; 1] = ["TRITONSERVER_DELAY_GRPC_ENQUEUE"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_nothing_else() {
        let read = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name);
            ServerDelays::read(|name| {
                value(name).map_or_else(String::new, |(_, value)| (*value).into())
            })
        };
        assert_eq!(read(&[]), ServerDelays::default());
        assert_eq!(
            read(&[
                (ANSWER_SECONDS[0], "x"),
                (WRITE_MS[0], "-1"),
                (SUBMIT_MS[0], "0")
            ]),
            ServerDelays::default()
        );
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(
            read(&[
                (ANSWER_SECONDS[0], "2"),
                (SUBMIT_MS[0], "5000"),
                (COMPLETE_MS[0], "1"),
                (COMPLETE_MS[1], " 20"),
                (WRITE_MS[1], "300"),
                (NOTICE_MS[0], "40"),
                (RELEASE_MS[0], "50"),
            ]),
            ServerDelays {
                answer: ms(2_000),
                submit: ms(5_000),
                complete: ms(21),
                write: ms(300),
                notice: ms(40),
                release: ms(50),
            }
        );
    }
}
