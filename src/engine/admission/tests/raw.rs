//! Raw requests: one body, whose shape is deduced.

use super::*;

/// The name, type, shape and byte size of the first input of an admitted raw request.
type RawInput = (String, DataType, Vec<i64>, u64);

/// Admits a raw request of `inputs` inputs of `size` bytes each.
fn raw(config: &str, inputs: usize, size: usize) -> Result<RawInput, Error> {
    let inputs = (0..inputs)
        .map(|_| input("raw_input", Int64, &[], &[&bytes(size)]))
        .collect();
    let drafted = Draft {
        is_raw: true,
        ..draft(inputs)
    };
    let owned = try_admit(&model(config), drafted)?
        .claim(conch_sync::ClaimReason::Execute, None)
        .unwrap();
    let input = owned.inputs[0].clone();
    Ok((
        input.name.to_string(),
        input.data_type,
        input.shape.to_vec(),
        input.byte_size,
    ))
}

/// A configuration with one input.
fn one(kind: &str, dims: &str) -> String {
    let output = "output [ { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
    format!("input [ {{ name: 'a' data_type: {kind} dims: {dims} }} ] {output}")
}

#[test]
fn raw_requests_take_their_shape_from_the_model() {
    assert_eq!(
        raw(&one("TYPE_INT32", "[ -1, 2 ]"), 1, 24).unwrap(),
        ("a".into(), Int32, vec![3, 2], 24)
    );
    assert_eq!(
        raw(&one("TYPE_INT32", "[ 4 ]"), 1, 16).unwrap(),
        ("a".into(), Int32, vec![4], 16)
    );
    let batching = format!("max_batch_size: 8 {}", one("TYPE_FP32", "[ -1 ]"));
    assert_eq!(
        raw(&batching, 1, 12).unwrap(),
        ("a".into(), Fp32, vec![1, 3], 12)
    );
    assert_eq!(
        raw(&one("TYPE_STRING", "[ 1 ]"), 1, 5).unwrap(),
        ("a".into(), Bytes, vec![1], 9)
    );
}

#[test]
fn raw_requests_without_a_deducible_shape_are_refused() {
    for (config, inputs, size, expected) in [
        (
            PLAIN.to_string(),
            1,
            8,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' \
             model configuration",
        ),
        (
            one("TYPE_INT32", "[ -1, -1 ]"),
            1,
            8,
            "The shape of the raw input 'a' can not be deduced because there are more than one \
             variable-sized dimension",
        ),
        (
            one("TYPE_STRING", "[ 2 ]"),
            1,
            8,
            "For BYTE datatype raw input 'a', the model must have input shape [1]",
        ),
        (
            one("TYPE_STRING", "[ -1 ]"),
            1,
            8,
            "For BYTE datatype raw input 'a', the model must have input shape [1]",
        ),
        (
            one("TYPE_INT32", "[ -1, 2 ]"),
            1,
            20,
            "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 20",
        ),
        (
            one("TYPE_INT32", "[ 4 ]"),
            1,
            20,
            "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 20",
        ),
    ] {
        let error = raw(&config, inputs, size).unwrap_err();
        assert_eq!(
            error.message,
            format!("[request id: <id_unknown>] {expected}")
        );
    }
}
