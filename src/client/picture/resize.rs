//! Another size: each pixel is the mean of those that it covers, by a triangle as wide as two of
//! the new pixels (bilinear; smooth where the image becomes smaller). Once along rows, once along
//! columns.

use super::Picture;

impl Picture {
    /// The values of the image in another size, row by row, each from 0 to 255.
    pub(super) fn resized(&self, width: usize, height: usize) -> Vec<f32> {
        let values: Vec<f32> = self.pixels.iter().map(|byte| f32::from(*byte)).collect();
        let channels = self.channels;
        let wide = match width == self.width {
            true => values,
            false => {
                let mut wide = Vec::with_capacity(width * self.height * channels);
                let weights = weights(self.width, width);
                for row in values.chunks_exact(self.width * channels) {
                    for sources in &weights {
                        push_mean(
                            &mut wide,
                            sources,
                            channels,
                            |source| source * channels,
                            row,
                        );
                    }
                }
                wide
            }
        };
        if height == self.height {
            return wide;
        }
        let mut resized = Vec::with_capacity(width * height * channels);
        let row_values = width * channels;
        for sources in weights(self.height, height) {
            push_mean(
                &mut resized,
                &sources,
                row_values,
                |source| source * row_values,
                &wide,
            );
        }
        resized
    }
}

/// Appends `count` values: each the sum of those at the sources, by their weights.
fn push_mean(
    target: &mut Vec<f32>,
    sources: &[(usize, f32)],
    count: usize,
    place: impl Fn(usize) -> usize,
    values: &[f32],
) {
    let start = target.len();
    target.resize(start + count, 0.0);
    for (source, weight) in sources {
        let from = place(*source);
        let values = values.get(from..from + count).unwrap_or_default();
        let sums = target.get_mut(start..).unwrap_or_default();
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += weight * value;
        }
    }
}

/// For each place along a side of `target`, the places along one of `source` that it is made of.
fn weights(source: usize, target: usize) -> Vec<Vec<(usize, f32)>> {
    let scale = source as f64 / target as f64;
    // An image that grows has each pixel from its two neighbours.
    let support = scale.max(1.0);
    let of_place = |place: usize| {
        let center = (place as f64 + 0.5) * scale;
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(source);
        let weight = |source: usize| 1.0 - ((source as f64 + 0.5 - center) / support).abs();
        let near = (first..end).map(|source| (source, weight(source).max(0.0)));
        let near: Vec<(usize, f64)> = near.collect();
        let sum: f64 = near.iter().map(|(_, weight)| weight).sum();
        let near = near.into_iter();
        near.map(|(source, weight)| (source, (weight / sum) as f32))
            .collect()
    };
    (0..target).map(of_place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(size: (usize, usize), pixels: &[u8], to: (usize, usize)) -> Vec<f32> {
        let picture = Picture {
            width: size.0,
            height: size.1,
            channels: pixels.len() / (size.0 * size.1),
            pixels: pixels.to_vec(),
        };
        picture.resized(to.0, to.1)
    }

    #[test]
    fn images_grow_and_shrink() {
        // As other programs have it, to the last digit that a byte can hold.
        for (size, pixels, to, expected) in [
            ((2, 1), &[0, 100][..], (2, 1), &[0.0, 100.0][..]),
            ((2, 1), &[0, 100], (1, 1), &[50.0]),
            ((1, 2), &[0, 100], (1, 1), &[50.0]),
            ((1, 1), &[7], (2, 2), &[7.0, 7.0, 7.0, 7.0]),
            ((2, 1), &[0, 100], (4, 1), &[0.0, 25.0, 75.0, 100.0]),
            ((1, 1), &[1, 2, 3], (2, 1), &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]),
        ] {
            let values = resized(size, pixels, to);
            assert_eq!(values.len(), expected.len());
            for (value, expected) in values.iter().zip(expected) {
                assert!((value - expected).abs() < 0.001, "{values:?} {expected:?}");
            }
        }
    }

    #[test]
    fn a_colour_stays_what_it_is() {
        for to in [(1, 1), (3, 5), (13, 2), (40, 40)] {
            for value in resized((13, 11), &[200; 13 * 11 * 3], to) {
                assert!((value - 200.0).abs() < 0.01, "{to:?} {value}");
            }
        }
    }
}
