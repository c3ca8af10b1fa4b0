//! Admitted and refused requests, with upstream's error messages.

use std::sync::Arc;

use conch_config::DataType::{self, Bytes, Fp32, Int32, Int64};

use crate::testing::admit;
use crate::testing::{Recorder, draft, input, model, model_with};
use crate::{Code, CorrelationId, Draft, Error, ModelVersion, RequestHandle, Timestamps, cancel};

const PLAIN: &str = "input [ { name: 'a' data_type: TYPE_INT32 dims: [ 2 ] }, \
                     { name: 'b' data_type: TYPE_FP32 dims: [ -1 ] } ] output [ \
                     { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] }, \
                     { name: 'y' data_type: TYPE_INT32 dims: [ 1 ] } ]";
const BATCHING: &str = "max_batch_size: 4 input [ { name: 'a' data_type: TYPE_INT32 dims: [ 2 ] }, \
                        { name: 'b' data_type: TYPE_FP32 dims: [ -1 ] } ] output [ \
                        { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
const TEXT: &str = "input [ { name: 's' data_type: TYPE_STRING dims: [ -1 ] } ] output [ \
                    { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
const OPTIONAL: &str = "max_batch_size: 4 dynamic_batching { } input [ \
                        { name: 'a' data_type: TYPE_INT32 dims: [ 1 ] }, \
                        { name: 'b' data_type: TYPE_INT32 dims: [ 1 ] optional: true } ] output [ \
                        { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";

fn try_admit(model: &Arc<ModelVersion>, draft: Draft<'_>) -> Result<RequestHandle, Error> {
    let completion: Arc<dyn crate::Completion> = Arc::new(Recorder::default());
    admit(model, draft, &completion, 7, Timestamps::default())
}

fn bytes(count: usize) -> Vec<u8> {
    vec![0; count]
}

type Input<'a> = (&'a str, DataType, &'a [i64], usize);

fn of<'a>(inputs: &[Input<'a>]) -> Draft<'a> {
    draft(
        inputs
            .iter()
            .map(|(name, data_type, shape, size)| input(name, *data_type, shape, &[&bytes(*size)]))
            .collect(),
    )
}

