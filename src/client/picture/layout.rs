//! From an image to the tensor that a model wants.

use conch_config::DataType;

use super::Picture;
use crate::options::{PixelLayout, PixelScaling};
use crate::tensor::shape::shown;
use crate::tensor::{WireTensor, elements};

/// The image as a model wants it whose input has this type and shape: a batch of one, in the size
/// of the shape, or in its own where that is open.
///
/// # Errors
/// No image is of such a shape or type.
pub(crate) fn tensor(
    picture: Picture,
    data_type: DataType,
    wanted: &[i64],
    layout: Option<PixelLayout>,
    scaling: PixelScaling,
) -> Result<WireTensor, String> {
    let place = Place::of(wanted, layout).ok_or_else(|| {
        format!(
            "no image is of shape {}: it has height, width and 1 or 3 channels{}",
            shown(wanted),
            match layout {
                None => "; --layout says which is which if they are open",
                Some(_) => " in the order of --layout",
            }
        )
    })?;
    if data_type == DataType::Uint8 && scaling != PixelScaling::None {
        return Err(String::from("pixels of UINT8 are not scaled"));
    }
    let is_float = matches!(
        data_type,
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64
    );
    if !is_float && data_type != DataType::Uint8 {
        return Err(format!("no image is of type {}", data_type.name()));
    }
    let channels = match place.channels {
        Some(channels) => channels,
        None => picture.channels,
    };
    let picture = picture.with_channels(channels);
    let height = place.height.unwrap_or(picture.height);
    let width = place.width.unwrap_or(picture.width);
    if height
        .checked_mul(width)
        .is_none_or(|count| count > super::PIXELS_MAX)
    {
        return Err(format!(
            "an image of {width} x {height} pixels is too large"
        ));
    }
    let values = picture.resized(width, height);
    let mut bytes = Vec::new();
    let mut push = |index: usize, channel: usize| {
        let value = values.get(index).copied().unwrap_or(0.0);
        match is_float {
            true => elements::push_float(&mut bytes, scaled(value, channel, scaling), data_type),
            false => bytes.push((value + 0.5) as u8),
        }
    };
    match place.layout {
        PixelLayout::Nhwc => {
            (0..values.len()).for_each(|index| push(index, index % channels));
        }
        PixelLayout::Nchw => {
            for channel in 0..channels {
                let plane = (channel..values.len()).step_by(channels);
                plane.for_each(|index| push(index, channel));
            }
        }
    }
    let sizes = match place.layout {
        PixelLayout::Nchw => [channels, height, width],
        PixelLayout::Nhwc => [height, width, channels],
    };
    let batch = (wanted.len() == 4).then_some(1);
    let sizes = sizes.map(|size| i64::try_from(size).unwrap_or(i64::MAX));
    Ok(WireTensor {
        data_type,
        shape: batch.into_iter().chain(sizes).collect(),
        bytes,
    })
}

/// Where an image lies in a shape, and which of its sizes are given.
struct Place {
    layout: PixelLayout,
    channels: Option<usize>,
    height: Option<usize>,
    width: Option<usize>,
}

impl Place {
    fn of(wanted: &[i64], layout: Option<PixelLayout>) -> Option<Place> {
        let sizes: [i64; 3] = match wanted {
            [-1 | 1, sizes @ ..] if wanted.len() == 4 => sizes.try_into().ok()?,
            sizes => sizes.try_into().ok()?,
        };
        let [first, second, third] = sizes;
        let layout = match layout {
            Some(layout) => layout,
            None if matches!(first, 1 | 3) => PixelLayout::Nchw,
            None if matches!(third, 1 | 3) => PixelLayout::Nhwc,
            None => return None,
        };
        let [channels, height, width] = match layout {
            PixelLayout::Nchw => [first, second, third],
            PixelLayout::Nhwc => [third, first, second],
        };
        let size = |dim: i64| match dim {
            -1 => Some(None),
            dim => usize::try_from(dim).ok().filter(|dim| *dim > 0).map(Some),
        };
        matches!(channels, -1 | 1 | 3).then_some(())?;
        Some(Place {
            layout,
            channels: size(channels)?,
            height: size(height)?,
            width: size(width)?,
        })
    }
}

