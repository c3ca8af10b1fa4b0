//! A metric of each kind, per model.

use std::sync::Arc;

use conch_backend_sdk::{Error, Metric, MetricFamily};

/// The upper bounds of the sizes of responses, in bytes.
const SIZE_BUCKETS: [f64; 3] = [16.0, 1024.0, 65_536.0];

/// The families, which all models share.
pub(crate) struct CountFamilies {
    calls: MetricFamily,
    in_flight: MetricFamily,
    responses: MetricFamily,
    sizes: MetricFamily,
}

impl CountFamilies {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(CountFamilies {
            calls: MetricFamily::counter("forward_calls", "Calls sent")?,
            in_flight: MetricFamily::gauge("forward_in_flight", "Calls in flight")?,
            responses: MetricFamily::gauge("forward_responses", "Responses of the last call")?,
            sizes: MetricFamily::histogram("forward_bytes", "Sizes of responses")?,
        })
    }

    pub(crate) fn counts_of(&self, model: &str) -> Result<Counts, Error> {
        let labels = [("model", model)];
        Ok(Counts {
            calls: self.calls.metric(&labels)?,
            in_flight: self.in_flight.metric(&labels)?,
            responses: self.responses.metric(&labels)?,
            sizes: self.sizes.metric_with_buckets(&labels, &SIZE_BUCKETS)?,
        })
    }
}

/// The metrics of one model.
pub(crate) struct Counts {
    calls: Metric,
    in_flight: Metric,
    responses: Metric,
    sizes: Metric,
}

/// A call that is counted as in flight until this is dropped.
pub(crate) struct CountedCall(Arc<Counts>);

impl CountedCall {
    pub(crate) fn begin(counts: &Arc<Counts>) -> Result<Self, Error> {
        let before = counts.calls.value()?;
        counts.calls.increment(1.0)?;
        if counts.calls.value()? <= before {
            return Err(Error::internal("the counter of calls does not grow"));
        }
        counts.in_flight.increment(1.0)?;
        Ok(CountedCall(Arc::clone(counts)))
    }

    /// Counts a response: the `number`-th of the call.
    pub(crate) fn count(&self, number: u64, byte_count: usize) -> Result<(), Error> {
        // Far from where a double is coarse.
        let double = |value: u64| f64::from(u32::try_from(value).unwrap_or(u32::MAX));
        self.0.sizes.observe(double(byte_count as u64))?;
        self.0.responses.set(double(number))
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        // Nobody is left to hear of an error.
        let _ = self.0.in_flight.increment(-1.0);
    }
}
