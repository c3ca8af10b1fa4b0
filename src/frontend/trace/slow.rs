//! The log of slow requests: one line for each, with the time that its stages took; and the slowest
//! ones for the operator's page.
//!
//! Every inference is watched while the log is on, or somebody looks at the page, since only its
//! end shows whether it was slow: it costs some allocations per request. The stations are those of
//! a trace, which the front end reports anyway, and the engine's [`StageTimes`]. The line is
//! written by whoever lets go of the request last.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conch_engine::clock;
use conch_engine::request::messages::RequestIdPrefix;
use conch_engine::request::stages::{RequestStage, StageTimes};
use conch_log::{self as log, LogFields};
use smallvec::SmallVec;

use super::slowest::{SlowRequest, SlowestRequests, shortened};
use super::subject::TraceSubject;

/// Lines in one second; where all requests are slow, most are only counted.
const LINES_PER_SECOND_MAX: u64 = 100;
/// The second is in the upper bits of a word, its lines are in the lower.
const LINES_BITS: u32 = 16;

/// From when on a request is slow, and how much of it may be logged.
#[derive(Debug)]
pub(super) struct SlowRequests {
    limit_ns: u64,
    /// The second that lines were last written in, and how many were.
    second: AtomicU64,
    /// How many were not written since the last line.
    unsaid: AtomicU64,
}

impl SlowRequests {
    pub(super) fn new(limit: Duration) -> Arc<SlowRequests> {
        Arc::new(SlowRequests {
            limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
            second: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
        })
    }

    /// Whether a line may be written, and how many were not since the last one.
    fn turn(&self, now_ns: u64) -> Option<u64> {
        let second = now_ns / 1_000_000_000;
        let take = |word: u64| {
            let (of, lines) = (word >> LINES_BITS, word & ((1 << LINES_BITS) - 1));
            match of == second {
                true if lines >= LINES_PER_SECOND_MAX => None,
                true => Some(word + 1),
                false => Some((second << LINES_BITS) | 1),
            }
        };
        // Relaxed: only counts.
        let outcome = self
            .second
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if outcome.is_err() {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.unsaid.swap(0, Ordering::Relaxed))
    }
}

/// One request that is watched.
pub(super) struct RequestWatch {
    /// Where it is logged if it is slow.
    slow: Option<Arc<SlowRequests>>,
    /// Where it is shown if it is among the slowest.
    slowest: Option<Arc<SlowestRequests>>,
    /// As it was asked for.
    model: Box<str>,
    stages: Arc<StageTimes>,
    front: FrontendTimes,
}

/// When the front end reached what. Monotonic ns; 0: not reached. Atomic as whoever lets go of the
/// request last may be another thread.
#[derive(Debug, Default)]
struct FrontendTimes {
    start_ns: AtomicU64,
    received_ns: AtomicU64,
    responded_ns: AtomicU64,
    sending_ns: AtomicU64,
    sent_ns: AtomicU64,
}

impl RequestWatch {
    pub(super) fn new(
        slow: Option<&Arc<SlowRequests>>,
        slowest: Option<&Arc<SlowestRequests>>,
        model: &str,
    ) -> RequestWatch {
        RequestWatch {
            slow: slow.cloned(),
            slowest: slowest.cloned(),
            model: model.into(),
            stages: Arc::default(),
            front: FrontendTimes::default(),
        }
    }

    /// What the engine writes.
    pub(super) fn stages(&self) -> Arc<StageTimes> {
        Arc::clone(&self.stages)
    }

