//! The last seconds of a server.

use std::collections::VecDeque;

use crate::numbers::quantile;
use crate::sample::{Layout, ModelKey, ModelSample, Sample};

/// Seconds that are kept: a heat map on a wide terminal.
const SECONDS_MAX: usize = 240;

#[derive(Default)]
pub(crate) struct History {
    layout: Layout,
    seconds: VecDeque<Second>,
}

/// A sample, and the sum of its models.
pub(crate) struct Second {
    pub(crate) sample: Sample,
    all: ModelSample,
}

impl Second {
    /// What it tells of that model; without a key of all.
    pub(crate) fn of(&self, key: Option<&ModelKey>) -> Option<&ModelSample> {
        match key {
            None => Some(&self.all),
            Some(key) => self.sample.models.iter().find(|model| model.key() == *key),
        }
    }
}

impl History {
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    pub(crate) fn push(&mut self, mut sample: Sample) {
        sample.models.sort_by_key(ModelSample::key);
        let all = sample.together();
        // Timelines are of the last second only.
        if let Some(last) = self.seconds.back_mut() {
            let models = last.sample.models.iter_mut();
            models
                .chain([&mut last.all])
                .for_each(|model| model.timelines = Vec::new());
        }
        self.seconds.push_back(Second { sample, all });
        if self.seconds.len() > SECONDS_MAX {
            self.seconds.pop_front();
        }
    }

    pub(crate) fn latest(&self) -> Option<&Second> {
        self.seconds.back()
    }

    /// At most so many of the last seconds, the oldest first.
    pub(crate) fn last(&self, count: usize) -> impl Iterator<Item = &Second> + Clone {
        let skipped = self.seconds.len().saturating_sub(count);
        self.seconds.iter().skip(skipped)
    }

    pub(crate) fn quantile(&self, model: &ModelSample, share: f64) -> Option<f64> {
        quantile(&model.latency, &self.layout.bounds_us, share)
    }
}
