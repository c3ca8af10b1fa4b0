//! An intrusive queue that many threads push onto and one takes whole.
//!
//! Both queues of this crate are of this kind: the [`Inbox`](crate::Inbox) of requests and the
//! mailbox of a shard. A push is one compare-and-swap and a take is another, so neither side waits
//! for the other. (In a ring of slots, a producer that is preempted between taking a slot and
//! filling it stops the consumer.) The links lie inside the items: the queue allocates nothing, and
//! its memory is that of the queued items. The bound is kept where items are made: a request takes
//! a permit of its model before it may be queued, and a final response belongs to such a request.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::primitives::{AtomicPtr, Ordering};

/// An owning pointer whose target can be linked into one [`MpscQueue`] at a time.
///
/// # Safety
/// `into_node` gives up ownership of an address that stays valid until `from_node` takes it back,
/// refuses an item that is in a queue already, and `next` always names the same atomic of that
/// node, which nobody else writes while the node is linked.
pub unsafe trait Link: Sized {
    type Node;

    /// # Errors
    /// The item itself, if it is in a queue already.
    fn into_node(self) -> Result<NonNull<Self::Node>, Self>;

    /// # Safety
    /// `node` came from [`Link::into_node`] and has not been taken back since.
    unsafe fn from_node(node: NonNull<Self::Node>) -> Self;

    /// # Safety
    /// As for [`Link::from_node`], for all of `'a`.
    unsafe fn next<'a>(node: NonNull<Self::Node>) -> &'a AtomicPtr<Self::Node>;
}

/// Why a push was refused; the item comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<L> {
    Closed(L),
    /// It is in a queue already.
    Linked(L),
}

/// The queue; see the module's head for its costs.
pub struct MpscQueue<L: Link> {
    /// The newest item; null if there is none, [`closed`] once no more may come.
    head: AtomicPtr<L::Node>,
    items: PhantomData<L>,
}

// SAFETY: a queue owns its items and hands each to exactly one thread.
unsafe impl<L: Link + Send> Sync for MpscQueue<L> {}
// SAFETY: as above.
unsafe impl<L: Link + Send> Send for MpscQueue<L> {}

/// No node lies at address 1: nodes hold a pointer and are aligned to it.
fn closed<N>() -> *mut N {
    ptr::without_provenance_mut(1)
}

impl<L: Link> Default for MpscQueue<L> {
    fn default() -> MpscQueue<L> {
        MpscQueue {
            head: AtomicPtr::new(ptr::null_mut()),
            items: PhantomData,
        }
    }
}

impl<L: Link> MpscQueue<L> {
    /// Adds `item`. Returns whether the queue was empty before: its consumer may then have to be
    /// woken.
    ///
    /// # Errors
    /// The item, if the queue is closed or the item is linked already.
    pub fn push(&self, item: L) -> Result<bool, Refused<L>> {
        let node = item.into_node().map_err(Refused::Linked)?;
        // SAFETY: `node` is ours until the exchange below publishes it.
        let next = unsafe { L::next(node) };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == closed() {
                // SAFETY: taken back at once, never published.
                return Err(Refused::Closed(unsafe { L::from_node(node) }));
            }
            next.store(head, Ordering::Relaxed);
            // Release publishes the item and its link to the taker's Acquire.
            match self.head.compare_exchange_weak(
                head,
                node.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(head.is_null()),
                Err(seen) => head = seen,
            }
        }
    }

    /// Whether there is nothing to take now.
    pub fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        head.is_null() || head == closed()
    }

    /// Takes everything, oldest first.
    pub fn take_all(&self) -> Drained<L> {
        self.take(ptr::null_mut())
    }

    /// Takes everything and refuses what comes later.
    pub fn close(&self) -> Drained<L> {
        self.take(closed())
    }

    fn take(&self, replacement: *mut L::Node) -> Drained<L> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == closed() || (head.is_null() && replacement.is_null()) {
                return Drained::from_newest(ptr::null_mut());
            }
            match self.head.compare_exchange_weak(
                head,
                replacement,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Drained::from_newest(head),
                Err(seen) => head = seen,
            }
        }
    }
}

impl<L: Link> Drop for MpscQueue<L> {
    fn drop(&mut self) {
        // A model that failed has ended: its atomics can no longer be used.
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        drop(self.close());
    }
}

/// Items taken from a [`MpscQueue`], oldest first. Dropping it drops the rest.
pub struct Drained<L: Link> {
    next: *mut L::Node,
    items: PhantomData<L>,
}

// SAFETY: a drained owns its items, and they may move between threads.
unsafe impl<L: Link + Send> Send for Drained<L> {}

impl<L: Link> Drained<L> {
    /// A drained without items.
    pub fn empty() -> Drained<L> {
        Drained {
            next: ptr::null_mut(),
            items: PhantomData,
        }
    }

