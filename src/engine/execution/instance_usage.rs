//! How many instances of a model execute, and which slots its sequences hold: read by whoever asks
//! for the metrics, written with plain stores by those that know.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_scheduler::{Scheduler, SlotUsage};

use crate::RequestHandle;
use crate::execution::seat::Seat;
use crate::request::context::{ExecutorUsage, InstanceUsage};

/// What the cores and the scheduler of one queue tell.
#[derive(Default)]
pub(crate) struct UsageGauges {
    /// Of cores that execute one batch after the other. Locked when a core comes or goes, and by
    /// who asks.
    seats: Mutex<Vec<Weak<Seat>>>,
    /// Instances that keep batches in flight: those that serve, and those that have any.
    stream_count: AtomicUsize,
    busy_stream_count: AtomicUsize,
    /// Of a model with sequences, as of the last visit to its scheduler.
    slots_used: AtomicU64,
    slots_total: AtomicU64,
}

impl UsageGauges {
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

    fn seats(&self) -> MutexGuard<'_, Vec<Weak<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The instances of one core that keeps batches in flight, counted until it is dropped.
pub(crate) struct StreamUsage {
    gauges: Arc<UsageGauges>,
    count: usize,
    busy_count: usize,
}

impl StreamUsage {
    pub(crate) fn new(gauges: &Arc<UsageGauges>, count: usize) -> StreamUsage {
        gauges.stream_count.fetch_add(count, Ordering::Relaxed);
        StreamUsage {
            gauges: Arc::clone(gauges),
            count,
            busy_count: 0,
        }
    }

    /// So many have batches in flight now.
    pub(crate) fn note(&mut self, busy_count: usize) {
        if busy_count != self.busy_count {
            let gauge = &self.gauges.busy_stream_count;
            gauge.fetch_add(busy_count, Ordering::Relaxed);
            gauge.fetch_sub(self.busy_count, Ordering::Relaxed);
            self.busy_count = busy_count;
        }
    }
}

impl Drop for StreamUsage {
    fn drop(&mut self) {
        self.note(0);
        let gauge = &self.gauges.stream_count;
        gauge.fetch_sub(self.count, Ordering::Relaxed);
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
        let mut streams = StreamUsage::new(&gauges, 1);
        // These seats have no instances.
        assert_eq!(read(), (1, 0));
        seats[1].set_busy(true);
        streams.note(1);
        assert_eq!(read(), (1, 2));
        gauges.close_seat(&seats[1]);
        assert_eq!(read(), (1, 1));
        drop(streams);
        assert_eq!(read(), (0, 0));
        assert!(gauges.read(false).slots.is_none() && gauges.read(true).slots.is_some());
    }
}
