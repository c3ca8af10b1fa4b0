//! The labels of a model version's samples.

use std::sync::Arc;

use conch_engine::ModelVersion;

use super::text::push_sample;

/// What tells a version from others.
pub(super) struct ModelLabels {
    /// Sorted by name, as the upstream serializer does: `_tag` labels, `gpu_uuid`, `model`, then
    /// `namespace`, `reason`, `version`.
    pub(super) tags: Vec<(String, String)>,
    pub(super) model: Arc<str>,
    /// Empty unless models have namespaces.
    pub(super) namespace: Arc<str>,
    pub(super) version: String,
}

/// Labels that a sample has beside those of its version.
#[derive(Clone, Copy, Default)]
pub(super) struct SampleLabels<'a> {
    pub(super) gpu: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
    /// `le` or `quantile`, which come behind all others.
    pub(super) last: Option<(&'a str, &'a str)>,
}

impl ModelLabels {
    pub(super) fn of(model: &ModelVersion) -> ModelLabels {
        let mut tags: Vec<(String, String)> = model
            .config
            .message
            .metric_tags
            .iter()
            .map(|(tag, value)| (format!("_{}", label_name(tag)), value.clone()))
            .collect();
        tags.sort();
        ModelLabels {
            tags,
            model: Arc::clone(&model.name),
            namespace: Arc::clone(&model.namespace),
            version: model.version.to_string(),
        }
    }

    pub(super) fn push(&self, text: &mut String, name: &str, more: SampleLabels<'_>, value: f64) {
        let tags = self.tags.iter();
        let mut labels: Vec<(&str, &str)> = Vec::with_capacity(self.tags.len() + 6);
        labels.extend(tags.map(|(tag, value)| (tag.as_str(), value.as_str())));
        labels.extend(more.gpu.map(|uuid| ("gpu_uuid", uuid)));
        labels.push(("model", &self.model));
        if !self.namespace.is_empty() {
            labels.push(("namespace", &self.namespace));
        }
        labels.extend(more.reason.map(|reason| ("reason", reason)));
        labels.push(("version", &self.version));
        labels.extend(more.last);
        push_sample(text, name, &labels, value);
    }

    /// One histogram. `bounds` and `counts` are of its buckets, but for the last bound, which is
    /// infinite. The order of the lines is upstream's.
    pub(super) fn push_histogram(
        &self,
        text: &mut String,
        name: &str,
        more: SampleLabels<'_>,
        bounds: impl Iterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let total: u64 = counts.iter().sum();
        self.push(text, &format!("{name}_count"), more, total as f64);
        self.push(text, &format!("{name}_sum"), more, sum);
        let bucket_name = format!("{name}_bucket");
        let mut below = 0;
        let finite = bounds.take_while(|bound| bound.is_finite());
        for (bound, count) in finite.zip(counts) {
            below += count;
            let edge = bound.to_string();
            let last = Some(("le", edge.as_str()));
            self.push(
                text,
                &bucket_name,
                SampleLabels { last, ..more },
                below as f64,
            );
        }
        let last = Some(("le", "+Inf"));
        self.push(
            text,
            &bucket_name,
            SampleLabels { last, ..more },
            total as f64,
        );
    }
}

/// A tag's characters that a label may not have become `_`: a hostile configuration must not break
/// the exposition for all others.
fn label_name(tag: &str) -> String {
    tag.chars()
        .map(|character| {
            if character.is_ascii_alphanumeric() {
                character
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_cannot_break_the_exposition() {
        for (tag, expected) in [
            ("team", "team"),
            ("a b\"}", "a_b__"),
            ("größe", "gr__e"),
            ("x\n", "x_"),
        ] {
            assert_eq!(label_name(tag), expected);
        }
    }

    #[test]
    fn histograms_add_up_from_bucket_to_bucket() {
        let labels = ModelLabels {
            tags: Vec::new(),
            model: "m".into(),
            namespace: "".into(),
            version: "1".into(),
        };
        let table: [(&[f64], &[u64], &[&str]); 3] = [
            (&[0.5, 2.0], &[1, 0, 2], &["0.5 1", "2 1", "+Inf 3"]),
            (&[0.5, f64::INFINITY], &[1, 2, 0], &["0.5 1", "+Inf 3"]),
            (&[], &[4], &["+Inf 4"]),
        ];
        for (bounds, counts, expected) in table {
            let mut text = String::new();
            let bounds = bounds.iter().copied();
            labels.push_histogram(&mut text, "h", SampleLabels::default(), bounds, counts, 1.5);
            let total: u64 = counts.iter().sum();
            let mut lines = text.lines();
            let head = [
                format!(r#"h_count{{model="m",version="1"}} {total}"#),
                r#"h_sum{model="m",version="1"} 1.5"#.to_owned(),
            ];
            for line in head {
                assert_eq!(lines.next(), Some(&*line));
            }
            let buckets: Vec<String> = lines
                .map(|line| {
                    line.replace(r#"h_bucket{model="m",version="1",le=""#, "")
                        .replace("\"}", "")
                })
                .collect();
            assert_eq!(buckets, expected);
        }
    }
}
