//! The elements of a request's output, and those of its inputs that each is made from.

use conch_backend_sdk as sdk;
use sdk::{element_count, shape_text};

use crate::operation::{Operation, Order};

/// A kernel numbers elements in 32 bits.
pub const ELEMENTS_MAX: usize = i32::MAX as usize;

/// Which element goes where: the output has `count` elements, in groups of `channels` times
/// `inner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub count: usize,
    /// Of an image: pixels; else how many elements in a row are of the same channel.
    pub inner: usize,
    pub channels: usize,
}

/// The elements and the shape of the output for an input of a shape, which has the batch dimension
/// if `is_batching`.
///
/// # Errors
/// What was expected of the shape, and got.
pub fn of(
    operation: &Operation,
    shape: &[i64],
    is_batching: bool,
) -> Result<(Geometry, Vec<i64>), String> {
    let count = element_count(shape).filter(|count| *count <= ELEMENTS_MAX);
    let count = count.ok_or_else(|| {
        format!(
            "expected at most {ELEMENTS_MAX} elements, got shape {}",
            shape_text(shape)
        )
    })?;
    let plain = Geometry {
        count,
        inner: 1,
        channels: 1,
    };
    match operation {
        Operation::Add | Operation::Multiply | Operation::Cast => Ok((plain, shape.to_vec())),
        Operation::Affine { axis: None, .. } => Ok((plain, shape.to_vec())),
        Operation::Affine {
            channels,
            axis: Some(axis),
        } => {
            let axis = axis + usize::from(is_batching);
            let expected = match channels.count() {
                1 => "any number of".to_owned(),
                count => count.to_string(),
            };
            let wrong = || {
                format!(
                    "expected {expected} channels in dimension {axis}, got shape {}",
                    shape_text(shape)
                )
            };
            let found = shape.get(axis).copied().ok_or_else(wrong)?;
            let found = usize::try_from(found).map_err(|_| wrong())?;
            if channels.count() > 1 && found != channels.count() {
                return Err(wrong());
            }
            let inner = element_count(shape.get(axis + 1..).unwrap_or_default());
            let geometry = Geometry {
                count,
                inner: inner.ok_or_else(wrong)?,
                channels: found,
            };
            Ok((geometry, shape.to_vec()))
        }
        Operation::Layout(order) => image(count, shape, is_batching, *order, None),
        Operation::NormalizeImage { channels } => {
            let wanted = (channels.count() > 1).then_some(channels.count());
            image(count, shape, is_batching, Order::ChannelsFirst, wanted)
        }
    }
}

/// Of an image: three dimensions, and those of batches before them.
fn image(
    count: usize,
    shape: &[i64],
    is_batching: bool,
    order: Order,
    wanted: Option<usize>,
) -> Result<(Geometry, Vec<i64>), String> {
    let lead = match (shape.len(), is_batching) {
        (3, false) => 0,
        (4, _) => 1,
        _ => {
            return Err(format!(
                "expected three dimensions of an image{}, got shape {}",
                if is_batching { " and the batch" } else { "" },
                shape_text(shape)
            ));
        }
    };
    let (batch, dims) = shape.split_at(lead);
    let [a, b, c] = dims else {
        return Err("expected three dimensions of an image".to_owned());
    };
    let (channels, pixels, turned) = match order {
        Order::ChannelsFirst => (*c, [*a, *b], [*c, *a, *b]),
        Order::ChannelsLast => (*a, [*b, *c], [*b, *c, *a]),
    };
    let number = |value: i64| usize::try_from(value).unwrap_or_default();
    if let Some(wanted) = wanted.filter(|wanted| *wanted != number(channels)) {
        return Err(format!(
            "expected {wanted} channels, got shape {}",
            shape_text(shape)
        ));
    }
    let geometry = Geometry {
        count,
        inner: element_count(&pixels).unwrap_or_default(),
        channels: number(channels),
    };
    Ok((geometry, [batch, &turned].concat()))
}

