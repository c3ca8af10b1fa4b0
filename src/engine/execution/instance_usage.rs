//! How many instances of a model execute, and which slots its sequences hold: read by whoever asks
//! for the metrics, written with plain stores by those that know.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_scheduler::{Scheduler, SlotUsage};

use crate::RequestHandle;
use crate::clock::monotonic_ns;
use crate::execution::seat::Seat;
use crate::execution::timelines::InstanceTimelines;
use crate::request::context::{ExecutorUsage, InstanceUsage};
use crate::request::instance_timeline::InstanceTimeline;

/// What the cores and the scheduler of one queue tell.
#[derive(Default)]
pub(crate) struct UsageGauges {
    /// Of cores that execute one batch after the other. Locked when a core comes or goes, and by
    /// who asks.
    seats: Mutex<Vec<Weak<Seat>>>,
    /// Of cores that keep batches in flight. Locked in the same way.
    stream_timelines: Mutex<Vec<Weak<InstanceTimelines>>>,
    /// Instances that keep batches in flight: those that serve, and those that have any.
    stream_count: AtomicUsize,
    busy_stream_count: AtomicUsize,
    /// Of a model with sequences, as of the last visit to its scheduler.
    slots_used: AtomicU64,
    slots_total: AtomicU64,
}

impl UsageGauges {
    /// With room for so many cores, so that these need not make it.
    pub(crate) fn for_cores(count: usize) -> UsageGauges {
        UsageGauges {
            seats: Mutex::new(Vec::with_capacity(count)),
            ..UsageGauges::default()
        }
    }

    /// The core of `seat` serves.
    pub(crate) fn open_seat(&self, seat: &Arc<Seat>) {
        let mut seats = self.seats();
        seats.retain(|known| known.strong_count() > 0);
        seats.push(Arc::downgrade(seat));
    }

    /// It does so no more.
    pub(crate) fn close_seat(&self, seat: &Arc<Seat>) {
        self.seats()
            .retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(seat)));
    }

    /// After a visit to the scheduler, under its lock.
    pub(crate) fn note_slots(&self, scheduler: &Scheduler<RequestHandle>) {
        if let Scheduler::Sequence(sequence) = scheduler {
            let SlotUsage {
                used_count,
                total_count,
            } = sequence.slot_usage();
            self.slots_used.store(used_count as u64, Ordering::Relaxed);
            self.slots_total
                .store(total_count as u64, Ordering::Relaxed);
        }
    }

    /// What it is now. `has_slots` of a model with sequences.
    pub(crate) fn read(&self, has_slots: bool) -> ExecutorUsage {
        let streams = InstanceUsage {
            count: self.stream_count.load(Ordering::Relaxed),
            busy_count: self.busy_stream_count.load(Ordering::Relaxed),
        };
        let instances = self
            .seats()
            .iter()
            .filter_map(Weak::upgrade)
            .fold(streams, |sum, seat| InstanceUsage {
                count: sum.count + seat.instance_count(),
                busy_count: sum.busy_count + usize::from(seat.is_busy()),
            });
        let slots = || SlotUsage {
            used_count: self.slots_used.load(Ordering::Relaxed) as usize,
            total_count: self.slots_total.load(Ordering::Relaxed) as usize,
        };
        ExecutorUsage {
            instances,
            slots: has_slots.then(slots),
        }
    }

    /// What the instances did in the last second, which are watched from then on.
    pub(crate) fn read_timelines(&self, now_ns: u64) -> Vec<InstanceTimeline> {
        let mut rows = Vec::new();
        for seat in self.seats().iter().filter_map(Weak::upgrade) {
            rows.extend(seat.timelines().read(now_ns));
        }
        for timelines in self.stream_timelines().iter().filter_map(Weak::upgrade) {
            rows.extend(timelines.read(now_ns));
        }
        rows
    }

    /// Nobody watches them any more.
    pub(crate) fn end_watch(&self) {
        for seat in self.seats().iter().filter_map(Weak::upgrade) {
            seat.timelines().end_watch();
        }
        for timelines in self.stream_timelines().iter().filter_map(Weak::upgrade) {
            timelines.end_watch();
        }
    }

    fn stream_timelines(&self) -> MutexGuard<'_, Vec<Weak<InstanceTimelines>>> {
        self.stream_timelines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Weak<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The instances of one core that keeps batches in flight, counted until it is dropped.
pub(crate) struct StreamUsage {
    gauges: Arc<UsageGauges>,
    /// Whether each instance has batches in flight.
    are_busy: Vec<bool>,
    timelines: Arc<InstanceTimelines>,
}

impl StreamUsage {
    /// Of the instances with these names.
    pub(crate) fn new(gauges: &Arc<UsageGauges>, names: Vec<Box<str>>) -> StreamUsage {
        let count = names.len();
        gauges.stream_count.fetch_add(count, Ordering::Relaxed);
        let timelines = Arc::new(InstanceTimelines::new(names));
        let mut known = gauges.stream_timelines();
        known.retain(|known| known.strong_count() > 0);
        known.push(Arc::downgrade(&timelines));
        drop(known);
        StreamUsage {
            gauges: Arc::clone(gauges),
            are_busy: vec![false; count],
            timelines,
        }
    }

    /// That instance has batches in flight now, or none.
    pub(crate) fn note(&mut self, instance: usize, is_busy: bool) {
        let Some(was_busy) = self.are_busy.get_mut(instance) else {
            return;
        };
        if is_busy == std::mem::replace(was_busy, is_busy) {
            return;
        }
        let gauge = &self.gauges.busy_stream_count;
        match is_busy {
            true => {
                gauge.fetch_add(1, Ordering::Relaxed);
                self.timelines.begin(instance, monotonic_ns);
            }
            false => {
                gauge.fetch_sub(1, Ordering::Relaxed);
                self.timelines.end(instance, monotonic_ns);
            }
        }
    }
}

impl Drop for StreamUsage {
    fn drop(&mut self) {
        let count = self.are_busy.len();
        for instance in 0..count {
            self.note(instance, false);
        }
        let gauge = &self.gauges.stream_count;
        gauge.fetch_sub(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_and_streams_add_up() {
        let gauges = Arc::new(UsageGauges::default());
        let seats = [0, 1].map(|core| Arc::new(Seat::new(core, Vec::new())));
        let read = || {
            let InstanceUsage { count, busy_count } = gauges.read(false).instances;
            (count, busy_count)
        };
        for seat in &seats {
            gauges.open_seat(seat);
        }
        let mut streams = StreamUsage::new(&gauges, vec!["m_0".into()]);
        // These seats have no instances.
        assert_eq!(read(), (1, 0));
        seats[1].begin_busy(0);
        streams.note(0, true);
        // Such an instance that is not there.
        streams.note(1, true);
        assert_eq!(read(), (1, 2));
        gauges.close_seat(&seats[1]);
        assert_eq!(read(), (1, 1));
        let busy = |timelines: Vec<InstanceTimeline>| {
            let names = timelines.into_iter().map(|timeline| timeline.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(busy(gauges.read_timelines(monotonic_ns())), ["m_0".into()]);
        gauges.end_watch();
        drop(streams);
        assert!(gauges.read_timelines(monotonic_ns()).is_empty());
        assert_eq!(read(), (0, 0));
        assert!(gauges.read(false).slots.is_none() && gauges.read(true).slots.is_some());
    }
}
