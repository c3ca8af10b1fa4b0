//! `summary_quantiles` of the metrics' configuration.

/// What summaries show unless told otherwise, as upstream.
pub(crate) const DEFAULT_QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// Reads `<quantile>:<error>,...`, and says what of it is of no use. Where nothing is of use, the
/// defaults stay. The error has to be a number and does nothing: ranks are exact.
pub fn parse_quantiles(text: &str) -> (Vec<f64>, Vec<String>) {
    let mut quantiles = Vec::new();
    let mut complaints = Vec::new();
    for pair in text.split(',') {
        let Some((quantile, error)) = pair.split_once(':') else {
            complaints.push(format!(
                "Invalid option: [{pair}]. No ':' delimiter found. Expected format is \
                 <quantile>:<error>"
            ));
            continue;
        };
        match (quantile.trim().parse::<f64>(), error.trim().parse::<f64>()) {
            (Ok(quantile), Ok(error)) if (0.0..=1.0).contains(&quantile) && error >= 0.0 => {
                quantiles.push(quantile);
            }
            _ => complaints.push(format!(
                "Invalid option: [{pair}]. Error: a quantile is from 0 to 1, its error a number"
            )),
        }
    }
    if quantiles.is_empty() {
        quantiles.extend(DEFAULT_QUANTILES);
    }
    (quantiles, complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_others_are_told() {
        let table: [(&str, &[f64], usize); 7] = [
            ("0.5:0.05,0.99:0.001", &[0.5, 0.99], 0),
            (" 1 : 0 ", &[1.0], 0),
            ("0.5:0.05,x:1,0.9", &[0.5], 2),
            ("", &DEFAULT_QUANTILES, 1),
            ("2:0.1,-0.1:1,nan:0", &DEFAULT_QUANTILES, 3),
            ("0.5:x", &DEFAULT_QUANTILES, 1),
            ("0.5:-1", &DEFAULT_QUANTILES, 1),
        ];
        for (text, expected, complaint_count) in table {
            let (quantiles, complaints) = parse_quantiles(text);
            assert_eq!(
                (&*quantiles, complaints.len()),
                (expected, complaint_count),
                "{text}"
            );
        }
    }
}
