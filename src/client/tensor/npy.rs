//! Files of NumPy, `.npy`: versions 1 to 3 are read, 1 is written.

use conch_config::DataType;
use half::bf16;

use super::elements::{self, Element, Elements};
use super::shape::element_count;
use super::{TENSOR_BYTES_MAX, WireTensor};

/// The tensor of a file.
///
/// # Errors
/// What is wrong with the file, or not read here.
pub(crate) fn read(file: &[u8]) -> Result<WireTensor, String> {
    let cut = || String::from("the file is cut short within its head");
    let after = file
        .strip_prefix(MAGIC)
        .ok_or_else(|| String::from("it is no .npy file"))?;
    let ([major, _minor], after) = after.split_first_chunk().ok_or_else(cut)?;
    let (length, after) = match major {
        1 => {
            let (length, after) = after.split_first_chunk().ok_or_else(cut)?;
            (usize::from(u16::from_le_bytes(*length)), after)
        }
        2 | 3 => {
            let (length, after) = after.split_first_chunk().ok_or_else(cut)?;
            let length = usize::try_from(u32::from_le_bytes(*length));
            (length.map_err(|_| cut())?, after)
        }
        other => return Err(format!("version {other} of .npy is not read here")),
    };
    let (head, values) = after.split_at_checked(length).ok_or_else(cut)?;
    let head = std::str::from_utf8(head).map_err(|_| String::from("its head is not in UTF-8"))?;
    let head = Head::parse(head)?;
    let kind = ElementKind::parse(&head.descr)?;
    let count = element_count(&head.shape)
        .filter(|count| {
            let bytes = count.checked_mul(kind.size.max(4) as u64);
            bytes.is_some_and(|bytes| bytes <= TENSOR_BYTES_MAX)
        })
        .ok_or_else(|| String::from("its array is too large"))?;
    let expected = count * kind.size as u64;
    if values.len() as u64 != expected {
        return Err(format!(
            "its array has {expected} bytes by its head, and {} are there",
            values.len()
        ));
    }
    let mut bytes = Vec::with_capacity(values.len());
    if kind.size == 0 {
        // Texts of which none has a character.
        (0..count).try_for_each(|_| kind.push(&mut bytes, &[]))?;
    } else if head.is_fortran && head.shape.len() > 1 {
        for index in fortran_order(&head.shape) {
            let at = index * kind.size;
            let element = values.get(at..at + kind.size).unwrap_or_default();
            kind.push(&mut bytes, element)?;
        }
    } else {
        let mut elements = values.chunks_exact(kind.size);
        elements.try_for_each(|element| kind.push(&mut bytes, element))?;
    }
    Ok(WireTensor {
        data_type: kind.data_type,
        shape: head.shape,
        bytes,
    })
}

/// A file with `tensor`. NumPy has no BF16, which becomes float32, and no texts of any length:
/// BYTES are padded with zeros to the longest.
///
/// # Errors
/// An element of BYTES that ends with a zero would lose it.
pub(crate) fn write(tensor: &WireTensor) -> Result<Vec<u8>, String> {
    let elements = || Elements::new(tensor.data_type, &tensor.bytes);
    let (descr, values) = match tensor.data_type {
        DataType::Bytes => {
            let texts = elements().filter_map(|element| match element {
                Element::Bytes(text) => Some(text),
                _ => None,
            });
            let texts: Vec<&[u8]> = texts.collect();
            if texts.iter().any(|text| text.ends_with(&[0])) {
                return Err(String::from(
                    "an element of BYTES ends with a zero, which .npy does not keep",
                ));
            }
            let width = texts
                .iter()
                .map(|text| text.len())
                .max()
                .unwrap_or(0)
                .max(1);
            let size = (width as u64).checked_mul(texts.len() as u64);
            if size.is_none_or(|size| size > TENSOR_BYTES_MAX) {
                return Err(String::from(
                    "its texts, padded to the longest, are too large",
                ));
            }
            let mut values = Vec::with_capacity(width * texts.len());
            for text in &texts {
                values.extend_from_slice(text);
                values.resize(values.len() + width - text.len(), 0);
            }
            (format!("|S{width}"), values)
        }
        DataType::Bf16 => {
            let values = elements().filter_map(Element::number);
            let values = values.flat_map(|value| (value as f32).to_le_bytes());
            (String::from("<f4"), values.collect())
        }
        data_type => (String::from(descr(data_type)), tensor.bytes.clone()),
    };
    let sizes: String = tensor.shape.iter().map(|dim| format!("{dim}, ")).collect();
    let sizes = match tensor.shape.len() {
        1 => sizes.trim_end(),
        _ => sizes.trim_end_matches(", "),
    };
    let head = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // The array begins at a multiple of 64, behind a line's end.
    let prefix = MAGIC.len() + 4;
    let padded = (prefix + head.len() + 1).next_multiple_of(64) - prefix;
    let length = u16::try_from(padded).map_err(|_| String::from("it has too many dimensions"))?;
    let mut file = [MAGIC, &[1, 0], &length.to_le_bytes()].concat();
    file.extend_from_slice(head.as_bytes());
    file.resize(prefix + padded - 1, b' ');
    file.push(b'\n');
    file.extend_from_slice(&values);
    Ok(file)
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// What NumPy calls the types that it has and that are one here.
fn descr(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Bool => "|b1",
        DataType::Uint8 => "|u1",
        DataType::Uint16 => "<u2",
        DataType::Uint32 => "<u4",
        DataType::Uint64 => "<u8",
        DataType::Int8 => "|i1",
        DataType::Int16 => "<i2",
        DataType::Int32 => "<i4",
        DataType::Int64 => "<i8",
        DataType::Fp16 => "<f2",
        DataType::Fp32 | DataType::Bf16 => "<f4",
        DataType::Fp64 => "<f8",
        DataType::Bytes => "|S1",
    }
}