/// The element of the input that the element `index` of the output is made from, and its channel.
pub fn source(operation: &Operation, geometry: Geometry, index: usize) -> (usize, usize) {
    let Geometry {
        inner, channels, ..
    } = geometry;
    match operation {
        Operation::Affine { axis: Some(_), .. } => (index, index / inner % channels),
        Operation::Layout(Order::ChannelsFirst) | Operation::NormalizeImage { .. } => {
            let (plane, pixel) = (index / inner, index % inner);
            let (image, channel) = (plane / channels, plane % channels);
            ((image * inner + pixel) * channels + channel, channel)
        }
        Operation::Layout(Order::ChannelsLast) => {
            let (place, channel) = (index / channels, index % channels);
            let (image, pixel) = (place / inner, place % inner);
            ((image * channels + channel) * inner + pixel, channel)
        }
        _ => (index, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Channels;

    fn affine(count: usize, axis: Option<usize>) -> Operation {
        let channels = Channels {
            scale: vec![1.0; count],
            shift: vec![0.0; count],
        };
        Operation::Affine { channels, axis }
    }

    #[test]
    fn shapes_tell_the_groups() {
        let first = Operation::Layout(Order::ChannelsFirst);
        let last = Operation::Layout(Order::ChannelsLast);
        for (operation, shape, is_batching, expected) in [
            (
                &Operation::Add,
                &[2, 3][..],
                true,
                Some((6, 1, 1, &[2, 3][..])),
            ),
            (&Operation::Add, &[], false, Some((1, 1, 1, &[]))),
            (&Operation::Cast, &[0, 3], true, Some((0, 1, 1, &[0, 3]))),
            (
                &affine(3, Some(0)),
                &[2, 3, 4],
                true,
                Some((24, 4, 3, &[2, 3, 4])),
            ),
            (
                &affine(3, Some(0)),
                &[3, 4],
                false,
                Some((12, 4, 3, &[3, 4])),
            ),
            (&affine(3, Some(0)), &[2, 4, 4], true, None),
            (&affine(3, Some(2)), &[2, 3], true, None),
            (
                &affine(1, Some(0)),
                &[2, 7],
                true,
                Some((14, 1, 7, &[2, 7])),
            ),
            (&first, &[5, 6, 3], false, Some((90, 30, 3, &[3, 5, 6]))),
            (
                &first,
                &[2, 5, 6, 3],
                true,
                Some((180, 30, 3, &[2, 3, 5, 6])),
            ),
            (
                &first,
                &[2, 5, 6, 3],
                false,
                Some((180, 30, 3, &[2, 3, 5, 6])),
            ),
            (
                &last,
                &[2, 3, 5, 6],
                true,
                Some((180, 30, 3, &[2, 5, 6, 3])),
            ),
            (&first, &[5, 6, 3], true, None),
            (&first, &[5, 6], false, None),
            (&first, &[1 << 40, 1 << 40, 3], false, None),
            (&Operation::Add, &[1 << 31], false, None),
        ] {
            let found = of(operation, shape, is_batching);
            let found = found.as_ref().ok().map(|(geometry, shape)| {
                let Geometry {
                    count,
                    inner,
                    channels,
                } = *geometry;
                (count, inner, channels, &shape[..])
            });
            assert_eq!(found, expected, "{operation:?} {shape:?}");
        }
    }

    #[test]
    fn turning_twice_is_no_change() {
        let geometry = Geometry {
            count: 120,
            inner: 20,
            channels: 3,
        };
        let first = Operation::Layout(Order::ChannelsFirst);
        let last = Operation::Layout(Order::ChannelsLast);
        for index in 0..geometry.count {
            let (there, channel) = source(&first, geometry, index);
            assert_eq!(channel, there % 3);
            assert_eq!(source(&last, geometry, there), (index, channel));
        }
    }
}
