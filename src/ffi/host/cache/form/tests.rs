use std::sync::Arc;

use conch_engine::{ModelVersion, ResponseParts};

use super::*;

const KEY: CacheKey = CacheKey(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

fn model() -> Arc<ModelVersion> {
    let mut message = conch_config::parse_text("test", "name: 'm' backend: 'b'").unwrap();
    conch_config::normalize(&mut message);
    let config = conch_config::ResolvedConfig::from_partial(message).unwrap();
    conch_engine::testing::version("m", 1, &Arc::new(config))
}

fn output(name: &str, data_type: DataType, shape: &[i64], data: &[u8]) -> Output {
    Output {
        name: name.into(),
        data_type,
        shape: Shape::from_slice(shape),
        data: ByteView::copy_of(data),
    }
}

fn response(outputs: Vec<Output>) -> Response {
    let parameter = |name: &str, value| Parameter {
        name: name.into(),
        value,
    };
    Response::from(ResponseParts {
        model: model(),
        outputs: outputs.into(),
        parameters: vec![
            parameter("text", ParameterValue::Text("é".into())),
            parameter("int", ParameterValue::Int(i64::MIN)),
            parameter("bool", ParameterValue::Bool(true)),
            parameter("double", ParameterValue::Double(-0.5)),
        ],
    })
}

fn written(response: &Response) -> Vec<u8> {
    let form = EncodedEntry::of(KEY, response).unwrap();
    // Not zeros: padding must be written, too.
    let mut bytes = vec![0xee; form.byte_size()];
    form.write_to(&mut bytes);
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    match read(KEY, &ByteView::copy_of(bytes)) {
        Err(error) => error.message.into_owned(),
        Ok(_) => panic!("was read"),
    }
}

#[test]
fn what_is_written_is_read_back() {
    for outputs in [
        vec![],
        vec![output("x", DataType::Int32, &[2, 3], &[7; 24])],
        vec![
            output("empty", DataType::Fp32, &[0], &[]),
            output("text", DataType::Bytes, &[1], b"\x01\0\0\0a"),
            output("scalar", DataType::Bool, &[], &[1]),
            output("long", DataType::Uint8, &[1_000], &[9; 1_000]),
        ],
    ] {
        let given = response(outputs);
        let bytes = ByteView::copy_of(&written(&given));
        let kept = read(KEY, &bytes).unwrap();
        assert_eq!(*kept.parameters, *given.parameters);
        assert_eq!(kept.outputs.len(), given.outputs.len());
        for (kept, given) in kept.outputs.iter().zip(&given.outputs) {
            assert_eq!(
                (&kept.name, kept.data_type, &kept.shape),
                (&given.name, given.data_type, &given.shape)
            );
            assert_eq!(kept.data.as_ref(), given.data.as_ref());
            let address = kept.data.as_ptr() as usize;
            assert!(kept.data.is_empty() || address.is_multiple_of(ALIGNMENT_BYTES));
        }
    }
}

#[test]
fn nothing_else_is_read() {
    let bytes = written(&response(vec![
        output("x", DataType::Int32, &[2], &[7; 8]),
        output("y", DataType::Uint8, &[3], &[8; 3]),
    ]));
    for length in 0..bytes.len() {
        refusal(&bytes[..length]);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    let count = bytes.len();
    assert_eq!(
        refusal(&longer),
        format!(
            "the cached response has {} bytes, expected {count}",
            count + 1
        )
    );
    for place in 0..bytes.len() {
        for bit in [1, 0x80] {
            let mut changed = bytes.clone();
            changed[place] ^= bit;
            refusal(&changed);
        }
    }
    let error = read(CacheKey(KEY.0 + 1), &ByteView::copy_of(&bytes)).unwrap_err();
    assert_eq!(error.message, "the cached response has another key");
}

/// Forms with a right checksum and wrong contents, as another release may write by mistake.
#[test]
fn a_right_checksum_is_not_enough() {
    let bytes = written(&response(vec![output("x", DataType::Int32, &[2], &[7; 8])]));
    for place in CHECKED_FROM..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[place] = value;
            let checksum = xxh3_64(&changed[CHECKED_FROM..]);
            put_at(&mut changed, CHECKSUM_AT, &checksum.to_le_bytes());
            // Refused or another response, but no panic and nothing from outside.
            if let Ok(kept) = read(KEY, &ByteView::copy_of(&changed)) {
                let total: usize = kept.outputs.iter().map(|output| output.data.len()).sum();
                assert!(total <= changed.len());
            }
        }
    }
    let mut newer = bytes.clone();
    newer[8] = 2;
    assert_eq!(
        refusal(&newer),
        "the cached response has form 2, expected 1"
    );
    assert_eq!(
        refusal(b"{\"outputs\":[]}                    "),
        "the cached response has a foreign form"
    );
}