/// The places of elements in a file that has the first dimension innermost, in the order of one
/// that has the last innermost.
fn fortran_order(shape: &[i64]) -> impl Iterator<Item = usize> {
    let sizes: Vec<usize> = shape
        .iter()
        .map(|dim| usize::try_from(*dim).unwrap_or(0))
        .collect();
    let count: usize = sizes.iter().product();
    (0..count).map(move |index| {
        let (mut rest, mut block, mut at) = (index, count, 0);
        let mut stride = 1;
        for size in &sizes {
            block /= size;
            at += rest / block * stride;
            rest %= block;
            stride *= size;
        }
        at
    })
}

/// How a file has its elements.
struct ElementKind {
    data_type: DataType,
    size: usize,
    is_big_endian: bool,
    /// Characters of four bytes in place of bytes.
    is_unicode: bool,
}

impl ElementKind {
    fn parse(descr: &str) -> Result<ElementKind, String> {
        let bad = || {
            format!("its elements are of type '{descr}', for which there is no type on the wire")
        };
        let order = descr.chars().next().ok_or_else(bad)?;
        let is_big_endian = match order {
            '<' | '|' | '=' => false,
            '>' => true,
            _ => return Err(bad()),
        };
        let kind = descr.get(1..).ok_or_else(bad)?;
        let is_known = |data_type: &DataType| {
            let known = self::descr(*data_type);
            !matches!(data_type, DataType::Bytes | DataType::Bf16) && known.get(1..) == Some(kind)
        };
        if let Some(data_type) = DataType::ALL.into_iter().find(is_known) {
            return Ok(ElementKind {
                data_type,
                size: data_type.element_bytes().ok_or_else(bad)?,
                is_big_endian,
                is_unicode: false,
            });
        }
        let (letter, length) = kind.split_at_checked(1).ok_or_else(bad)?;
        let character_bytes = match letter {
            "S" => 1,
            "U" => 4_usize,
            _ => return Err(bad()),
        };
        let length: usize = length.parse().map_err(|_| bad())?;
        Ok(ElementKind {
            data_type: DataType::Bytes,
            size: length.checked_mul(character_bytes).ok_or_else(bad)?,
            is_big_endian,
            is_unicode: letter == "U",
        })
    }

    /// Appends an element as it is on the wire.
    fn push(&self, bytes: &mut Vec<u8>, element: &[u8]) -> Result<(), String> {
        if self.data_type != DataType::Bytes {
            match self.is_big_endian {
                true => bytes.extend(element.iter().rev()),
                false => bytes.extend_from_slice(element),
            }
            return Ok(());
        }
        if !self.is_unicode {
            let end = element.iter().rposition(|byte| *byte != 0);
            let text = element.get(..end.map_or(0, |end| end + 1));
            return elements::push_bytes(bytes, text.unwrap_or_default());
        }
        let mut text = String::new();
        for character in element.chunks_exact(4) {
            let quad = <[u8; 4]>::try_from(character).unwrap_or_default();
            let number = match self.is_big_endian {
                true => u32::from_be_bytes(quad),
                false => u32::from_le_bytes(quad),
            };
            let character = char::from_u32(number)
                .ok_or_else(|| format!("{number:#x} is no character of Unicode"))?;
            text.push(character);
        }
        elements::push_bytes(bytes, text.trim_end_matches('\0').as_bytes())
    }
}

/// The head of a file: a dictionary as Python writes it.
struct Head {
    descr: String,
    is_fortran: bool,
    shape: Vec<i64>,
}

