//! Metrics that a model adds to the server's, by number.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use conch_backend_sdk as sdk;
use sdk::{Error, Metric, MetricFamily, MetricKind};
use serde_json::{Value, json};

use crate::call_text::CallText;

/// Families and metrics that one stub may have.
const COUNT_MAX: usize = 65_536;

/// What one stub made. It goes with the stub.
#[derive(Default)]
pub(crate) struct Metrics {
    table: Mutex<MetricTable>,
}

#[derive(Default)]
struct MetricTable {
    last: u64,
    families: HashMap<u64, MetricFamily>,
    /// With the numbers of their families.
    metrics: HashMap<u64, (u64, Metric)>,
}

impl Metrics {
    /// Makes a family or a metric, or does something with a metric; the answer for the stub.
    pub(crate) fn handle(&self, kind: &str, text: &CallText) -> Result<Value, Error> {
        let mut table = self.lock();
        match kind {
            "family" => table.add_family(text),
            "new_metric" => table.add_metric(text),
            _ => table.operate(text),
        }
    }

    /// Gives a family up, and its metrics before it, as upstream does.
    pub(crate) fn drop_family(&self, number: u64) {
        let mut table = self.lock();
        table.metrics.retain(|_, (family, _)| *family != number);
        table.families.remove(&number);
    }

    /// Gives everything up.
    pub(crate) fn close(&self) {
        let mut table = self.lock();
        table.metrics.clear();
        table.families.clear();
    }

    fn lock(&self) -> MutexGuard<'_, MetricTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricTable {
    fn number(&mut self) -> Result<u64, Error> {
        if self.families.len() + self.metrics.len() >= COUNT_MAX {
            return Err(Error::new(
                sdk::Code::Unavailable,
                format!("a model has at most {COUNT_MAX} metrics"),
            ));
        }
        self.last += 1;
        Ok(self.last)
    }

    fn add_family(&mut self, text: &CallText) -> Result<Value, Error> {
        let kind = match text.others.get("kind").and_then(Value::as_u64) {
            Some(0) => MetricKind::Counter,
            Some(1) => MetricKind::Gauge,
            Some(2) => MetricKind::Histogram,
            _ => return Err(Error::invalid("Unknown metric kind")),
        };
        let field = |name: &str| text.others.get(name).and_then(Value::as_str);
        let (name, description) = (field("name"), field("text"));
        let number = self.number()?;
        let family = MetricFamily::new(
            kind,
            name.unwrap_or_default(),
            description.unwrap_or_default(),
        )?;
        self.families.insert(number, family);
        Ok(json!({ "h": number }))
    }

    fn add_metric(&mut self, text: &CallText) -> Result<Value, Error> {
        let number = self.number()?;
        let family = self.families.get(&text.number);
        let family = family.ok_or_else(|| Error::invalid("the metric family is gone"))?;
        let labels = text.others.get("labels").and_then(Value::as_object);
        let labels: Vec<(&str, &str)> = labels
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
            .collect();
        let metric = match family.kind() {
            MetricKind::Histogram => {
                let buckets = text.others.get("buckets").and_then(Value::as_array);
                let buckets = buckets.into_iter().flatten().filter_map(number_of);
                family.metric_with_buckets(&labels, &buckets.collect::<Vec<_>>())?
            }
            _ => family.metric(&labels)?,
        };
        self.metrics.insert(number, (text.number, metric));
        Ok(json!({ "h": number }))
    }

    fn operate(&self, text: &CallText) -> Result<Value, Error> {
        let metric = self.metrics.get(&text.number);
        let (_, metric) = metric.ok_or_else(|| {
            Error::invalid(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. \
                 The 'MetricFamily' object should be deleted AFTER its corresponding 'Metric' \
                 objects have been deleted.",
            )
        })?;
        let value = number_of(&text.value).unwrap_or_default();
        match text.others.get("op").and_then(Value::as_str) {
            Some("increment") => metric.increment(value)?,
            Some("set") => metric.set(value)?,
            Some("observe") => metric.observe(value)?,
            Some("value") => return Ok(json!({ "v": json_of(metric.value()?) })),
            _ => return Err(Error::invalid("Unknown metric operation")),
        }
        Ok(json!({}))
    }
}

/// A number of a stub's. What JSON has no number for is a text.
fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    }
}

/// The same way back.
fn json_of(number: f64) -> Value {
    match number.is_finite() {
        true => json!(number),
        false => json!(number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways() {
        for number in [0.0, -1.5, 1e300, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(number_of(&json_of(number)), Some(number));
        }
        assert!(number_of(&json_of(f64::NAN)).is_some_and(f64::is_nan));
        assert_eq!(number_of(&json!("x")), None);
        assert_eq!(number_of(&json!([])), None);
    }
}
