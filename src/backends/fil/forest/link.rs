//! Link functions: what becomes of the sums of a row's leaves.

/// From a row's sums to its answers. Names and definitions are those of Treelite's postprocessors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    Identity,
    /// The square, with the sign of the sum.
    SignedSquare,
    Hinge,
    /// Of the sum times this.
    Sigmoid(f64),
    Exponential,
    /// Two to the power of minus the sum by this.
    ExponentialStandardRatio(f64),
    LogarithmOnePlusExponential,
    Softmax,
}

impl Link {
    /// The link with Treelite's name, whose parameters are these.
    pub fn named(name: &str, sigmoid_alpha: f64, ratio: f64) -> Option<Link> {
        Some(match name {
            "identity" | "identity_multiclass" => Link::Identity,
            "signed_square" => Link::SignedSquare,
            "hinge" => Link::Hinge,
            "sigmoid" | "multiclass_ova" => Link::Sigmoid(sigmoid_alpha),
            "exponential" => Link::Exponential,
            "exponential_standard_ratio" => Link::ExponentialStandardRatio(ratio),
            "logarithm_one_plus_exp" => Link::LogarithmOnePlusExponential,
            "softmax" => Link::Softmax,
            _ => return None,
        })
    }

    /// Replaces the sums of one row by its answers.
    pub fn apply(self, row: &mut [f64]) {
        match self {
            Link::Identity => {}
            Link::Softmax => softmax(row),
            Link::SignedSquare => each(row, |value| value * value.abs()),
            Link::Hinge => each(row, |value| f64::from(u8::from(value > 0.0))),
            Link::Sigmoid(alpha) => each(row, |value| 1.0 / (1.0 + (-alpha * value).exp())),
            Link::Exponential => each(row, f64::exp),
            Link::ExponentialStandardRatio(ratio) => each(row, |value| (-value / ratio).exp2()),
            Link::LogarithmOnePlusExponential => each(row, |value| value.exp().ln_1p()),
        }
    }
}

fn each(row: &mut [f64], function: impl Fn(f64) -> f64) {
    for value in row {
        *value = function(*value);
    }
}

fn softmax(row: &mut [f64]) {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - largest).exp();
        sum += *value;
    }
    each(row, |value| value / sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links() {
        let e = std::f64::consts::E;
        for (link, row, expected) in [
            (Link::Identity, vec![2.0, -3.0], vec![2.0, -3.0]),
            (Link::SignedSquare, vec![2.0, -3.0], vec![4.0, -9.0]),
            (Link::Hinge, vec![0.5, 0.0, -1.0], vec![1.0, 0.0, 0.0]),
            (Link::Sigmoid(1.0), vec![0.0], vec![0.5]),
            (Link::Sigmoid(2.0), vec![0.5], vec![1.0 / (1.0 + 1.0 / e)]),
            (Link::Exponential, vec![1.0], vec![e]),
            (Link::ExponentialStandardRatio(2.0), vec![4.0], vec![0.25]),
            (
                Link::LogarithmOnePlusExponential,
                vec![0.0],
                vec![2f64.ln()],
            ),
            (Link::Softmax, vec![1000.0, 1000.0], vec![0.5, 0.5]),
            (Link::Softmax, vec![3f64.ln(), 0.0], vec![0.75, 0.25]),
        ] {
            let mut got = row.clone();
            link.apply(&mut got);
            for (got, expected) in got.iter().zip(&expected) {
                assert!((got - expected).abs() < 1e-12, "{link:?} {row:?}: {got}");
            }
        }
    }

    #[test]
    fn names() {
        assert_eq!(Link::named("sigmoid", 3.0, 0.0), Some(Link::Sigmoid(3.0)));
        assert_eq!(Link::named("max_index", 1.0, 1.0), None);
    }
}
