//! Inputs: their names, counts, types, shapes and sizes.

use super::*;

const A: Input<'_> = ("a", Int32, &[2], 8);
const B: Input<'_> = ("b", Fp32, &[3], 12);
const RID: &str = "[request id: <id_unknown>] ";

#[test]
fn inputs_are_matched_by_name() {
    check(PLAIN, &[A, B], "");
    check(PLAIN, &[B, A], "");
    check(PLAIN, &[("a", Int32, &[2], 8), ("b", Fp32, &[0], 0)], "");
    check(
        PLAIN,
        &[A, A],
        &format!("{RID}input 'a' already exists in request"),
    );
    check(
        PLAIN,
        &[A, ("z", Fp32, &[3], 12), ("z", Fp32, &[3], 12)],
        &format!("{RID}input 'z' already exists in request"),
    );
    check(
        PLAIN,
        &[A, ("z", Fp32, &[3], 12)],
        "unexpected inference input 'z' for model 'm'",
    );
}

fn check_count(config: &str, inputs: &[Input<'_>], expected: &str, got: &str, missing: &str) {
    let text = format!(
        "{RID}{expected} inputs for model 'm'. Got input(s) {got}, but missing required \
         input(s) {missing}. Please provide all required input(s)."
    );
    check(config, inputs, &text);
}

#[test]
fn inputs_are_counted() {
    check_count(PLAIN, &[], "expected 2 inputs but got 0", "[]", "['a','b']");
    check_count(PLAIN, &[A], "expected 2 inputs but got 1", "['a']", "['b']");
    check_count(
        PLAIN,
        &[A, B, ("c", Fp32, &[1], 4)],
        "expected 2 inputs but got 3",
        "['a','b','c']",
        "]",
    );
}

#[test]
fn optional_inputs_may_be_left_out() {
    check(OPTIONAL, &[("a", Int32, &[1, 1], 4)], "");
    check(
        OPTIONAL,
        &[("a", Int32, &[1, 1], 4), ("b", Int32, &[1, 1], 4)],
        "",
    );
    check_count(
        OPTIONAL,
        &[],
        "expected number of inputs between 1 and 2 but got 0",
        "[]",
        "['a']",
    );
}

#[test]
fn types_and_shapes_are_checked() {
    check(
        PLAIN,
        &[("a", Int64, &[2], 16), B],
        &format!("{RID}inference input 'a' data-type is 'INT64', but model 'm' expects 'INT32'"),
    );
    check(
        PLAIN,
        &[("a", Int32, &[3], 12), B],
        &format!("{RID}unexpected shape for input 'a' for model 'm'. Expected [2], got [3]. "),
    );
    check(
        PLAIN,
        &[("a", Int32, &[], 0), B],
        &format!("{RID}unexpected shape for input 'a' for model 'm'. Expected [2], got []. "),
    );
    check(
        PLAIN,
        &[A, ("b", Fp32, &[-1], 4)],
        &format!(
            "{RID}All input dimensions should be specified for input 'b' for model 'm', got [-1]"
        ),
    );
    check(
        PLAIN,
        &[A, ("b", Fp32, &[-2], 4)],
        "tensor 'b' contains an invalid dimension [-2]",
    );
}

#[test]
fn byte_sizes_are_checked() {
    check(
        PLAIN,
        &[("a", Int32, &[2], 7), B],
        &format!("{RID}input byte size mismatch for input 'a' for model 'm'. Expected 8, got 7"),
    );
    check(
        PLAIN,
        &[A, ("b", Fp32, &[i64::MAX], 4)],
        "byte size for tensor 'b' exceeds maximum size of 9223372036854775807",
    );
}

#[test]
fn the_batch_dimension_is_checked() {
    let note = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch \
                dimension to be prepended to each input shape. If you want to specify the full \
                shape including the batch dim in your input dims config, try setting \
                max_batch_size to zero. See the model configuration docs for more info on \
                max_batch_size.";
    let b = |count: i64| -> Vec<i64> { vec![count, 1] };
    for (a, b, a_bytes, b_bytes, expected) in [
        (vec![4, 2], b(4), 32, 16, String::new()),
        (
            vec![],
            b(1),
            0,
            4,
            format!("{RID}input 'a' has no shape but model requires batch dimension for 'm'"),
        ),
        (
            vec![2, 2],
            b(1),
            16,
            4,
            format!("{RID}input 'b' batch size does not match other inputs for 'm'"),
        ),
        (
            vec![5, 2],
            b(5),
            40,
            20,
            format!("{RID}inference request batch-size must be <= 4 for 'm'"),
        ),
        (
            vec![-1, 2],
            b(-1),
            40,
            20,
            format!("{RID}inference request batch-size must be <= 4 for 'm'"),
        ),
        (
            vec![1, 3],
            b(1),
            12,
            4,
            format!(
                "{RID}unexpected shape for input 'a' for model 'm'. Expected [-1,2], got [1,3]. \
                 {note}"
            ),
        ),
        (
            vec![1],
            b(1),
            4,
            4,
            format!(
                "{RID}unexpected shape for input 'a' for model 'm'. Expected [-1,2], got [1]. \
                 {note}"
            ),
        ),
        (
            vec![2, 2],
            b(2),
            8,
            8,
            format!(
                "{RID}input byte size mismatch for input 'a' for model 'm'. Expected 16, got 8"
            ),
        ),
    ] {
        check(
            BATCHING,
            &[("a", Int32, &a, a_bytes), ("b", Fp32, &b, b_bytes)],
            &expected,
        );
    }
}

#[test]
fn bytes_elements_are_walked() {
    let three = b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc";
    let at = |chunks: &[&[u8]], count: i64, expected: String| {
        let outcome = try_admit(
            &model(TEXT),
            draft(vec![input("s", Bytes, &[count], chunks)]),
        );
        match outcome {
            Ok(_) => assert_eq!(expected, "", "{chunks:?} was admitted"),
            Err(error) => assert_eq!(error.message, expected),
        }
    };
    at(&[three], 3, String::new());
    at(&[], 0, String::new());
    at(&[&three[..5], &three[5..]], 3, String::new());
    at(&[&three[..14], &three[14..]], 3, String::new());
    at(
        &[&three[..7], &three[7..]],
        3,
        format!(
            "{RID}incomplete string length indicator for inference input 's' for model 'm', \
             expecting 4 bytes but only 2 bytes available. Please make sure the string length \
             indicator is in one buffer."
        ),
    );
    at(
        &[three],
        2,
        format!(
            "{RID}unexpected number of string elements 3 for inference input 's' for model 'm', \
             expecting 2"
        ),
    );
    at(
        &[three],
        4,
        format!("{RID}expected 4 string elements for inference input 's' for model 'm', got 3"),
    );
    at(
        &[&three[..14]],
        3,
        format!(
            "{RID}incomplete string data for inference input 's', expecting string of length 2 but \
             only 1 bytes available"
        ),
    );
    at(
        &[&[0xff; 4]],
        1,
        format!(
            "{RID}incomplete string data for inference input 's', expecting string of length \
             4294967295 but only 0 bytes available"
        ),
    );
    at(
        &[three],
        i64::MAX,
        format!(
            "{RID}expected 9223372036854775807 string elements for inference input 's' for model \
             'm', got 3"
        ),
    );
    let two_dims = TEXT.replace("[ -1 ]", "[ -1, -1 ]");
    let huge = draft(vec![input("s", Bytes, &[i64::MAX, 2], &[three])]);
    let error = try_admit(&model(&two_dims), huge).err().unwrap();
    assert_eq!(
        error.message,
        "element count for tensor 's' exceeds maximum size of 9223372036854775807"
    );
}

#[test]
fn reshape_gives_the_backend_its_shape() {
    let config = "max_batch_size: 4 input [ \
                  { name: 'a' data_type: TYPE_INT32 dims: [ 2, 2, -1, 3 ] \
                  reshape { shape: [ 4, -1, 3 ] } } \
                  ] output [ { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
    let handle = try_admit(&model(config), of(&[("a", Int32, &[2, 2, 2, 5, 3], 480)])).unwrap();
    assert_eq!(
        handle
            .claim(conch_sync::ClaimReason::Execute, None)
            .unwrap()
            .inputs[0]
            .shape[..],
        [2, 4, 5, 3]
    );
}

#[test]
fn only_a_linear_format_has_a_known_size() {
    let config = |special: &str| {
        format!(
            "platform: 'tensorrt_plan' input [ {{ name: 'a' data_type: TYPE_INT32 dims: [ 3, 1, 2 \
             ] {special} }} ] output [ {{ name: 'x' data_type: TYPE_INT32 dims: [ 1 ] }} ]"
        )
    };
    let padded = || of(&[("a", Int32, &[3, 1, 2], 128)]);
    let error = try_admit(&model(&config("")), padded()).err();
    assert_eq!(
        error.map(|error| error.message.into_owned()).as_deref(),
        Some(
            "[request id: <id_unknown>] input byte size mismatch for input 'a' for model 'm'. \
             Expected 24, got 128"
        )
    );
    let handle = try_admit(&model(&config("is_non_linear_format_io: true")), padded()).unwrap();
    let live = handle
        .claim(conch_sync::ClaimReason::Execute, None)
        .unwrap();
    assert_eq!(live.inputs[0].byte_size, 128);
}
