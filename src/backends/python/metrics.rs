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
    metrics: HashMap<u64, Metric>,
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

    pub(crate) fn drop_one(&self, kind: &str, number: u64) {
        let mut table = self.lock();
        match kind {
            "drop_family" => drop(table.families.remove(&number)),
            _ => drop(table.metrics.remove(&number)),
        }
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
                let buckets = buckets.into_iter().flatten().filter_map(Value::as_f64);
                family.metric_with_buckets(&labels, &buckets.collect::<Vec<_>>())?
            }
            _ => family.metric(&labels)?,
        };
        self.metrics.insert(number, metric);
        Ok(json!({ "h": number }))
    }

    fn operate(&self, text: &CallText) -> Result<Value, Error> {
        let metric = self.metrics.get(&text.number);
        let metric = metric.ok_or_else(|| {
            Error::invalid(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted.",
            )
        })?;
        let value = text.value.as_f64().unwrap_or_default();
        match text.others.get("op").and_then(Value::as_str) {
            Some("increment") => metric.increment(value)?,
            Some("set") => metric.set(value)?,
            Some("observe") => metric.observe(value)?,
            Some("value") => return Ok(json!({ "v": metric.value()? })),
            _ => return Err(Error::invalid("Unknown metric operation")),
        }
        Ok(json!({}))
    }
}
