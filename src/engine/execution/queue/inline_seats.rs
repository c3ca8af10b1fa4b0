//! The seats where threads that submit may execute, in the order in which their cores began to
//! serve.
//!
//! Every thread that submits reads this once or twice per request. It only grows: a model has at
//! most as many seats as it ever had cores. An `ArcSwap` in its place would register the thread of
//! every core in a list, which each change of any such value in the process walks.

use std::sync::{Arc, OnceLock};

use crate::execution::seat::Seat;

/// The first seat that is not closed is the one that counts.
#[derive(Default)]
pub(super) struct InlineSeats {
    /// In place: nearly always the only one.
    first: OnceLock<SeatNode>,
}

struct SeatNode {
    seat: Arc<Seat>,
    next: OnceLock<Box<SeatNode>>,
}

impl InlineSeats {
    /// Does not block.
    pub(super) fn open(&self) -> Option<&Arc<Seat>> {
        self.nodes()
            .map(|node| &node.seat)
            .find(|seat| !seat.is_closed())
    }

    /// Puts a seat behind those that are there.
    pub(super) fn add(&self, seat: &Arc<Seat>) {
        let node = SeatNode {
            seat: Arc::clone(seat),
            next: OnceLock::new(),
        };
        let Err(node) = self.first.set(node) else {
            return;
        };
        let mut node = Box::new(node);
        // Where another thread is faster, behind what it puts there.
        while let Some(last) = self.nodes().last()
            && let Err(rejected) = last.next.set(node)
        {
            node = rejected;
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &SeatNode> {
        std::iter::successors(self.first.get(), |node| node.next.get().map(|next| &**next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seat_that_is_not_closed_counts() {
        let seats = InlineSeats::default();
        assert!(seats.open().is_none());
        let made = [0, 1, 2].map(|core| Arc::new(Seat::new(core, Vec::new())));
        for seat in &made {
            seats.add(seat);
        }
        for (core, seat) in made.iter().enumerate() {
            assert_eq!(seats.open().map(|open| open.core()), Some(core));
            seat.close();
        }
        assert!(seats.open().is_none());
    }

    #[test]
    fn threads_add_at_once() {
        let seats = InlineSeats::default();
        std::thread::scope(|scope| {
            for core in 0..8 {
                let seats = &seats;
                scope.spawn(move || seats.add(&Arc::new(Seat::new(core, Vec::new()))));
            }
        });
        let mut cores: Vec<usize> = seats.nodes().map(|node| node.seat.core()).collect();
        cores.sort_unstable();
        assert_eq!(cores, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
