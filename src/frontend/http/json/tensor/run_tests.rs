//! Arrays whose numbers are read in runs, beside the same numbers read one at a time.

use conch_memory::ByteView;

use super::super::JsonDocument;
use super::*;
use crate::testing::Random;

const NUMERIC: [DataType; 10] = [
    DataType::Uint8,
    DataType::Uint16,
    DataType::Uint32,
    DataType::Uint64,
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Fp32,
    DataType::Fp64,
];
/// What no run passes over, or only just.
const UNUSUAL: [&str; 20] = [
    "-0",
    "-0.0",
    "1e5",
    "-2.5E-3",
    "1e308",
    "1.7976931348623157e308",
    "5e-324",
    "2.2250738585072011e-308",
    "1.17549435e-38",
    "3.4028235677973366e38",
    "NaN",
    "Infinity",
    "-Inf",
    "18446744073709551615",
    "-9223372036854775808",
    "18446744073709551616",
    "0.00000000000000000000000000000000000001",
    "123456789012345678901234567890.5",
    "9007199254740993.0",
    "16777217.0",
];
const NO_NUMBERS: [&str; 4] = ["true", "null", "\"1,2\"", "{}"];

fn number(random: &mut Random) -> String {
    let sign = ["", "", "-"][random.below(3) as usize];
    let bound = [10, 1000, 1 << 24, 1 << 53, u64::MAX][random.below(5) as usize];
    match random.below(4) {
        0 | 1 => format!("{sign}{}", random.below(bound)),
        2 => format!("{sign}{}.{}", random.below(1000), random.below(bound)),
        _ => format!(
            "{sign}{}",
            f32::from_bits((random.next() % 0x7f80_0000) as u32)
        ),
    }
}

/// Elements, a text of them, and whether all of them are numbers.
fn array(random: &mut Random) -> (Vec<String>, String, bool) {
    let separator = [",", ", ", ",\n", " , ", "],[", ",  "][random.below(6) as usize];
    let is_usual = random.below(2) == 0;
    let mut are_numbers = true;
    let mut elements = Vec::new();
    for _ in 0..random.below(60) + 1 {
        elements.push(match random.below(40) {
            0 if !is_usual => {
                let index = random.below(4 * UNUSUAL.len() as u64 + 1) as usize;
                are_numbers &= index > 0;
                match index {
                    0 => NO_NUMBERS[random.below(4) as usize].to_owned(),
                    _ => UNUSUAL[index % UNUSUAL.len()].to_owned(),
                }
            }
            _ => number(random),
        });
    }
    let mut text = "[[".to_owned();
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            let is_other = !is_usual && random.below(10) == 0;
            text += if is_other { "]\t,[ " } else { separator };
        }
        text += element;
    }
    (elements, text + "]]", are_numbers)
}

fn read_all(
    text: &str,
    data_type: DataType,
    count: usize,
    is_strict: bool,
) -> Result<Vec<u8>, String> {
    let mut block = Block::with_capacity(count * 8 + 8);
    read(
        text.as_bytes(),
        "in",
        data_type,
        count,
        &mut block,
        is_strict,
    )
    .map(|()| block.as_slice().to_vec())
    .map_err(|error| error.message.into_owned())
}

#[test]
fn runs_are_read_as_single_numbers_are() {
    let mut random = Random::new(7);
    let mut read_count = 0;
    for _ in 0..3_000 {
        let (elements, text, are_numbers) = array(&mut random);
        let parsed =
            JsonDocument::parse(ByteView::copy_of(format!("{{\"data\":{text}}}").as_bytes()));
        assert!(parsed.is_ok(), "{text}");
        let is_strict = random.below(2) == 0;
        for data_type in NUMERIC {
            let singles = elements
                .iter()
                .map(|element| read_all(&format!("[{element}]"), data_type, 1, is_strict));
            let expected: Result<Vec<Vec<u8>>, String> = singles.collect();
            let expected = expected.map(|singles| singles.concat());
            let count = elements.len();
            let got = read_all(&text, data_type, count, is_strict);
            assert_eq!(got, expected, "{} {text}", data_type.name());
            if expected.is_ok() {
                read_count += count;
                for other in [count - 1, count + 1] {
                    let refused = read_all(&text, data_type, other, is_strict).unwrap_err();
                    assert!(refused.contains("true shape"), "{refused} {text}");
                }
            }
        }
        let is_double = read_all(&text, DataType::Fp64, elements.len(), is_strict).is_ok();
        assert_eq!(is_double, are_numbers, "{text}");
    }
    assert!(read_count > 100_000, "{read_count}");
}
