//! Metric families that backends and embedders define at run time, through the C API.
//!
//! Process-wide, because the C API creates them without a server. Two families of one name and kind
//! are the same family; two metrics of one family and the same labels are the same number. A number
//! lives as long as any handle to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_engine::{Code, Error};

use super::text::{push_head, push_number, push_sample};

/// What the numbers of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

impl FamilyKind {
    pub(super) const fn type_name(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }

    /// The name of the C API's constant.
    const fn constant(self) -> &'static str {
        match self {
            FamilyKind::Counter => "TRITONSERVER_METRIC_KIND_COUNTER",
            FamilyKind::Gauge => "TRITONSERVER_METRIC_KIND_GAUGE",
            FamilyKind::Histogram => "TRITONSERVER_METRIC_KIND_HISTOGRAM",
        }
    }
}

/// A handle to a family.
#[derive(Debug)]
pub struct Family {
    shared: Arc<FamilyShared>,
    /// Metrics made through this handle that are still there.
    metric_count: Arc<AtomicUsize>,
}

/// A handle to one number (or histogram) of a family.
#[derive(Debug)]
pub struct Metric {
    family: Arc<FamilyShared>,
    value: Arc<MetricValue>,
    metric_count: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct FamilyShared {
    name: String,
    help: String,
    kind: FamilyKind,
    children: Mutex<BTreeMap<MetricLabels, Weak<MetricValue>>>,
}

type MetricLabels = BTreeMap<String, String>;

#[derive(Debug)]
enum MetricValue {
    /// Bits of an f64.
    Number(AtomicU64),
    Histogram(Mutex<Histogram>),
}

#[derive(Clone, Debug)]
struct Histogram {
    /// Strictly increasing.
    bounds: Vec<f64>,
    /// One more than bounds: the last is everything above.
    counts: Vec<u64>,
    sum: f64,
}

static FAMILIES: Mutex<BTreeMap<String, Weak<FamilyShared>>> = Mutex::new(BTreeMap::new());

impl Family {
    /// The family of this name: a new one, or the one that exists with this kind.
    ///
    /// # Errors
    /// INVALID_ARG for a name that Prometheus does not take, or one that exists with another kind.
    pub fn open(kind: FamilyKind, name: &str, help: &str) -> Result<Family, Error> {
        if !is_metric_name(name) {
            return Err(Error::invalid("Invalid metric name"));
        }
        let mut families = lock(&FAMILIES);
        let shared = match families.get(name).and_then(Weak::upgrade) {
            Some(shared) if shared.kind == kind => shared,
            Some(_) => {
                return Err(Error::invalid(
                    "Family name already exists with different type",
                ));
            }
            None => {
                let shared = Arc::new(FamilyShared {
                    name: name.to_owned(),
                    help: help.to_owned(),
                    kind,
                    children: Mutex::default(),
                });
                families.insert(name.to_owned(), Arc::downgrade(&shared));
                shared
            }
        };
        Ok(Family {
            shared,
            metric_count: Arc::default(),
        })
    }

