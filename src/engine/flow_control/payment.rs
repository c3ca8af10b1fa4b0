//! What a response is paid with, and who sets the pace of those that have no reader.

/// What became of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payment {
    /// The response may leave.
    Made,
    /// The reader was too slow for too long: the request is to be cancelled, its response dropped.
    Refused,
    /// Nobody reads any more: drop the response.
    Unwanted,
}

/// Sets the pace of a step of an ensemble.
pub(crate) trait StepFlow: std::fmt::Debug + Send + Sync {
    /// Before a response is sent: waits until it may be, within bounds.
    fn pay(&self) -> Payment;

    /// Waits until a response may be sent, within bounds.
    fn await_room(&self) -> Payment;

    /// A response is sent.
    fn count(&self);
}
