//! Images as inputs of models: PNG and JPEG, of any size, become what the model wants.

mod layout;
mod resize;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_png::PngDecoder;

pub(crate) use layout::tensor;

/// An image of one or three channels of bytes, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) channels: usize,
    pub(crate) pixels: Vec<u8>,
}

impl Picture {
    /// Reads a file, whose first bytes say what it is.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn decode(file: &[u8]) -> Result<Picture, String> {
        if file.starts_with(b"\x89PNG") {
            decode_png(file)
        } else if file.starts_with(&[0xff, 0xd8]) {
            decode_jpeg(file)
        } else {
            Err(String::from("it is no image in PNG or JPEG"))
        }
    }

    /// The same image with one channel, or with three.
    pub(crate) fn with_channels(self, channels: usize) -> Picture {
        let pixels = match (self.channels, channels) {
            (3, 1) => {
                let grey = |pixel: &[u8]| match pixel {
                    // The weights of BT.601, as most programs have them.
                    [red, green, blue] => {
                        let sum = 299 * u32::from(*red) + 587 * u32::from(*green);
                        ((sum + 114 * u32::from(*blue) + 500) / 1000) as u8
                    }
                    _ => 0,
                };
                self.pixels.chunks_exact(3).map(grey).collect()
            }
            (1, 3) => self.pixels.iter().flat_map(|grey| [*grey; 3]).collect(),
            _ => return self,
        };
        Picture {
            channels,
            pixels,
            ..self
        }
    }
}

fn decode_png(file: &[u8]) -> Result<Picture, String> {
    let bad = |cause: &dyn std::fmt::Debug| format!("it is no image: {cause:?}");
    let options = DecoderOptions::default()
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .png_set_strip_to_8bit(true);
    let mut decoder = PngDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|cause| bad(&cause))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| bad(&"no head"))?;
    check_size(width, height)?;
    let pixels = decoder.decode_raw().map_err(|cause| bad(&cause))?;
    // What shines through is not a model's business.
    let (channels, pixels) = match decoder.colorspace() {
        Some(ColorSpace::Luma) => (1, pixels),
        Some(ColorSpace::RGB) => (3, pixels),
        Some(ColorSpace::LumaA) => (1, without_alpha(&pixels, 1)),
        Some(ColorSpace::RGBA) => (3, without_alpha(&pixels, 3)),
        other => return Err(bad(&other)),
    };
    if pixels.len() != width * height * channels {
        return Err(String::from("its colours cannot be read"));
    }
    Ok(Picture {
        width,
        height,
        channels,
        pixels,
    })
}

fn without_alpha(pixels: &[u8], channels: usize) -> Vec<u8> {
    let opaque = pixels.chunks_exact(channels + 1);
    let opaque = opaque.filter_map(|pixel| pixel.get(..channels));
    opaque.flatten().copied().collect()
}

fn decode_jpeg(file: &[u8]) -> Result<Picture, String> {
    let options = DecoderOptions::default()
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let bad = |cause: &dyn std::fmt::Debug| format!("it is no image: {cause:?}");
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|cause| bad(&cause))?;
    let info = decoder.info().ok_or_else(|| bad(&"no head"))?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_size(width, height)?;
    let pixels = decoder.decode().map_err(|cause| bad(&cause))?;
    if pixels.len() != width * height * 3 {
        return Err(String::from("its colours cannot be read"));
    }
    Ok(Picture {
        width,
        height,
        channels: 3,
        pixels,
    })
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    let count = width.checked_mul(height).filter(|count| *count > 0);
    match count.is_some_and(|count| count <= PIXELS_MAX) {
        true => Ok(()),
        false => Err(format!(
            "an image of {width} x {height} pixels is not read here"
        )),
    }
}

/// A side of an image, as long as JPEG can have it.
const SIDE_MAX: usize = 65_535;
/// Far more than any camera, and 800 MB as numbers of three channels.
const PIXELS_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with what is not compressed at all. Colour types: 0 grey, 2 RGB, 4 and 6 with alpha.
    fn png(width: u32, height: u32, color: u8, pixels: &[u8]) -> Vec<u8> {
        let row_bytes = pixels.len() / height as usize;
        let rows = pixels.chunks(row_bytes);
        let raw: Vec<u8> = rows.flat_map(|row| [&[0], row].concat()).collect();
        let length = u16::try_from(raw.len()).unwrap();
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in &raw {
            low = (low + u32::from(*byte)) % 65_521;
            high = (high + low) % 65_521;
        }
        let lengths = [length.to_le_bytes(), (!length).to_le_bytes()].concat();
        let sum = (high << 16 | low).to_be_bytes();
        let data = [&[0x78, 0x01, 1], &*lengths, &*raw, &sum].concat();
        let sizes = [width.to_be_bytes(), height.to_be_bytes()].concat();
        let head = [&*sizes, &[8, color, 0, 0, 0]].concat();
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        for (kind, content) in [(b"IHDR", head), (b"IDAT", data), (b"IEND", Vec::new())] {
            file.extend_from_slice(&(content.len() as u32).to_be_bytes());
            let summed = [&kind[..], &content].concat();
            file.extend_from_slice(&summed);
            file.extend_from_slice(&crc(&summed).to_be_bytes());
        }
        file
    }

    fn crc(bytes: &[u8]) -> u32 {
        let step = |crc: u32| match crc & 1 {
            1 => crc >> 1 ^ 0xedb8_8320,
            _ => crc >> 1,
        };
        let sum = bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc))
        });
        !sum
    }

    #[test]
    fn images_have_one_channel_or_three() {
        for (color, pixels, channels, expected) in [
            (0, &[1, 2][..], 1, &[1, 2][..]),
            (4, &[1, 9, 2, 9], 1, &[1, 2]),
            (2, &[1, 2, 3, 4, 5, 6], 3, &[1, 2, 3, 4, 5, 6]),
            (6, &[1, 2, 3, 9, 4, 5, 6, 9], 3, &[1, 2, 3, 4, 5, 6]),
        ] {
            let picture = Picture::decode(&png(2, 1, color, pixels)).unwrap();
            assert_eq!((picture.width, picture.height), (2, 1));
            assert_eq!((picture.channels, &*picture.pixels), (channels, expected));
        }
        let grey = Picture::decode(&png(1, 1, 0, &[7])).unwrap();
        assert_eq!(grey.clone().with_channels(3).pixels, [7, 7, 7]);
        assert_eq!(grey.with_channels(3).with_channels(1).pixels, [7]);
    }

    #[test]
    fn files_that_are_no_images_are_refused() {
        let good = png(4, 4, 0, &[7; 16]);
        // The last pixel, and all before it.
        for cut in 0..good.len() - 20 {
            assert!(Picture::decode(&good[..cut]).is_err(), "{cut}");
        }
        for file in [
            &b""[..],
            b"GIF89a",
            b"\xff\xd8",
            b"\xff\xd8\xff\xe0\0\x10JFIF",
        ] {
            assert!(Picture::decode(file).is_err());
        }
    }
}