impl Head {
    fn parse(text: &str) -> Result<Head, String> {
        let bad = || format!("its head cannot be read: {}", text.trim().escape_debug());
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        let mut rest = text.trim().strip_prefix('{').ok_or_else(bad)?.trim_start();
        while !rest.starts_with('}') {
            let (key, after) = quoted(rest).ok_or_else(bad)?;
            let after = after.trim_start().strip_prefix(':').ok_or_else(bad)?;
            let after = after.trim_start();
            rest = match key {
                "descr" => {
                    if after.starts_with('[') {
                        return Err(String::from("its elements are records, not numbers"));
                    }
                    let (value, after) = quoted(after).ok_or_else(bad)?;
                    descr = Some(String::from(value));
                    after
                }
                "fortran_order" => match after.strip_prefix("True") {
                    Some(after) => {
                        is_fortran = Some(true);
                        after
                    }
                    None => {
                        is_fortran = Some(false);
                        after.strip_prefix("False").ok_or_else(bad)?
                    }
                },
                "shape" => {
                    let inner = after.strip_prefix('(').ok_or_else(bad)?;
                    let (inner, after) = inner.split_once(')').ok_or_else(bad)?;
                    shape = Some(sizes(inner).ok_or_else(bad)?);
                    after
                }
                _ => return Err(bad()),
            };
            rest = rest.trim_start();
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.starts_with('}') => rest,
                None => return Err(bad()),
            };
        }
        Ok(Head {
            descr: descr.ok_or_else(bad)?,
            is_fortran: is_fortran.ok_or_else(bad)?,
            shape: shape.ok_or_else(bad)?,
        })
    }
}

/// What stands between two quotes, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|sign| "'\"".contains(*sign))?;
    text.get(1..)?.split_once(quote)
}

/// Old files have an `L` behind each number.
fn sizes(text: &str) -> Option<Vec<i64>> {
    let words = text.split(',').map(str::trim);
    let words = words.filter(|word| !word.is_empty());
    let parse = |word: &str| word.trim_end_matches('L').parse::<u32>().ok();
    words.map(|word| parse(word).map(i64::from)).collect()
}