    /// Reverses the links of a taken list, so that the oldest comes first.
    fn from_newest(mut node: *mut L::Node) -> Drained<L> {
        let mut drained = Drained::empty();
        while let Some(current) = NonNull::new(node) {
            // SAFETY: the drained owns every node of the taken list; the Acquire of `take` made its
            // links visible.
            let link = unsafe { L::next(current) };
            node = link.load(Ordering::Relaxed);
            link.store(drained.next, Ordering::Relaxed);
            drained.next = current.as_ptr();
        }
        drained
    }

    pub fn is_empty(&self) -> bool {
        self.next.is_null()
    }
}

impl<L: Link> Iterator for Drained<L> {
    type Item = L;

    fn next(&mut self) -> Option<L> {
        let node = NonNull::new(self.next)?;
        // SAFETY: the drained owns `node` until the next line takes it back.
        self.next = unsafe { L::next(node) }.load(Ordering::Relaxed);
        // SAFETY: unlinked above, so it is taken back exactly once.
        Some(unsafe { L::from_node(node) })
    }
}

impl<L: Link> Drop for Drained<L> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// A value with a link of its own, for items that have none.
pub struct Node<T> {
    next: AtomicPtr<Node<T>>,
    pub(crate) value: T,
}

impl<T> Node<T> {
    pub fn new(value: T) -> Box<Node<T>> {
        Box::new(Node {
            next: AtomicPtr::new(ptr::null_mut()),
            value,
        })
    }

    pub fn into_value(self) -> T {
        self.value
    }
}

// SAFETY: a box is unique, so it cannot be linked twice; the link is private to this module.
unsafe impl<T> Link for Box<Node<T>> {
    type Node = Node<T>;

    fn into_node(self) -> Result<NonNull<Node<T>>, Self> {
        Ok(NonNull::from(Box::leak(self)))
    }

    unsafe fn from_node(node: NonNull<Node<T>>) -> Self {
        // SAFETY: the address is that of a leaked box, by this function's contract.
        unsafe { Box::from_raw(node.as_ptr()) }
    }

    unsafe fn next<'a>(node: NonNull<Node<T>>) -> &'a AtomicPtr<Node<T>> {
        // SAFETY: live by this function's contract.
        unsafe { &(*node.as_ptr()).next }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Boxes = MpscQueue<Box<Node<Arc<u32>>>>;

    fn values(drained: Drained<Box<Node<Arc<u32>>>>) -> Vec<u32> {
        drained.map(|node| *node.value).collect()
    }

    #[test]
    fn what_is_pushed_comes_out_in_order_and_once() {
        let queue = Boxes::default();
        assert!(queue.is_empty());
        assert_eq!(queue.push(Node::new(Arc::new(1))).ok(), Some(true));
        assert_eq!(queue.push(Node::new(Arc::new(2))).ok(), Some(false));
        assert_eq!(queue.push(Node::new(Arc::new(3))).ok(), Some(false));
        assert_eq!(values(queue.take_all()), [1, 2, 3]);
        assert!(queue.is_empty() && queue.take_all().is_empty());
        assert_eq!(
            queue.push(Node::new(Arc::new(4))).ok(),
            Some(true),
            "empty again"
        );
        assert_eq!(values(queue.take_all()), [4]);
    }

    #[test]
    fn a_closed_pile_gives_the_rest_and_refuses() {
        let queue = Boxes::default();
        assert!(queue.push(Node::new(Arc::new(1))).is_ok());
        assert_eq!(values(queue.close()), [1]);
        let refused = queue.push(Node::new(Arc::new(2)));
        assert!(matches!(refused, Err(Refused::Closed(node)) if *node.value == 2));
        assert!(queue.is_empty() && queue.close().is_empty() && queue.take_all().is_empty());
    }

    #[test]
    fn dropping_a_pile_or_half_a_chain_drops_the_items() {
        let value = Arc::new(0);
        let queue = Boxes::default();
        for _ in 0..4 {
            assert!(queue.push(Node::new(Arc::clone(&value))).is_ok());
        }
        let mut drained = queue.take_all();
        drop(drained.next());
        assert!(queue.push(Node::new(Arc::clone(&value))).is_ok());
        drop((drained, queue));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn many_producers_lose_nothing_and_keep_their_own_order() {
        const PRODUCERS: u32 = 4;
        // Miri interprets; a few rounds show it every access.
        const EACH: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let queue = Boxes::default();
        let mut last = [0_u32; PRODUCERS as usize];
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let queue = &queue;
                scope.spawn(move || {
                    for index in 1..=EACH {
                        assert!(
                            queue
                                .push(Node::new(Arc::new(producer * 1_000_000 + index)))
                                .is_ok()
                        );
                    }
                });
            }
            while last.iter().any(|index| *index < EACH) {
                for value in values(queue.take_all()) {
                    let seen = &mut last[(value / 1_000_000) as usize];
                    assert_eq!(value % 1_000_000, *seen + 1);
                    *seen += 1;
                }
                std::thread::yield_now();
            }
        });
    }
}
