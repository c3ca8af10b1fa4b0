//! Trace settings of the server, and those that models have of their own.
//!
//! A field that nobody set for a model follows the server's; one that nobody set for the server is
//! as at the start. A change makes new [`TraceSetting`]s: a trace keeps to the one under which it
//! was sampled, and counts begin anew, as upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use super::queue::{TraceMessage, TraceQueue};

/// What a trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevels {
    pub timestamps: bool,
    pub tensors: bool,
}

impl TraceLevels {
    pub fn is_off(self) -> bool {
        self == TraceLevels::default()
    }
}

/// The values in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettingValues {
    pub(crate) levels: TraceLevels,
    /// One request in so many; 0: none.
    pub(crate) rate: u32,
    /// How many more; -1: no bound.
    pub(crate) count: i32,
    /// Traces per file; 0: all in one.
    pub(crate) log_frequency: u32,
}

/// What becomes of one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldChange<T> {
    #[default]
    Keep,
    /// Back to what it is by default.
    Clear,
    Set(T),
}

/// What a request changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SettingsUpdate {
    pub(crate) levels: FieldChange<TraceLevels>,
    pub(crate) rate: FieldChange<u32>,
    pub(crate) count: FieldChange<i32>,
    pub(crate) log_frequency: FieldChange<u32>,
}

/// The fields that were set, the others follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnSettings {
    levels: Option<TraceLevels>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
}

impl OwnSettings {
    pub(super) fn is_none(self) -> bool {
        self == OwnSettings::default()
    }

    pub(super) fn updated(self, update: &SettingsUpdate) -> OwnSettings {
        fn field<T: Copy>(own: Option<T>, change: FieldChange<T>) -> Option<T> {
            match change {
                FieldChange::Keep => own,
                FieldChange::Clear => None,
                FieldChange::Set(value) => Some(value),
            }
        }
        OwnSettings {
            levels: field(self.levels, update.levels),
            rate: field(self.rate, update.rate),
            count: field(self.count, update.count),
            log_frequency: field(self.log_frequency, update.log_frequency),
        }
    }

    pub(super) fn over(self, fallback: SettingValues) -> SettingValues {
        SettingValues {
            levels: self.levels.unwrap_or(fallback.levels),
            rate: self.rate.unwrap_or(fallback.rate),
            count: self.count.unwrap_or(fallback.count),
            log_frequency: self.log_frequency.unwrap_or(fallback.log_frequency),
        }
    }
}

/// One set of values, and the requests counted under it; `R` is the record of a trace.
pub(super) struct TraceSetting<R> {
    /// Its traces are collected under this number.
    pub(super) id: u64,
    pub(super) values: SettingValues,
    own: OwnSettings,
    /// Requests that could have been traced.
    seen: AtomicU64,
    /// What is left of the count; -1: no bound.
    left: AtomicI32,
    queue: Arc<TraceQueue<R>>,
}

impl<R> TraceSetting<R> {
    pub(super) fn new(
        values: SettingValues,
        own: OwnSettings,
        queue: &Arc<TraceQueue<R>>,
    ) -> TraceSetting<R> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        TraceSetting {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            values,
            own,
            seen: AtomicU64::new(0),
            left: AtomicI32::new(values.count),
            queue: Arc::clone(queue),
        }
    }

    /// Why no request can be traced under it, in upstream's words; empty if one can, or could but
    /// for the count.
    pub(super) fn failure(&self) -> &'static str {
        if self.values.levels.is_off() {
            "tracing is disabled"
        } else if self.values.rate == 0 {
            "sample rate must be non-zero"
        } else if !self.queue.has_target() {
            "trace file name is not given"
        } else {
            ""
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.failure().is_empty() && self.left() != 0
    }

    /// Whether a request may be traced, if its client traces it where others are not.
    pub(super) fn may_sample(&self) -> bool {
        self.is_valid() || (self.queue.has_collector() && !self.values.levels.is_off())
    }

    /// The values with what is left of the count.
    pub(super) fn current(&self) -> SettingValues {
        SettingValues {
            count: self.left(),
            ..self.values
        }
    }

    /// What was set of it, with what is left of the count.
    pub(super) fn own(&self) -> OwnSettings {
        OwnSettings {
            count: self.own.count.map(|_| self.left()),
            ..self.own
        }
    }

    pub(super) fn queue(&self) -> &Arc<TraceQueue<R>> {
        &self.queue
    }

    /// Counts a request, and says whether it is to be traced. One that its client traces always is,
    /// unless tracing is off.
    pub(super) fn samples(&self, is_traced: bool) -> bool {
        if self.values.levels.is_off() {
            return false;
        }
        self.counts() || is_traced
    }

    /// Counts a request, and says whether it is one of those that rate and count choose.
    fn counts(&self) -> bool {
        if !self.is_valid() {
            return false;
        }
        let number = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if !number.is_multiple_of(u64::from(self.values.rate)) {
            return false;
        }
        let take = |left: i32| match left {
            0 => None,
            left if left > 0 => Some(left - 1),
            unbounded => Some(unbounded),
        };
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    fn left(&self) -> i32 {
        self.left.load(Ordering::Relaxed)
    }

    /// The count is used up, and `collected` traces were all requests that counted: none will
    /// follow.
    pub(super) fn is_complete(&self, collected: u64) -> bool {
        self.left() == 0 && self.seen.load(Ordering::Relaxed) == collected
    }
}