fn check(config: &str, inputs: &[Input<'_>], expected: &str) {
    match try_admit(&model(config), of(inputs)) {
        Ok(_) => assert_eq!(expected, "", "{inputs:?} was admitted"),
        Err(error) => {
            assert_eq!(error.message, expected, "{inputs:?}");
            assert_eq!(error.code, Code::InvalidArg);
        }
    }
}

#[test]
fn inputs_are_matched_in_upstreams_words() {
    const A: Input<'_> = ("a", Int32, &[2], 8);
    const B: Input<'_> = ("b", Fp32, &[3], 12);
    let rid = "[request id: <id_unknown>] ";
    check(PLAIN, &[A, B], "");
    check(PLAIN, &[B, A], "");
    check(PLAIN, &[("a", Int32, &[2], 8), ("b", Fp32, &[0], 0)], "");
    check(
        PLAIN,
        &[A, A],
        &format!("{rid}input 'a' already exists in request"),
    );
    check(
        PLAIN,
        &[A, ("z", Fp32, &[3], 12), ("z", Fp32, &[3], 12)],
        &format!("{rid}input 'z' already exists in request"),
    );
    check(
        PLAIN,
        &[A, ("z", Fp32, &[3], 12)],
        "unexpected inference input 'z' for model 'm'",
    );
    let counted = |inputs: &[Input<'_>], expected: &str, got: &str, missing: &str| {
        let text = format!(
            "{rid}{expected} inputs for model 'm'. Got input(s) {got}, but missing required \
             input(s) {missing}. Please provide all required input(s)."
        );
        check(
            if expected.contains("between") {
                OPTIONAL
            } else {
                PLAIN
            },
            inputs,
            &text,
        );
    };
    counted(&[], "expected 2 inputs but got 0", "[]", "['a','b']");
    counted(&[A], "expected 2 inputs but got 1", "['a']", "['b']");
    counted(
        &[A, B, ("c", Fp32, &[1], 4)],
        "expected 2 inputs but got 3",
        "['a','b','c']",
        "]",
    );
    counted(
        &[],
        "expected number of inputs between 1 and 2 but got 0",
        "[]",
        "['a']",
    );
    check(OPTIONAL, &[("a", Int32, &[1, 1], 4)], "");
    check(
        OPTIONAL,
        &[("a", Int32, &[1, 1], 4), ("b", Int32, &[1, 1], 4)],
        "",
    );
    check(
        PLAIN,
        &[("a", Int64, &[2], 16), B],
        &format!("{rid}inference input 'a' data-type is 'INT64', but model 'm' expects 'INT32'"),
    );
    check(
        PLAIN,
        &[("a", Int32, &[3], 12), B],
        &format!("{rid}unexpected shape for input 'a' for model 'm'. Expected [2], got [3]. "),
    );
    check(
        PLAIN,
        &[("a", Int32, &[], 0), B],
        &format!("{rid}unexpected shape for input 'a' for model 'm'. Expected [2], got []. "),
    );
    check(
        PLAIN,
        &[A, ("b", Fp32, &[-1], 4)],
        &format!(
            "{rid}All input dimensions should be specified for input 'b' for model 'm', got [-1]"
        ),
    );
    check(
        PLAIN,
        &[A, ("b", Fp32, &[-2], 4)],
        "tensor 'b' contains an invalid dimension [-2]",
    );
    check(
        PLAIN,
        &[("a", Int32, &[2], 7), B],
        &format!("{rid}input byte size mismatch for input 'a' for model 'm'. Expected 8, got 7"),
    );
    check(
        PLAIN,
        &[A, ("b", Fp32, &[i64::MAX], 4)],
        "byte size for tensor 'b' exceeds maximum size of 9223372036854775807",
    );
}

#[test]
fn the_batch_dimension_is_checked() {
    let rid = "[request id: <id_unknown>] ";
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
            format!("{rid}input 'a' has no shape but model requires batch dimension for 'm'"),
        ),
        (
            vec![2, 2],
            b(1),
            16,
            4,
            format!("{rid}input 'b' batch size does not match other inputs for 'm'"),
        ),
        (
            vec![5, 2],
            b(5),
            40,
            20,
            format!("{rid}inference request batch-size must be <= 4 for 'm'"),
        ),
        (
            vec![-1, 2],
            b(-1),
            40,
            20,
            format!("{rid}inference request batch-size must be <= 4 for 'm'"),
        ),
        (
            vec![1, 3],
            b(1),
            12,
            4,
            format!(
                "{rid}unexpected shape for input 'a' for model 'm'. Expected [-1,2], got [1,3]. \
                 {note}"
            ),
        ),
        (
            vec![1],
            b(1),
            4,
            4,
            format!(
                "{rid}unexpected shape for input 'a' for model 'm'. Expected [-1,2], got [1]. \
                 {note}"
            ),
        ),
        (
            vec![2, 2],
            b(2),
            8,
            8,
            format!(
                "{rid}input byte size mismatch for input 'a' for model 'm'. Expected 16, got 8"
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
    let rid = "[request id: <id_unknown>] ";
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
            "{rid}incomplete string length indicator for inference input 's' for model 'm', \
             expecting 4 bytes but only 2 bytes available. Please make sure the string length \
             indicator is in one buffer."
        ),
    );
    at(
        &[three],
        2,
        format!(
            "{rid}unexpected number of string elements 3 for inference input 's' for model 'm', \
             expecting 2"
        ),
    );
    at(
        &[three],
        4,
        format!("{rid}expected 4 string elements for inference input 's' for model 'm', got 3"),
    );
    at(
        &[&three[..14]],
        3,
        format!(
            "{rid}incomplete string data for inference input 's', expecting string of length 2 but \
             only 1 bytes available"
        ),
    );
    at(
        &[&[0xff; 4]],
        1,
        format!(
            "{rid}incomplete string data for inference input 's', expecting string of length \
             4294967295 but only 0 bytes available"
        ),
    );
    at(
        &[three],
        i64::MAX,
        format!(
            "{rid}expected 9223372036854775807 string elements for inference input 's' for model \
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
fn raw_requests_take_their_shape_from_the_model() {
    let raw = |config: &str, inputs: usize, size: usize| {
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
        Ok::<_, Error>((
            input.name.to_string(),
            input.data_type,
            input.shape.to_vec(),
            input.byte_size,
        ))
    };
    let output = "output [ { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
    let one = |kind: &str, dims: &str| {
        format!("input [ {{ name: 'a' data_type: {kind} dims: {dims} }} ] {output}")
    };
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

#[test]
fn outputs_ids_and_correlation_ids() {
    let full = || of(&[("a", Int32, &[2], 8), ("b", Fp32, &[3], 12)]);
    let outputs = |names: &[&'static str]| Draft {
        id: "7",
        requested_outputs: names.iter().copied().collect(),
        ..full()
    };
    let handle = try_admit(&model(PLAIN), outputs(&["y", "x"])).unwrap();
    assert_eq!((&*handle.shared().id, handle.shared().slot), ("7", 7));
    let owned = handle
        .claim(conch_sync::ClaimReason::Execute, None)
        .unwrap();
    assert_eq!(
        (
            &owned.requested_outputs[..],
            owned.batch_size,
            owned.batch_count()
        ),
        (&[0, 1][..], 0, 1),
        "ordered by name, however they were asked for"
    );
    assert_eq!(
        try_admit(&model(PLAIN), outputs(&["x", "x"]))
            .err()
            .unwrap()
            .message,
        "[request id: 7] output 'x' already exists in request"
    );
    assert_eq!(
        try_admit(&model(PLAIN), outputs(&["x", "z"]))
            .err()
            .unwrap()
            .message,
        "unexpected inference output 'z' for model 'm'"
    );
    let correlation_id = CorrelationId::Text("c".repeat(129).into());
    let error = try_admit(
        &model(PLAIN),
        Draft {
            correlation_id,
            ..full()
        },
    )
    .err()
    .unwrap();
    assert_eq!(
        (error.code, &*error.message),
        (
            Code::Unsupported,
            "string correlation ID cannot be longer than 128 characters"
        )
    );
}

#[test]
fn reshape_gives_the_backend_its_shape() {
    let config = "max_batch_size: 4 input [ \
                  { name: 'a' data_type: TYPE_INT32 dims: [ 2, 2, -1, 3 ] reshape { shape: [ 4, -1, 3 ] } } \
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

#[test]
fn signatures_hold_what_batches_must_share() {
    let signature = |config: &str, inputs: &[Input<'_>]| {
        try_admit(&model(config), of(inputs))
            .unwrap()
            .shared()
            .facts
            .signature
            .to_vec()
    };
    let a = ("a", Int32, &[1, 2][..], 8);
    let dynamic = |extra: &str| {
        format!(
            "dynamic_batching {{ }} {}",
            BATCHING.replace("dims: [ -1 ]", &format!("dims: [ -1 ] {extra}"))
        )
    };
    assert_eq!(
        signature(BATCHING, &[a, ("b", Fp32, &[1, 3], 12)]),
        [0_i64; 0],
        "the default scheduler forms no batches"
    );
    assert_eq!(
        signature(&dynamic(""), &[a, ("b", Fp32, &[1, 3], 12)]),
        [1, 3],
        "only the variable input"
    );
    assert_eq!(
        signature(
            &dynamic("allow_ragged_batch: true"),
            &[a, ("b", Fp32, &[1, 3], 12)]
        ),
        [0_i64; 0]
    );
    assert_eq!(signature(OPTIONAL, &[("a", Int32, &[1, 1], 4)]), [1, 0]);
    assert_eq!(
        signature(
            OPTIONAL,
            &[("b", Int32, &[2, 1], 8), ("a", Int32, &[2, 1], 8)]
        ),
        [1, 1]
    );
}

#[test]
fn places_are_bounded_however_many_levels_there_are() {
    // As upstream's test of levels: its default is beyond 32 bits.
    let config = format!(
        "dynamic_batching {{ priority_levels: 18446744073709551615 default_priority_level: \
         4294967296
           default_queue_policy {{ max_queue_size: 2 }} priority_queue_policy \
         {{ key: 7000000000 value {{ }} }} priority_queue_policy {{ key: 9 value {{ \
         max_queue_size: 1 }} }} }} {BATCHING}"
    );
    let model = model_with(&config, 10);
    let at = |priority| Draft {
        priority,
        ..of(&[("a", Int32, &[1, 2], 8), ("b", Fp32, &[1, 1], 4)])
    };
    for (priority, level, max) in [
        (0, 4_294_967_296, Some(2)),
        (u64::MAX, u64::MAX, Some(2)),
        (7_000_000_000, 7_000_000_000, None),
        (9, 9, Some(1)),
        (1, 1, Some(2)),
    ] {
        for _ in 0..2 {
            let count = max.unwrap_or(5);
            let handles: Vec<_> = (0..count)
                .map(|_| try_admit(&model, at(priority)).unwrap())
                .collect();
            assert_eq!(handles[0].shared().facts.level, level);
            let next = try_admit(&model, at(priority));
            assert_eq!(next.is_err(), max.is_some(), "{priority}");
        }
    }
    assert_eq!(model.statistics.totals().pending_count, 0);
}

#[test]
fn places_are_bounded_and_given_back() {
    let config = format!(
        "dynamic_batching {{ priority_levels: 2 default_priority_level: 2 priority_queue_policy {{ \
         key: 1 value {{ max_queue_size: 1 }} }} }} {BATCHING}"
    );
    let model = model_with(&config, 3);
    let full = |priority| Draft {
        priority,
        id: "i",
        ..of(&[("a", Int32, &[1, 2], 8), ("b", Fp32, &[1, 1], 4)])
    };
    let refused = |priority| {
        let error = try_admit(&model, full(priority)).err().expect("refused");
        assert_eq!(
            (error.code, &*error.message),
            (
                Code::Unavailable,
                "[request id: i] Exceeds maximum queue size"
            )
        );
    };
    let first = try_admit(&model, full(1)).unwrap();
    refused(1);
    let second = try_admit(&model, full(9)).unwrap();
    assert_eq!(
        (first.shared().facts.level, second.shared().facts.level),
        (1, 2),
        "beyond the levels: the default"
    );
    assert_eq!(
        (model.live_count(), model.statistics.totals().pending_count),
        (2, 2)
    );
    assert!(cancel(&first).into_error().is_some() && cancel(&first).into_error().is_none());
    assert_eq!(model.statistics.totals().pending_count, 1);
    assert_eq!(model.live_count(), 2, "a handle counts while there is one");
    let third = try_admit(&model, full(1)).unwrap();
    refused(2);
    drop((first, second, third));
    assert_eq!(
        (model.live_count(), model.statistics.totals().pending_count),
        (0, 0)
    );
    let failures = model.statistics.totals().failures;
    assert_eq!(
        (failures[0], failures[1]),
        (0, 1),
        "cancelled; who was never queued does not count"
    );
}