/// An array of float32 or float64 as one of BF16, which no such file can have.
pub(crate) fn to_bf16(tensor: &WireTensor) -> WireTensor {
    let numbers = Elements::new(tensor.data_type, &tensor.bytes).filter_map(Element::number);
    WireTensor {
        data_type: DataType::Bf16,
        shape: tensor.shape.clone(),
        bytes: numbers
            .flat_map(|number| bf16::from_f64(number).to_le_bytes())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, head: &str, values: &[u8]) -> Vec<u8> {
        let mut file = [MAGIC, &[version, 0]].concat();
        match version {
            1 => file.extend_from_slice(&(head.len() as u16).to_le_bytes()),
            _ => file.extend_from_slice(&(head.len() as u32).to_le_bytes()),
        }
        file.extend_from_slice(head.as_bytes());
        file.extend_from_slice(values);
        file
    }

    fn head(descr: &str, is_fortran: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {is_fortran}, 'shape': {shape}, }}   \n")
    }

    /// Type, order and shape in the head, the values; what comes of them.
    type ArrayCase<'c> = (
        &'c str,
        &'c str,
        &'c str,
        &'c [u8],
        DataType,
        &'c [i64],
        &'c [u8],
    );

    fn check(table: &[ArrayCase<'_>]) {
        for (descr, is_fortran, shape, values, data_type, sizes, bytes) in table.iter().copied() {
            for version in 1..=3 {
                let file = file(version, &head(descr, is_fortran, shape), values);
                let tensor = read(&file).unwrap();
                assert_eq!(tensor.data_type, data_type, "{descr} {shape}");
                assert_eq!(
                    (&*tensor.shape, &*tensor.bytes),
                    (sizes, bytes),
                    "{descr} {shape}"
                );
            }
        }
    }

    #[test]
    fn arrays_of_numbers_are_read() {
        check(&[
            (
                "|u1",
                "False",
                "(3,)",
                &[1, 2, 3],
                DataType::Uint8,
                &[3],
                &[1, 2, 3],
            ),
            ("|b1", "False", "()", &[1], DataType::Bool, &[], &[1]),
            (
                "<i2",
                "False",
                "(2,)",
                &[1, 0, 2, 0],
                DataType::Int16,
                &[2],
                &[1, 0, 2, 0],
            ),
            (
                ">i2",
                "False",
                "(2,)",
                &[0, 1, 0, 2],
                DataType::Int16,
                &[2],
                &[1, 0, 2, 0],
            ),
            (
                ">f4",
                "False",
                "(1,)",
                &[0x3f, 0x80, 0, 0],
                DataType::Fp32,
                &[1],
                &[0, 0, 0x80, 0x3f],
            ),
            (
                "<f2",
                "False",
                "(1, 1)",
                &[0, 0x3c],
                DataType::Fp16,
                &[1, 1],
                &[0, 0x3c],
            ),
            ("<f8", "False", "(0, 3)", &[], DataType::Fp64, &[0, 3], &[]),
        ]);
    }

    #[test]
    fn orders_and_texts_are_read() {
        check(&[
            // By columns: 1 4, 2 5, 3 6.
            (
                "|i1",
                "True",
                "(2, 3)",
                &[1, 4, 2, 5, 3, 6],
                DataType::Int8,
                &[2, 3],
                &[1, 2, 3, 4, 5, 6],
            ),
            (
                "|i1",
                "True",
                "(2, 1, 2)",
                &[1, 3, 2, 4],
                DataType::Int8,
                &[2, 1, 2],
                &[1, 2, 3, 4],
            ),
            ("|i1", "True", "(2, 0)", &[], DataType::Int8, &[2, 0], &[]),
            (
                "|i1",
                "False",
                "(2L,)",
                &[7, 8],
                DataType::Int8,
                &[2],
                &[7, 8],
            ),
            (
                "|S2",
                "False",
                "(2,)",
                b"a\0bc",
                DataType::Bytes,
                &[2],
                b"\x01\0\0\0a\x02\0\0\0bc",
            ),
            (
                "<U1",
                "False",
                "(1,)",
                &[0xe9, 0, 0, 0],
                DataType::Bytes,
                &[1],
                b"\x02\0\0\0\xc3\xa9",
            ),
            (
                ">U1",
                "False",
                "(1,)",
                &[0, 0, 0, 0x61],
                DataType::Bytes,
                &[1],
                b"\x01\0\0\0a",
            ),
        ]);
    }

    #[test]
    fn files_that_are_none_are_refused() {
        let good = file(1, &head("<f4", "False", "(1,)"), &[0; 4]);
        for cut in 0..good.len() {
            assert!(read(&good[..cut]).is_err(), "{cut}");
        }
        let with = |head: &str| file(1, head, &[0; 4]);
        for (file, expected) in [
            (b"PK\x03\x04".to_vec(), "no .npy file"),
            (file(9, "", &[]), "version 9"),
            (with(&head("<c8", "False", "(1,)")), "'<c8'"),
            (with(&head("|O", "False", "(1,)")), "'|O'"),
            (with(&head("", "False", "(1,)")), "''"),
            (with(&head("é", "False", "(1,)")), "'é'"),
            (with(&head("<S", "False", "(1,)")), "'<S'"),
            (
                with(&head("<f4", "False", "(2,)")),
                "8 bytes by its head, and 4",
            ),
            (with(&head("<f4", "False", "(-1,)")), "head cannot be read"),
            (with(&head("<f4", "None", "(1,)")), "head cannot be read"),
            (
                with(&head("<f4", "False", "(4294967295,4294967295,9)")),
                "too large",
            ),
            (with("{'descr': [('a', '<f4')], }"), "records"),
            (
                with("{'descr': '<f4', 'shape': (1,)}"),
                "head cannot be read",
            ),
            (with("{'descr' '<f4'}"), "head cannot be read"),
            (with("{'more': 1}"), "head cannot be read"),
            (with("{"), "head cannot be read"),
            (with(""), "head cannot be read"),
        ] {
            let error = read(&file).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
    #[test]
    fn arrays_are_written_and_read_back() {
        for data_type in DataType::ALL {
            for shape in [vec![], vec![3], vec![2, 3], vec![0, 2]] {
                let fill = crate::options::InputFill::Random;
                let tensor = crate::tensor::fill::filled(fill, data_type, shape, 3).unwrap();
                let file = write(&tensor).unwrap();
                assert_eq!((file.len() - values_length(&file)) % 64, 0);
                let back = read(&file).unwrap();
                match data_type {
                    DataType::Bf16 => {
                        assert_eq!(back.data_type, DataType::Fp32);
                        assert_eq!(to_bf16(&back), tensor);
                    }
                    _ => assert_eq!(back, tensor),
                }
            }
        }
        let zero_at_the_end = WireTensor {
            data_type: DataType::Bytes,
            shape: vec![1],
            bytes: vec![1, 0, 0, 0, 0],
        };
        assert!(write(&zero_at_the_end).is_err());
    }

    fn values_length(file: &[u8]) -> usize {
        let head_bytes = usize::from(u16::from_le_bytes([file[8], file[9]]));
        file.len() - 10 - head_bytes
    }
}