    pub fn kind(&self) -> FamilyKind {
        self.shared.kind
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The number with these labels; `bounds` are the upper bounds of a histogram's buckets, and
    /// only a histogram has them.
    ///
    /// # Errors
    /// INVALID_ARG for labels that Prometheus does not take, or bounds that are missing, unwanted
    /// or not strictly increasing.
    pub fn metric(
        &self,
        labels: &[(String, String)],
        bounds: Option<&[f64]>,
    ) -> Result<Metric, Error> {
        if let Some((name, _)) = labels.iter().find(|(name, _)| !is_label_name(name)) {
            return Err(Error::invalid(format!("Invalid label name '{name}'")));
        }
        let fresh = match (self.shared.kind, bounds) {
            (FamilyKind::Histogram, None) => {
                return Err(Error::invalid(
                    "Bucket boundaries not found in Metric args.",
                ));
            }
            (FamilyKind::Histogram, Some(bounds)) => {
                if bounds.windows(2).any(|pair| pair[0] >= pair[1])
                    || bounds.iter().any(|bound| bound.is_nan())
                {
                    return Err(Error::invalid(
                        "Bucket boundaries must be strictly increasing.",
                    ));
                }
                MetricValue::Histogram(Mutex::new(Histogram {
                    bounds: bounds.to_vec(),
                    counts: vec![0; bounds.len() + 1],
                    sum: 0.0,
                }))
            }
            (_, Some(_)) => {
                return Err(Error::invalid(format!(
                    "Unexpected args found in {} Metric constructor.",
                    self.shared.kind.type_name()
                )));
            }
            (_, None) => MetricValue::Number(AtomicU64::new(0.0_f64.to_bits())),
        };
        let labels: MetricLabels = labels.iter().cloned().collect();
        let mut children = lock(&self.shared.children);
        let value = children
            .get(&labels)
            .and_then(Weak::upgrade)
            .unwrap_or_else(|| Arc::new(fresh));
        children.insert(labels, Arc::downgrade(&value));
        children.retain(|_, child| child.strong_count() > 0);
        drop(children);
        self.metric_count.fetch_add(1, Ordering::Relaxed);
        Ok(Metric {
            family: Arc::clone(&self.shared),
            value,
            metric_count: Arc::clone(&self.metric_count),
        })
    }

    /// How many metrics of this handle are still there.
    pub fn metric_count(&self) -> usize {
        self.metric_count.load(Ordering::Relaxed)
    }

    /// Gives the handle up, or back.
    ///
    /// # Errors
    /// INTERNAL with the handle while metrics made through it exist.
    pub fn close(self) -> Result<(), (Family, Error)> {
        if self.metric_count() > 0 {
            let message = "Must call MetricDelete on all dependent metrics before calling \
                 MetricFamilyDelete.";
            return Err((self, Error::new(Code::Internal, message)));
        }
        Ok(())
    }
}

impl Metric {
    pub fn kind(&self) -> FamilyKind {
        self.family.kind
    }

    /// # Errors
    /// UNSUPPORTED for a histogram.
    pub fn value(&self) -> Result<f64, Error> {
        match &*self.value {
            MetricValue::Number(bits) => Ok(f64::from_bits(bits.load(Ordering::Relaxed))),
            MetricValue::Histogram(_) => Err(self.unsupported("Value")),
        }
    }

