//! What is fixed of a whole request: outputs, ids, signature.

use super::*;

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
