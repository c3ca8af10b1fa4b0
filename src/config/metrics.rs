//! `model_metrics`: what a configuration says of the model's own metrics.

use conch_proto::inference::ModelConfig;
use conch_proto::inference::model_metrics::MetricControl;
use conch_proto::inference::model_metrics::metric_control::MetricOptions;

use crate::ConfigError;

/// The one family whose buckets a configuration may choose.
pub const FIRST_RESPONSE_FAMILY: &str = "nv_inference_first_response_histogram_ms";

/// The buckets of that family, in ms, if they are chosen. Where they are more than once, the last
/// choice counts.
pub fn first_response_buckets(config: &ModelConfig) -> Option<&[f64]> {
    let wanted = controls(config).filter(|control| family(control) == FIRST_RESPONSE_FAMILY);
    wanted
        .filter_map(|control| {
            let MetricOptions::HistogramOptions(options) = control.metric_options.as_ref()?;
            Some(&*options.buckets)
        })
        .last()
}

/// The families that it has options of and that have none.
pub fn fixed_families(config: &ModelConfig) -> impl Iterator<Item = &str> {
    controls(config)
        .map(family)
        .filter(|family| *family != FIRST_RESPONSE_FAMILY)
}

/// Whether a histogram can have the buckets that are chosen. Only of interest where there is one.
///
/// # Errors
/// INVALID_ARG for buckets that are not in strictly increasing order.
pub fn validate_first_response_buckets(config: &ModelConfig) -> Result<(), ConfigError> {
    let buckets = first_response_buckets(config).unwrap_or(&[]);
    let increase = |pair: &[f64]| matches!(pair, [low, high] if low < high);
    let is_number = buckets.iter().all(|bucket| !bucket.is_nan());
    if is_number && buckets.windows(2).all(increase) {
        return Ok(());
    }
    Err(ConfigError::invalid(format!(
        "'buckets' of metric family '{FIRST_RESPONSE_FAMILY}' must be in strictly increasing order"
    )))
}

fn controls(config: &ModelConfig) -> impl Iterator<Item = &MetricControl> {
    let metrics = config.model_metrics.iter();
    metrics.flat_map(|metrics| &metrics.metric_control)
}

fn family(control: &MetricControl) -> &str {
    let identifier = control.metric_identifier.as_ref();
    identifier.map_or("", |identifier| &identifier.family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_choice_of_buckets_counts() {
        let control = |family: &str, buckets: &str| {
            format!(
                "metric_control {{ metric_identifier {{ family: '{family}' }} \
                 histogram_options {{ buckets: [ {buckets} ] }} }}"
            )
        };
        let first = |buckets| control(FIRST_RESPONSE_FAMILY, buckets);
        // Controls; the buckets, the families without options, and whether they are valid.
        type BucketCase<'a> = (&'a [String], Option<&'a [f64]>, &'a [&'a str], bool);
        let table: [BucketCase<'_>; 6] = [
            (&[], None, &[], true),
            (&[first("1, 2.5")], Some(&[1.0, 2.5]), &[], true),
            (
                &[first("1"), control("f", "3"), first("2")],
                Some(&[2.0]),
                &["f"],
                true,
            ),
            (&[control("f", "3, 1")], None, &["f"], true),
            (&[first("1, 1")], Some(&[1.0, 1.0]), &[], false),
            (&[first("2, 1")], Some(&[2.0, 1.0]), &[], false),
        ];
        for (controls, buckets, fixed, is_valid) in table {
            let text = format!("model_metrics {{ {} }}", controls.join(" "));
            let config = crate::parse_text("config.pbtxt", &text).unwrap();
            assert_eq!(first_response_buckets(&config), buckets, "{text}");
            assert_eq!(fixed_families(&config).collect::<Vec<_>>(), fixed, "{text}");
            assert_eq!(
                validate_first_response_buckets(&config).is_ok(),
                is_valid,
                "{text}"
            );
        }
        let text = format!("model_metrics {{ {} }}", first("nan"));
        let config = crate::parse_text("config.pbtxt", &text).unwrap();
        assert!(validate_first_response_buckets(&config).is_err());
    }
}