    /// Adds to a counter or gauge.
    ///
    /// # Errors
    /// INVALID_ARG for a negative (or no) number on a counter, UNSUPPORTED for a histogram.
    pub fn increment(&self, amount: f64) -> Result<(), Error> {
        let MetricValue::Number(bits) = &*self.value else {
            return Err(self.unsupported("Increment"));
        };
        if self.family.kind == FamilyKind::Counter && (amount < 0.0 || amount.is_nan()) {
            return Err(Error::invalid(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by \
                 non-negative values.",
            ));
        }
        let mut seen = bits.load(Ordering::Relaxed);
        loop {
            let sum = (f64::from_bits(seen) + amount).to_bits();
            match bits.compare_exchange_weak(seen, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// # Errors
    /// UNSUPPORTED unless the metric is a gauge.
    pub fn set(&self, value: f64) -> Result<(), Error> {
        match &*self.value {
            MetricValue::Number(bits) if self.family.kind == FamilyKind::Gauge => {
                bits.store(value.to_bits(), Ordering::Relaxed);
                Ok(())
            }
            _ => Err(self.unsupported("Set")),
        }
    }

    /// Counts a value into its bucket.
    ///
    /// # Errors
    /// UNSUPPORTED unless the metric is a histogram.
    pub fn observe(&self, value: f64) -> Result<(), Error> {
        let MetricValue::Histogram(histogram) = &*self.value else {
            return Err(self.unsupported("Observe"));
        };
        let mut histogram = lock(histogram);
        let bucket = histogram.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = histogram.counts.get_mut(bucket) {
            *count += 1;
        }
        histogram.sum += value;
        Ok(())
    }

    fn unsupported(&self, operation: &str) -> Error {
        Error::unsupported(format!(
            "{} does not support {operation}",
            self.family.kind.constant()
        ))
    }
}

impl Drop for Metric {
    fn drop(&mut self) {
        self.metric_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Renders every family that has a number.
pub(super) fn render_all(text: &mut String) {
    let mut families = lock(&FAMILIES);
    families.retain(|_, family| family.strong_count() > 0);
    let live: Vec<Arc<FamilyShared>> = families.values().filter_map(Weak::upgrade).collect();
    drop(families);
    for family in live {
        render(text, &family);
    }
}

fn render(text: &mut String, family: &FamilyShared) {
    let children: Vec<(MetricLabels, Arc<MetricValue>)> = lock(&family.children)
        .iter()
        .filter_map(|(labels, value)| Some((labels.clone(), value.upgrade()?)))
        .collect();
    if children.is_empty() {
        return;
    }
    push_head(text, &family.name, &family.help, family.kind.type_name());
    for (labels, value) in &children {
        let labels: Vec<(&str, &str)> = labels
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        match &**value {
            MetricValue::Number(bits) => push_sample(
                text,
                &family.name,
                &labels,
                f64::from_bits(bits.load(Ordering::Relaxed)),
            ),
            MetricValue::Histogram(histogram) => {
                let histogram = lock(histogram).clone();
                render_histogram(text, &family.name, &labels, &histogram);
            }
        }
    }
}

fn render_histogram(text: &mut String, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
    let total: u64 = histogram.counts.iter().sum();
    push_sample(text, &format!("{name}_count"), labels, total as f64);
    push_sample(text, &format!("{name}_sum"), labels, histogram.sum);
    let bucket_name = format!("{name}_bucket");
    let mut below = 0;
    let bounds = histogram
        .bounds
        .iter()
        .copied()
        .chain((histogram.bounds.last() != Some(&f64::INFINITY)).then_some(f64::INFINITY));
    for (bound, count) in bounds.zip(&histogram.counts) {
        below += count;
        let mut edge = String::new();
        push_number(&mut edge, bound);
        let mut labels = labels.to_vec();
        labels.push(("le", &edge));
        push_sample(text, &bucket_name, &labels, below as f64);
    }
}

fn is_metric_name(name: &str) -> bool {
    is_name(name, |character| character == ':')
}

fn is_label_name(name: &str) -> bool {
    is_name(name, |_| false) && !name.starts_with("__") && name != "le"
}

fn is_name(name: &str, also: impl Fn(char) -> bool) -> bool {
    let is_first =
        |character: char| character.is_ascii_alphabetic() || character == '_' || also(character);
    name.starts_with(is_first)
        && name
            .chars()
            .all(|character| is_first(character) || character.is_ascii_digit())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
        let error = outcome.unwrap_err();
        assert_eq!(error.code, Code::InvalidArg);
        error.message.into_owned()
    }

    fn text_of(family: &Family) -> String {
        let mut text = String::new();
        render(&mut text, &family.shared);
        text
    }

    #[test]
    fn handles_share_families_and_numbers() {
        let first =
            Family::open(FamilyKind::Counter, "shared_total", "Help\nwith \\ and \"").unwrap();
        let second = Family::open(FamilyKind::Counter, "shared_total", "other").unwrap();
        assert_eq!(
            refusal(Family::open(FamilyKind::Gauge, "shared_total", "")),
            "Family name already exists with different type"
        );
        assert_eq!(
            text_of(&first),
            "",
            "a family without numbers prints nothing"
        );
        let a = first
            .metric(&labels(&[("b", "2"), ("a", "q\"\\\n")]), None)
            .unwrap();
        let b = second
            .metric(&labels(&[("a", "q\"\\\n"), ("b", "2")]), None)
            .unwrap();
        a.increment(1.5).unwrap();
        b.increment(2.0).unwrap();
        assert_eq!(a.value().unwrap(), 3.5);
        let expected = "# HELP shared_total Help\\nwith \\\\ and \"\n# TYPE shared_total counter\n\
                        shared_total{a=\"q\\\"\\\\\\n\",b=\"2\"} 3.5\n";
        assert_eq!(text_of(&first), expected);
        let (first, error) = first.close().unwrap_err();
        assert_eq!(error.code, Code::Internal);
        assert!(
            error
                .message
                .starts_with("Must call MetricDelete on all dependent metrics")
        );
        drop(a);
        first.close().unwrap();
        assert_eq!(
            b.value().unwrap(),
            3.5,
            "the other handle still holds the number"
        );
        drop(b);
        assert_eq!(text_of(&second), "");
    }

    #[test]
    fn each_kind_does_only_what_it_can() {
        let counter = Family::open(FamilyKind::Counter, "kinds_counter", "").unwrap();
        let metric = counter.metric(&[], None).unwrap();
        assert_eq!(
            metric.set(1.0).unwrap_err().message,
            "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"
        );
        for amount in [-1.0, f64::NAN] {
            assert_eq!(
                refusal(metric.increment(amount)),
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by \
                 non-negative values."
            );
        }
        assert_eq!(metric.observe(1.0).unwrap_err().code, Code::Unsupported);
        assert_eq!(
            refusal(counter.metric(&[], Some(&[1.0]))),
            "Unexpected args found in counter Metric constructor."
        );
        let gauge = Family::open(FamilyKind::Gauge, "kinds_gauge", "").unwrap();
        let metric = gauge.metric(&[], None).unwrap();
        metric.set(5.0).unwrap();
        metric.increment(-7.5).unwrap();
        assert_eq!(metric.value().unwrap(), -2.5);
        let histogram = Family::open(FamilyKind::Histogram, "kinds_histogram", "h").unwrap();
        for bad in [&[2.0, 1.0][..], &[1.0, 1.0], &[1.0, f64::NAN]] {
            assert_eq!(
                refusal(histogram.metric(&[], Some(bad))),
                "Bucket boundaries must be strictly increasing.",
                "{bad:?}"
            );
        }
        assert_eq!(
            refusal(histogram.metric(&[], None)),
            "Bucket boundaries not found in Metric args."
        );
        let metric = histogram
            .metric(&labels(&[("x", "y")]), Some(&[0.1, 1.0]))
            .unwrap();
        for value in [0.05, 0.1, 0.5, 7.0] {
            metric.observe(value).unwrap();
        }
        assert_eq!(metric.value().unwrap_err().code, Code::Unsupported);
        let expected = "# HELP kinds_histogram h\n# TYPE kinds_histogram \
                        histogram\nkinds_histogram_count{x=\"y\"} 4\nkinds_histogram_sum{x=\"y\"} \
                        7.65\nkinds_histogram_bucket{x=\"y\",le=\"0.1\"} \
                        2\nkinds_histogram_bucket{x=\"y\",le=\"1\"} \
                        3\nkinds_histogram_bucket{x=\"y\",le=\"+Inf\"} 4\n";
        assert_eq!(text_of(&histogram), expected);
    }

    #[test]
    fn names_are_prometheus_names() {
        for (name, is_good) in [
            ("a:b_1", true),
            ("_x", true),
            ("1x", false),
            ("", false),
            ("a-b", false),
            ("ä", false),
        ] {
            let opened = Family::open(FamilyKind::Gauge, name, "");
            assert_eq!(opened.is_ok(), is_good, "{name}");
            if !is_good {
                assert_eq!(refusal(opened), "Invalid metric name");
            }
        }
        let family = Family::open(FamilyKind::Gauge, "labelled", "").unwrap();
        for (name, is_good) in [
            ("a", true),
            ("__a", false),
            ("a:b", false),
            ("", false),
            ("le", false),
            ("a\"b", false),
        ] {
            let made = family.metric(&labels(&[(name, "v")]), None);
            assert_eq!(made.is_ok(), is_good, "{name}");
            if !is_good {
                assert_eq!(refusal(made), format!("Invalid label name '{name}'"));
            }
        }
    }
}
