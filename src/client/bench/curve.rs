//! Where points of curves lie: both axes are logarithmic.

use super::report::{RateReport, milliseconds};

/// An axis from `min` to `max`, both above zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogAxis {
    min: f64,
    max: f64,
}

impl LogAxis {
    /// From the smallest of `values` to the largest.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> LogAxis {
        let bounds = values.filter(|value| *value > 0.0 && value.is_finite());
        let (min, max) = bounds.fold((f64::MAX, 0.0_f64), |(min, max), value| {
            (min.min(value), max.max(value))
        });
        match min < max {
            true => LogAxis { min, max },
            // A single value, or none, is in the middle.
            false => {
                let value = if max > 0.0 { max } else { 1.0 };
                LogAxis {
                    min: value / 2.0,
                    max: value * 2.0,
                }
            }
        }
    }

    /// The place of `value`, from 0 to 1.
    pub(super) fn place(self, value: f64) -> f64 {
        let value = value.clamp(self.min, self.max);
        (value / self.min).ln() / (self.max / self.min).ln()
    }

    /// Round values of the axis: 1, 2 and 5 times powers of ten, at most about `count`.
    pub(super) fn ticks(self, count: usize) -> Vec<f64> {
        let decades = self.min.log10().floor() as i32..=self.max.log10().ceil() as i32;
        let within = |steps: &[f64]| -> Vec<f64> {
            let all = decades.clone().flat_map(|decade| {
                let power = 10_f64.powi(decade);
                steps.iter().map(move |step| step * power)
            });
            // Powers are not exact.
            let (min, max) = (self.min * 0.999, self.max * 1.001);
            all.filter(|tick| min <= *tick && *tick <= max).collect()
        };
        let fine = within(&[1.0, 2.0, 5.0]);
        match fine.len() <= count {
            true => fine,
            false => within(&[1.0]),
        }
    }
}

/// The axes of rates and of latencies in milliseconds.
pub(super) fn axes(reports: &[RateReport]) -> (LogAxis, LogAxis) {
    let rates = reports.iter().map(|report| report.rate);
    let latencies = reports.iter().flat_map(|report| report.latencies);
    (LogAxis::of(rates), LogAxis::of(latencies.map(milliseconds)))
}

/// In as few signs as say it.
pub(super) fn shown(value: f64) -> String {
    match value {
        1e6.. => format!("{}M", value / 1e6),
        1e3.. => format!("{}k", value / 1e3),
        // Powers are not exact.
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_places() {
        let axis = LogAxis::of([0.1, 10.0, 0.0].into_iter());
        for (value, place) in [
            (0.1, 0.0),
            (1.0, 0.5),
            (10.0, 1.0),
            (0.01, 0.0),
            (99.0, 1.0),
        ] {
            assert!((axis.place(value) - place).abs() < 1e-9, "{value}");
        }
        let shown_ticks: Vec<String> = axis.ticks(10).into_iter().map(shown).collect();
        assert_eq!(shown_ticks, ["0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        assert_eq!(axis.ticks(3).len(), 3);
        for values in [vec![], vec![7.0]] {
            let axis = LogAxis::of(values.into_iter());
            assert!(axis.place(7.0).is_finite());
        }
        assert_eq!(shown(20_000.0), "20k");
    }
}