/// `value` is of 0 to 255.
fn scaled(value: f32, channel: usize, scaling: PixelScaling) -> f64 {
    let value = f64::from(value);
    let of_channel = |values: [f64; 3]| values.get(channel).copied().unwrap_or_default();
    match scaling {
        PixelScaling::None => value,
        PixelScaling::Unit => value / 255.0,
        PixelScaling::Inception => value / 127.5 - 1.0,
        PixelScaling::Vgg => value - of_channel([123.0, 117.0, 104.0]),
        PixelScaling::Imagenet => {
            let mean = of_channel([0.485, 0.456, 0.406]);
            (value / 255.0 - mean) / of_channel([0.229, 0.224, 0.225])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::elements::{Element, Elements};

    /// Two pixels, one above the other.
    fn picture() -> Picture {
        Picture {
            width: 1,
            height: 2,
            channels: 3,
            pixels: vec![0, 51, 102, 153, 204, 255],
        }
    }

    fn made(
        data_type: DataType,
        wanted: &[i64],
        layout: Option<PixelLayout>,
        scaling: PixelScaling,
    ) -> Result<(Vec<i64>, Vec<f64>), String> {
        let tensor = tensor(picture(), data_type, wanted, layout, scaling)?;
        let elements = Elements::new(data_type, &tensor.bytes);
        let numbers = elements.filter_map(Element::number);
        // Four digits: what the sums of binary fractions leave behind.
        let numbers = numbers.map(|number| (number * 1e4).round() / 1e4);
        Ok((tensor.shape, numbers.collect()))
    }

    #[test]
    fn images_are_laid_out_as_the_model_wants_them() {
        let planes = vec![0.0, 153.0, 51.0, 204.0, 102.0, 255.0];
        let pixels = vec![0.0, 51.0, 102.0, 153.0, 204.0, 255.0];
        let nhwc = Some(PixelLayout::Nhwc);
        for (data_type, wanted, layout, scaling, shape, numbers) in [
            (
                DataType::Fp32,
                &[-1, 3, 2, 1][..],
                None,
                PixelScaling::None,
                &[1, 3, 2, 1][..],
                planes.clone(),
            ),
            (
                DataType::Uint8,
                &[3, -1, -1],
                None,
                PixelScaling::None,
                &[3, 2, 1],
                planes,
            ),
            (
                DataType::Uint8,
                &[1, 2, 1, 3],
                None,
                PixelScaling::None,
                &[1, 2, 1, 3],
                pixels.clone(),
            ),
            (
                DataType::Fp16,
                &[-1, -1, -1, -1],
                nhwc,
                PixelScaling::None,
                &[1, 2, 1, 3],
                pixels.clone(),
            ),
            (
                DataType::Fp64,
                &[2, 1, 3],
                None,
                PixelScaling::Unit,
                &[2, 1, 3],
                vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            ),
            (
                DataType::Fp32,
                &[2, 1, 3],
                None,
                PixelScaling::Inception,
                &[2, 1, 3],
                vec![-1.0, -0.6, -0.2, 0.2, 0.6, 1.0],
            ),
            (
                DataType::Fp32,
                &[2, 1, 3],
                None,
                PixelScaling::Vgg,
                &[2, 1, 3],
                vec![-123.0, -66.0, -2.0, 30.0, 87.0, 151.0],
            ),
            (
                DataType::Fp64,
                &[1, 1, 3],
                None,
                PixelScaling::None,
                &[1, 1, 3],
                vec![76.5, 127.5, 178.5],
            ),
        ] {
            // A first size of 1 is a channel, unless the layout is given.
            let layout = layout.or((wanted == [1, 1, 3]).then_some(PixelLayout::Nhwc));
            let (made_shape, made_numbers) = made(data_type, wanted, layout, scaling).unwrap();
            assert_eq!((&*made_shape, made_numbers), (shape, numbers), "{wanted:?}");
        }
        let (_, numbers) = made(DataType::Fp64, &[2, 1, 3], None, PixelScaling::Imagenet).unwrap();
        assert_eq!(numbers[0], -2.1179);
        let (shape, grey) = made(DataType::Uint8, &[1, 2, 1], None, PixelScaling::None).unwrap();
        assert_eq!((shape, grey), (vec![1, 2, 1], vec![42.0, 195.0]));
    }

    #[test]
    fn tensors_that_hold_no_image_are_refused() {
        let nchw = Some(PixelLayout::Nchw);
        for (data_type, wanted, layout, scaling, expected) in [
            (
                DataType::Fp32,
                &[-1, 4][..],
                None,
                PixelScaling::None,
                "--layout says",
            ),
            (
                DataType::Fp32,
                &[-1, -1, -1],
                None,
                PixelScaling::None,
                "--layout says",
            ),
            (
                DataType::Fp32,
                &[4, 2, 2],
                nchw,
                PixelScaling::None,
                "order of --layout",
            ),
            (
                DataType::Fp32,
                &[2, 3, 2, 2],
                None,
                PixelScaling::None,
                "no image is of shape",
            ),
            (
                DataType::Fp32,
                &[3, 0, 2],
                None,
                PixelScaling::None,
                "no image is of shape",
            ),
            (
                DataType::Int32,
                &[3, 2, 2],
                None,
                PixelScaling::None,
                "no image is of type INT32",
            ),
            (
                DataType::Uint8,
                &[3, 2, 2],
                None,
                PixelScaling::Unit,
                "are not scaled",
            ),
            (
                DataType::Uint8,
                &[3, 1 << 30, 2],
                None,
                PixelScaling::None,
                "too large",
            ),
        ] {
            let error = made(data_type, wanted, layout, scaling).unwrap_err();
            assert!(error.contains(expected), "{wanted:?}: {error}");
        }
    }
}