    pub(super) fn reached_at(&self, station: &str, timestamp_ns: u64) {
        let front = &self.front;
        let first = |time: &AtomicU64| {
            if time.load(Ordering::Relaxed) == 0 {
                time.store(timestamp_ns, Ordering::Relaxed);
            }
        };
        match station {
            "HTTP_RECV_START" => first(&front.start_ns),
            // A server waits for requests of a gRPC call that is open.
            "GRPC_WAITREAD_END" => {
                first(&front.start_ns);
                first(&front.received_ns);
            }
            "HTTP_RECV_END" => first(&front.received_ns),
            "INFER_RESPONSE_COMPLETE" => first(&front.responded_ns),
            "HTTP_SEND_START" | "GRPC_SEND_START" => first(&front.sending_ns),
            // The last response of a stream.
            "HTTP_SEND_END" | "GRPC_SEND_END" => {
                front.sent_ns.store(timestamp_ns, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// The request is over: writes its line, if it was slow, and shows it, if it was among the
    /// slowest.
    pub(super) fn conclude(
        &self,
        subject: Option<&TraceSubject>,
        trace_id: Option<u64>,
        now_ns: u64,
    ) {
        let times = self.times(now_ns);
        if let Some(slowest) = &self.slowest {
            let total_us = times.total_ns() / 1_000;
            slowest.offer(total_us, || self.slow_request(subject, &times));
        }
        let Some(slow) = &self.slow else {
            return;
        };
        if times.total_ns() < slow.limit_ns {
            return;
        }
        let Some(unsaid) = slow.turn(now_ns) else {
            return;
        };
        let id = subject.map_or("", |subject| &*subject.request_id);
        let model = self.model_of(subject);
        let fields = LogFields {
            request_id: id,
            model,
        };
        let line = SlowLine {
            model,
            version: subject.map(|subject| subject.version),
            trace_id,
            times,
            stages: &self.stages,
            unsaid,
        };
        log::warning_with_fields!(fields, "{}{line}", RequestIdPrefix(id));
    }

    fn model_of<'a>(&'a self, subject: Option<&'a TraceSubject>) -> &'a str {
        subject.map_or(&*self.model, |subject| &*subject.model)
    }

    /// What is shown of it.
    fn slow_request(&self, subject: Option<&TraceSubject>, times: &RequestTimes) -> SlowRequest {
        let durations = times.durations().into_iter();
        let id = subject.map_or("", |subject| &*subject.request_id);
        SlowRequest {
            ended_ms: clock::epoch_ms(),
            model: shortened(self.model_of(subject)).into(),
            version: subject.map(|subject| subject.version),
            id: shortened(id).into(),
            outcome: outcome_of(&self.stages, times),
            total_us: times.total_ns() / 1_000,
            stages: durations.map(|(name, ns)| (name, ns / 1_000)).collect(),
            instance: self.stages.instance().map(Box::from),
            batch_size: self.stages.batch_size(),
        }
    }

    fn times(&self, now_ns: u64) -> RequestTimes {
        let at = |time: &AtomicU64| time.load(Ordering::Relaxed);
        let front = &self.front;
        let end_ns = match at(&front.sent_ns) {
            0 => now_ns,
            sent_ns => sent_ns,
        };
        RequestTimes {
            start_ns: at(&front.start_ns),
            received_ns: at(&front.received_ns),
            responded_ns: at(&front.responded_ns),
            sending_ns: at(&front.sending_ns),
            end_ns,
            engine: EngineTimes::of(&self.stages),
        }
    }
}

/// Monotonic ns; 0: not reached.
#[derive(Clone, Copy, Debug, Default)]
struct RequestTimes {
    start_ns: u64,
    received_ns: u64,
    responded_ns: u64,
    sending_ns: u64,
    end_ns: u64,
    engine: EngineTimes,
}

/// Monotonic ns; 0: not reached.
#[derive(Clone, Copy, Debug, Default)]
struct EngineTimes {
    start_ns: u64,
    queued_ns: u64,
    accepted_ns: u64,
    executing_ns: u64,
    compute_start_ns: u64,
    compute_end_ns: u64,
    executed_ns: u64,
}

/// Names of stages, and the ns that each took. What was not reached is left out.
type StageDurations = SmallVec<[(&'static str, u64); 12]>;

impl RequestTimes {
    fn total_ns(&self) -> u64 {
        match self.start_ns {
            0 => 0,
            start_ns => self.end_ns.saturating_sub(start_ns),
        }
    }

    fn durations(&self) -> StageDurations {
        let mut durations = StageDurations::new();
        let engine = &self.engine;
        push(&mut durations, "read", self.start_ns, self.received_ns);
        push(&mut durations, "decode", self.received_ns, engine.start_ns);
        durations.extend(engine.durations(self.responded_ns));
        push(
            &mut durations,
            "return",
            engine.executed_ns,
            self.responded_ns,
        );
        push(&mut durations, "encode", self.responded_ns, self.sending_ns);
        push(&mut durations, "write", self.sending_ns, self.end_ns);
        durations
    }
}

impl EngineTimes {
    fn of(stages: &StageTimes) -> EngineTimes {
        EngineTimes {
            start_ns: stages.at(RequestStage::Start),
            queued_ns: stages.at(RequestStage::Queued),
            accepted_ns: stages.at(RequestStage::Accepted),
            executing_ns: stages.at(RequestStage::Executing),
            compute_start_ns: stages.at(RequestStage::ComputeStart),
            compute_end_ns: stages.at(RequestStage::ComputeEnd),
            executed_ns: stages.at(RequestStage::Executed),
        }
    }

    /// `responded_ns`: when the response was there, if the caller knows.
    fn durations(&self, responded_ns: u64) -> StageDurations {
        let mut durations = StageDurations::new();
        push(&mut durations, "check", self.start_ns, self.queued_ns);
        let begun_ns = match (self.accepted_ns, self.executing_ns) {
            // An ensemble, or an answer of the response cache.
            (0, 0) => 0,
            // It ended while it waited.
            (_, 0) => responded_ns,
            (_, executing_ns) => executing_ns,
        };
        push(&mut durations, "inbox", self.queued_ns, self.accepted_ns);
        push(&mut durations, "batch_wait", self.accepted_ns, begun_ns);
        match (self.executing_ns, self.executed_ns) {
            (0, _) if begun_ns == 0 => {
                push(&mut durations, "execute", self.queued_ns, responded_ns);
            }
            (0, _) => {}
            (executing_ns, 0) => push(&mut durations, "execute", executing_ns, responded_ns),
            (executing_ns, executed_ns) => {
                push(&mut durations, "execute", executing_ns, executed_ns);
                let (from_ns, until_ns) = (self.compute_start_ns, self.compute_end_ns);
                push(&mut durations, "input", executing_ns, from_ns);
                push(&mut durations, "infer", from_ns, until_ns);
                push(&mut durations, "output", until_ns, executed_ns);
            }
        }
        durations
    }
}

fn push(durations: &mut StageDurations, name: &'static str, from_ns: u64, until_ns: u64) {
    if from_ns != 0 && until_ns != 0 {
        durations.push((name, until_ns.saturating_sub(from_ns)));
    }
}

/// What is logged.
struct SlowLine<'a> {
    model: &'a str,
    version: Option<i64>,
    trace_id: Option<u64>,
    times: RequestTimes,
    stages: &'a StageTimes,
    unsaid: u64,
}

impl fmt::Display for SlowLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total_us = self.times.total_ns() / 1_000;
        write!(f, "slow request: total_us={total_us} model={}", self.model)?;
        if let Some(version) = self.version {
            write!(f, " version={version}")?;
        }
        write!(f, " outcome={}", outcome_of(self.stages, &self.times))?;
        write_durations(f, &self.times.durations())?;
        write_execution(f, self.stages)?;
        if let Some(id) = self.trace_id {
            write!(f, " trace_id={id}")?;
        }
        let steps = self.stages.steps();
        for (index, step) in steps.iter().enumerate() {
            f.write_str(if index == 0 { " steps=[" } else { ", " })?;
            f.write_str(&step.model)?;
            write_durations(f, &EngineTimes::of(&step.times).durations(0))?;
            write_execution(f, &step.times)?;
        }
        if !steps.is_empty() {
            f.write_str("]")?;
        }
        match self.unsaid {
            0 => Ok(()),
            unsaid => write!(f, " ({unsaid} slow requests before it were not logged)"),
        }
    }
}

/// What became of the request.
fn outcome_of(stages: &StageTimes, times: &RequestTimes) -> &'static str {
    match stages.failure() {
        Some(code) => code.name(),
        None if times.responded_ns == 0 => "unanswered",
        None => "ok",
    }
}

fn write_durations(f: &mut fmt::Formatter<'_>, durations: &StageDurations) -> fmt::Result {
    for (name, duration_ns) in durations {
        write!(f, " {name}_us={}", duration_ns / 1_000)?;
    }
    Ok(())
}

fn write_execution(f: &mut fmt::Formatter<'_>, stages: &StageTimes) -> fmt::Result {
    let Some(instance) = stages.instance() else {
        return Ok(());
    };
    write!(f, " batch_size={} instance={instance}", stages.batch_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(executed: bool) -> EngineTimes {
        let [executing_ns, compute_start_ns, compute_end_ns, executed_ns] = match executed {
            true => [10_000, 11_000, 19_000, 20_000],
            false => [0; 4],
        };
        EngineTimes {
            start_ns: 3_000,
            queued_ns: 4_000,
            accepted_ns: 6_000,
            executing_ns,
            compute_start_ns,
            compute_end_ns,
            executed_ns,
        }
    }

    fn times(engine: EngineTimes) -> RequestTimes {
        RequestTimes {
            start_ns: 1_000,
            received_ns: 2_000,
            responded_ns: 23_000,
            sending_ns: 27_000,
            end_ns: 32_000,
            engine,
        }
    }

    fn shown(times: &RequestTimes) -> String {
        let rows = times.durations();
        let rows: Vec<String> = rows
            .iter()
            .map(|(name, duration_ns)| format!("{name} {}", duration_ns / 1_000))
            .collect();
        rows.join(", ")
    }

    #[test]
    fn stages_take_what_lies_between_their_stations() {
        let ensemble = EngineTimes {
            start_ns: 3_000,
            queued_ns: 4_000,
            ..EngineTimes::default()
        };
        let silent = EngineTimes {
            executed_ns: 0,
            ..engine(true)
        };
        let refused = RequestTimes {
            responded_ns: 0,
            sending_ns: 0,
            ..times(EngineTimes::default())
        };
        for (times, expected) in [
            (
                times(engine(true)),
                "read 1, decode 1, check 1, inbox 2, batch_wait 4, execute 10, input 1, infer 8, \
                 output 1, return 3, encode 4, write 5",
            ),
            // Its backend reports nothing.
            (
                times(silent),
                "read 1, decode 1, check 1, inbox 2, batch_wait 4, execute 13, encode 4, \
                 write 5",
            ),
            (
                times(engine(false)),
                "read 1, decode 1, check 1, inbox 2, batch_wait 17, encode 4, write 5",
            ),
            (
                times(ensemble),
                "read 1, decode 1, check 1, execute 19, encode 4, write 5",
            ),
            (refused, "read 1"),
        ] {
            assert_eq!(shown(&times), expected);
            assert_eq!(times.total_ns(), 31_000);
        }
    }

    #[test]
    fn a_line_says_what_is_known() {
        let stages = StageTimes::default();
        let line = SlowLine {
            model: "m",
            version: Some(3),
            trace_id: Some(7),
            times: times(EngineTimes::default()),
            stages: &stages,
            unsaid: 2,
        };
        assert_eq!(
            line.to_string(),
            "slow request: total_us=31 model=m version=3 outcome=ok read_us=1 \
             encode_us=4 write_us=5 trace_id=7 (2 slow requests before it were not logged)"
        );
    }

    #[test]
    fn lines_are_bounded_per_second() {
        let slow = SlowRequests::new(Duration::ZERO);
        for second in [5, 6] {
            let now_ns = second * 1_000_000_000;
            for line in 0..LINES_PER_SECOND_MAX + 3 {
                let expected = match line {
                    0 if second == 6 => Some(3),
                    line if line < LINES_PER_SECOND_MAX => Some(0),
                    _ => None,
                };
                assert_eq!(slow.turn(now_ns + line), expected, "{second}: {line}");
            }
        }
    }
}
