//! The responses to one request, one after the other.

use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::agenda::Task;
use sdk::clock::monotonic_ns;
use sdk::{Code, DataType, Error, ResponseFactory, ResponseTimes};

use crate::Settings;

/// What becomes of one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    Failure,
    Empty,
}

/// What the next step of a stream does.
///
/// ```text
///          ┌───────────────────────────────────────┐
/// Begin ───┤ infer delay ─► Output ─ output delay ─► Send
///          └ cancel delay ─► Cancel
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Output { start_ns: u64 },
    Send { start_ns: u64, output_start_ns: u64 },
    Cancel { start_ns: u64 },
}

pub(crate) struct Stream {
    settings: Settings,
    /// The number in the request: how many responses, and what they say.
    count: u32,
    /// Of the next response.
    index: u32,
    shape: Vec<i64>,
    step: Step,
    /// Taken by the end.
    factory: Option<ResponseFactory>,
}

impl Stream {
    pub(crate) fn new(
        settings: Settings,
        count: u32,
        rank: usize,
        factory: ResponseFactory,
    ) -> Stream {
        Stream {
            settings,
            count,
            index: 0,
            shape: vec![1; rank],
            step: Step::Begin,
            factory: Some(factory),
        }
    }

    /// Takes one step: the next one and the time until it is due, or none at the end.
    fn advance(&mut self, factory: &ResponseFactory) -> Result<Option<(Step, Duration)>, Error> {
        match self.step {
            Step::Begin if self.index == self.count => Ok(None),
            Step::Begin => {
                let start_ns = monotonic_ns();
                Ok(Some(if factory.is_cancelled()? {
                    (Step::Cancel { start_ns }, self.settings.cancel_delay)
                } else {
                    (Step::Output { start_ns }, self.settings.infer_delay)
                }))
            }
            Step::Output { start_ns } => {
                if outcome(&self.settings, self.index, self.count) == Outcome::Empty {
                    let times = ended(start_ns, None);
                    factory.report(&times, None)?;
                    return Ok(Some(self.next()));
                }
                let step = Step::Send {
                    start_ns,
                    output_start_ns: monotonic_ns(),
                };
                Ok(Some((step, self.settings.output_delay)))
            }
            Step::Send {
                start_ns,
                output_start_ns,
            } => {
                let error = self.send(factory)?;
                let times = ended(start_ns, Some(output_start_ns));
                factory.report(&times, error.as_ref())?;
                Ok(Some(self.next()))
            }
            Step::Cancel { start_ns } => {
                let error = Error::new(Code::Cancelled, "cancelled");
                factory.report(&ended(start_ns, None), Some(&error))?;
                Ok(None)
            }
        }
    }

    /// Sends the response, or the error that stands in its place.
    fn send(&self, factory: &ResponseFactory) -> Result<Option<Error>, Error> {
        let response = factory.respond()?;
        if outcome(&self.settings, self.index, self.count) == Outcome::Failure {
            let error = Error::new(Code::Unknown, "simulated failure");
            response.fail(error.clone());
            return Ok(Some(error));
        }
        response
            .output(c"OUT", DataType::Int32, &self.shape, 4)?
            .write(&self.count.to_le_bytes())?;
        response.send()?;
        Ok(None)
    }

    fn next(&mut self) -> (Step, Duration) {
        self.index += 1;
        (Step::Begin, Duration::ZERO)
    }
}

impl Task for Stream {
    fn step(&mut self) -> Option<Duration> {
        let factory = self.factory.take()?;
        match self.advance(&factory) {
            Ok(Some((step, delay))) => {
                self.step = step;
                self.factory = Some(factory);
                Some(delay)
            }
            Ok(None) => {
                if let Err(error) = factory.finish() {
                    sdk::error!("failed to end a request's responses: {error}");
                }
                None
            }
            Err(error) => {
                factory.fail(error);
                None
            }
        }
    }
}

/// The last responses are empty ones, those before them failures.
fn outcome(settings: &Settings, index: u32, count: u32) -> Outcome {
    let left = count.saturating_sub(index);
    if left <= settings.empty_count {
        Outcome::Empty
    } else if left <= settings.empty_count.saturating_add(settings.fail_count) {
        Outcome::Failure
    } else {
        Outcome::Success
    }
}

fn ended(start_ns: u64, output_start_ns: Option<u64>) -> ResponseTimes {
    ResponseTimes {
        start_ns,
        output_start_ns,
        end_ns: monotonic_ns(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_responses_fail_or_are_empty() {
        use Outcome::{Empty, Failure, Success};
        let outcomes = |count: u32, fail_count: u32, empty_count: u32| -> Vec<Outcome> {
            let settings = Settings {
                fail_count,
                empty_count,
                ..Settings::default()
            };
            (0..count)
                .map(|index| outcome(&settings, index, count))
                .collect()
        };
        assert_eq!(outcomes(2, 0, 0), [Success, Success]);
        assert_eq!(outcomes(4, 2, 1), [Success, Failure, Failure, Empty]);
        assert_eq!(outcomes(2, 3, 1), [Failure, Empty]);
        assert_eq!(outcomes(1, 0, u32::MAX), [Empty]);
        assert_eq!(outcomes(1, u32::MAX, u32::MAX), [Empty]);
    }
}
