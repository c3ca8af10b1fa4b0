//! What a core is told once its instances are there.
//!
//! A core waits for it without an allocation. There is a core per instance, and each keeps pages of
//! memory for every size that its thread has ever asked for.

use std::sync::{Arc, OnceLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreOrder {
    /// Execute, until the queue is closed.
    Serve,
    /// Let the instances go.
    Leave,
}

/// Where one core receives its order.
pub(super) struct OrderReceiver(Arc<OnceLock<CoreOrder>>);

/// Gives one core its order: the first one counts, and the drop is the order to leave.
pub(super) struct OrderSender(Arc<OnceLock<CoreOrder>>);

pub(super) fn order_channel() -> (OrderSender, OrderReceiver) {
    let order = Arc::<OnceLock<CoreOrder>>::default();
    (OrderSender(Arc::clone(&order)), OrderReceiver(order))
}

impl OrderReceiver {
    /// Blocks until there is one.
    pub(super) fn wait(&self) -> CoreOrder {
        *self.0.wait()
    }
}

impl OrderSender {
    pub(super) fn send(&self, order: CoreOrder) {
        // Failure: it had one before.
        let _ = self.0.set(order);
    }
}

impl Drop for OrderSender {
    fn drop(&mut self) {
        self.send(CoreOrder::Leave);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_order_counts_and_a_drop_is_one() {
        let (sender, receiver) = order_channel();
        let core = std::thread::spawn(move || (receiver.wait(), receiver.wait()));
        sender.send(CoreOrder::Serve);
        drop(sender);
        assert_eq!(core.join().unwrap(), (CoreOrder::Serve, CoreOrder::Serve));
        let (sender, receiver) = order_channel();
        let core = std::thread::spawn(move || receiver.wait());
        drop(sender);
        assert_eq!(core.join().unwrap(), CoreOrder::Leave);
    }
}