impl<R> Drop for TraceSetting<R> {
    fn drop(&mut self) {
        self.queue.push(TraceMessage::Over(self.id));
    }
}

impl<R> std::fmt::Debug for TraceSetting<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting")
            .field("values", &self.current())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::queue::TraceTarget;

    fn queue() -> Arc<TraceQueue<()>> {
        Arc::new(TraceQueue::new(TraceTarget::File("file".to_owned())))
    }

    fn setting(rate: u32, count: i32) -> TraceSetting<()> {
        let values = SettingValues {
            levels: TraceLevels {
                timestamps: true,
                tensors: false,
            },
            rate,
            count,
            log_frequency: 0,
        };
        TraceSetting::new(values, OwnSettings::default(), &queue())
    }

    #[test]
    fn one_request_in_so_many_until_the_count_is_used_up() {
        for (rate, count, expected) in [
            (1, -1, "xxxxxxxxx"),
            (3, -1, "..x..x..x"),
            (2, 2, ".x.x....."),
            (1, 0, "........."),
            (0, -1, "........."),
        ] {
            let setting = setting(rate, count);
            let sampled: String = (0..9)
                .map(|_| if setting.samples(false) { 'x' } else { '.' })
                .collect();
            assert_eq!(sampled, expected, "rate {rate} count {count}");
        }
    }

    /// As the real Triton: a client's trace is counted where it would have been chosen, and is
    /// traced anyhow.
    #[test]
    fn what_clients_trace_is_traced_unless_tracing_is_off() {
        for (rate, count, expected) in [
            (1, -1, -1),
            (1, 5, 3),
            (2, 5, 4),
            (1000, 5, 5),
            (1, 1, 0),
            (1, 0, 0),
            (0, -1, -1),
        ] {
            let setting = setting(rate, count);
            assert!(setting.samples(true) && setting.samples(true));
            assert_eq!(
                setting.current().count,
                expected,
                "rate {rate} count {count}"
            );
        }
        let on = setting(1, -1);
        let values = SettingValues {
            levels: TraceLevels::default(),
            ..on.values
        };
        let off = TraceSetting::new(values, OwnSettings::default(), &queue());
        assert!(!off.samples(true) && !off.may_sample());
    }

    #[test]
    fn what_was_not_set_follows() {
        let fallback = setting(5, 7).values;
        let mut own = OwnSettings::default().updated(&SettingsUpdate {
            rate: FieldChange::Set(2),
            count: FieldChange::Set(1),
            ..SettingsUpdate::default()
        });
        assert_eq!(
            own.over(fallback),
            SettingValues {
                rate: 2,
                count: 1,
                ..fallback
            }
        );
        own = own.updated(&SettingsUpdate {
            rate: FieldChange::Clear,
            ..SettingsUpdate::default()
        });
        assert_eq!(
            own.over(fallback),
            SettingValues {
                count: 1,
                ..fallback
            }
        );
        own = own.updated(&SettingsUpdate {
            count: FieldChange::Clear,
            ..SettingsUpdate::default()
        });
        assert!(own.is_none());
    }

    #[test]
    fn what_is_left_of_a_count_that_was_set_stays() {
        let own = OwnSettings::default().updated(&SettingsUpdate {
            count: FieldChange::Set(3),
            ..SettingsUpdate::default()
        });
        let setting = TraceSetting::new(own.over(setting(1, -1).values), own, &queue());
        assert!(setting.samples(false));
        assert_eq!((setting.current().count, setting.own().count), (2, Some(2)));
    }
}
