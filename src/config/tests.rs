//! The whole way, from text to facts: configurations in the styles that people write, and files
//! that are not there.

use std::collections::BTreeMap;

use crate::*;

/// Prepares a text as a load does, on a machine without GPUs; `name` is the directory's.
fn load(name: &str, text: &str, may_complete: bool) -> Result<ResolvedConfig, ConfigError> {
    let folder = std::env::temp_dir().join(format!("conch-config-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary directory");
    let mut config = parse_text("config.pbtxt", text)?;
    let preparation = Preparation {
        name,
        path: &folder,
        is_mapped: false,
        may_complete,
    };
    let prepared = prepare(&mut config, &preparation);
    std::fs::remove_dir_all(&folder).expect("it was made above");
    prepared?;
    resolve_instance_groups(&mut config, &[], &Gpus::default())?;
    if may_complete {
        ResolvedConfig::from_partial(config)
    } else {
        ResolvedConfig::from_message(config)
    }
}

fn tensor(name: &str, data_type: DataType, dims: &[i64]) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        data_type,
        dims: dims.to_vec(),
        reshape: None,
        is_shape_tensor: false,
        allow_ragged_batch: false,
        is_optional: false,
        is_non_linear_format_io: false,
        label_filename: "".into(),
    }
}

#[test]
fn an_image_classifier() {
    let model = load(
        "densenet",
        r#"
name: "densenet"
platform: "onnxruntime_onnx"
max_batch_size : 0
input [
  {
    name: "data_0"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output [
  {
    name: "fc6_1"
    data_type: TYPE_FP32
    dims: [ 1000 ]
    reshape { shape: [ 1, 1000, 1, 1 ] }
    label_filename: "labels.txt"
  }
]
"#,
        false,
    )
    .unwrap();
    assert_eq!(
        (&*model.name, &*model.backend, &*model.platform),
        ("densenet", "onnxruntime", "onnxruntime_onnx")
    );
    assert_eq!(&*model.default_model_filename, "model.onnx");
    assert!(!model.is_batching());
    assert_eq!(model.scheduling, Scheduling::Default);
    assert_eq!(model.version_policy, VersionPolicy::Latest(1));
    let input = TensorSpec {
        reshape: Some(vec![1, 3, 224, 224]),
        ..tensor("data_0", DataType::Fp32, &[3, 224, 224])
    };
    assert_eq!(model.inputs, [input]);
    assert_eq!(&*model.outputs[0].label_filename, "labels.txt");
    let group = &model.instance_groups[0];
    assert_eq!(
        (&*group.name, group.kind, group.count),
        ("densenet", InstanceKind::Cpu, 2)
    );
}

const RANKER: &str = r#"
# Ranks documents.
backend: "python"
max_batch_size: 64

input  [ { name: "QUERY"  data_type: TYPE_STRING  dims: [ 1 ] },
         { name: "DOCS"   data_type: TYPE_STRING  dims: [ -1 ]  allow_ragged_batch: true },
         { name: "LIMIT"  data_type: TYPE_INT32   dims: [ 1 ]   optional: true } ]
output [ { name: "SCORES" data_type: TYPE_FP32    dims: [ -1 ] } ]

dynamic_batching {
  preferred_batch_size: [ 32, 8, 8, 64 ]
  max_queue_delay_microseconds: 500
  preserve_ordering: false
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000000
    allow_timeout_override: true max_queue_size: 128 }
  priority_queue_policy { key: 3 value: { timeout_action: DELAY default_timeout_microseconds: 5 }
    }
}
instance_group [ { count: 4 kind: KIND_CPU host_policy: "near" }, { name: "spare" kind:
  KIND_MODEL passive: true } ]
parameters: { key: "EXECUTION_ENV_PATH", value: { string_value:
  "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }
parameters: { key: "threads", value: { string_value: "2" } }
metric_tags { key: "team" value: "search" }
version_policy: { specific: { versions: [ 3, 1 ] } }
model_transaction_policy { decoupled: True }
"#;

#[test]
fn a_batching_python_model_with_everything_around_it() {
    let model = load("ranker", RANKER, false).unwrap();
    let ragged = TensorSpec {
        allow_ragged_batch: true,
        ..tensor("DOCS", DataType::Bytes, &[-1])
    };
    let optional = TensorSpec {
        is_optional: true,
        ..tensor("LIMIT", DataType::Int32, &[1])
    };
    assert_eq!(
        model.inputs,
        [tensor("QUERY", DataType::Bytes, &[1]), ragged, optional]
    );
    assert_eq!(model.required_inputs().count(), 2);
    assert_eq!(
        model.output("SCORES"),
        Some((0, &tensor("SCORES", DataType::Fp32, &[-1])))
    );
    let Scheduling::Dynamic(batching) = &model.scheduling else {
        panic!("{:?}", model.scheduling)
    };
    check_batching(batching);
    let groups: Vec<_> = model
        .instance_groups
        .iter()
        .map(|group| {
            (
                &*group.name,
                group.kind,
                group.count,
                group.is_passive,
                &*group.host_policy,
            )
        })
        .collect();
    assert_eq!(
        groups,
        [
            ("ranker_0", InstanceKind::Cpu, 4, false, "near"),
            ("spare", InstanceKind::Model, 1, true, "")
        ]
    );
    assert_eq!(model.version_policy, VersionPolicy::Specific(vec![3, 1]));
    assert!(model.is_decoupled);
    assert_eq!(model.parameters["threads"], "2");
    assert_eq!(
        model.metric_tags,
        BTreeMap::from([("team".to_owned(), "search".to_owned())])
    );
}

fn check_batching(batching: &DynamicBatching) {
    assert_eq!(batching.preferred_batch_sizes, [8, 32, 64]);
    assert_eq!(
        (
            batching.max_queue_delay_us,
            batching.priority_levels,
            batching.default_priority_level
        ),
        (500, 3, 2)
    );
    let default = QueuePolicy {
        timeout_action: TimeoutAction::Reject,
        default_timeout_us: 1_000_000,
        allow_timeout_override: true,
        queue_size_max: 128,
    };
    assert_eq!(batching.default_policy, default);
    let delayed = QueuePolicy {
        timeout_action: TimeoutAction::Delay,
        default_timeout_us: 5,
        ..QueuePolicy::default()
    };
    assert_eq!(batching.priority_policies, [(3, delayed)]);
}

#[test]
fn a_ragged_model_with_batch_tensors() {
    let model = load(
        "ragged",
        r#"
backend: "custom" max_batch_size: 16 dynamic_batching { } response_cache { enable: true }
input { name: "TOKENS" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true }
output { name: "VECTORS" data_type: TYPE_FP32 dims: [ -1, 768 ] }
batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "OFFSETS" data_type:
  TYPE_INT32 source_input: "TOKENS" } ]
batch_output [ { target_name: "VECTORS" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input:
  "TOKENS" } ]
version_policy { all { } }
"#,
        false,
    )
    .unwrap();
    assert_eq!(
        model.batch_inputs,
        [BatchInput {
            kind: BatchInputKind::AccumulatedElementCountWithZero,
            target_names: vec!["OFFSETS".to_owned()],
            data_type: DataType::Int32,
            source_input: "TOKENS".to_owned(),
        }]
    );
    assert_eq!(
        model.batch_outputs,
        [BatchOutput {
            target_names: vec!["VECTORS".to_owned()],
            source_input: "TOKENS".to_owned()
        }]
    );
    assert!(model.has_response_cache);
    assert_eq!(model.version_policy, VersionPolicy::All);
    let Scheduling::Dynamic(batching) = &model.scheduling else {
        panic!("{:?}", model.scheduling)
    };
    assert_eq!(batching.preferred_batch_sizes, [16]);
}

#[test]
fn a_stateful_model_and_an_ensemble_are_known_as_such() {
    let model = load(
        "speech",
        r#"
platform: "tensorrt_plan" max_batch_size: 4
input [{name: "INPUT", data_type: TYPE_FP16, dims: [80, -1]}]
output [{name: "OUTPUT", data_type: TYPE_FP16, dims: [512]}]
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2, 4 ]
    max_queue_delay_microseconds: 100 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
  state [ { input_name: "H_IN" output_name: "H_OUT" data_type: TYPE_FP16 dims: [ 512 ]
    initial_state { data_type: TYPE_FP16 dims: [ 512 ] zero_data: true name: "zero" } } ]
}
"#,
        false,
    )
    .unwrap();
    let Scheduling::Sequence(batching) = &model.scheduling else {
        panic!("{:?}", model.scheduling)
    };
    assert_eq!((batching.slot_count, batching.idle_us), (4, 5_000_000));
    let model = load(
        "pipeline",
        r#"
name: "pipeline" platform: "ensemble" max_batch_size: 1
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling {
  step [
    { model_name: "decode" model_version: -1 input_map { key: "raw" value: "IMAGE" } output_map {
      key: "pixels" value: "pixels" } },
    { model_name: "classify" model_version: -1 input_map { key: "input" value: "pixels" }
      output_map { key: "label" value: "LABEL" } }
  ]
}
"#,
        false,
    )
    .unwrap();
    assert_eq!(model.scheduling, Scheduling::Ensemble);
    assert!(model.instance_groups.is_empty());
    assert_eq!(model.platform_or_backend(), "ensemble");
}

#[test]
fn a_partial_configuration_waits_for_its_backend() {
    let text = r#"backend: "b" input { name: "a" }"#;
    let partial = load("m", text, true).unwrap();
    assert!(partial.inputs.is_empty());
    assert_eq!(partial.message.input[0].name, "a");
    assert_eq!(
        load("m", text, false).unwrap_err().message,
        "model input 'a' must specify 'data_type' for m"
    );

    let proposal = concat!(
        r#"{"max_batch_size":4,"input":[{"name":"a","data_type":"TYPE_FP32","dims":[2]}],"#,
        r#""output":[{"name":"o","data_type":"TYPE_FP32","dims":[2]}],"dynamic_batching":{}}"#
    );
    let merged = merge_proposal(&partial.message, from_json(proposal).unwrap()).unwrap();
    let model = ResolvedConfig::from_message(merged).unwrap();
    assert_eq!(model.inputs, [tensor("a", DataType::Fp32, &[2])]);
    assert_eq!(model.max_batch_size, 4);
    let Scheduling::Dynamic(batching) = &model.scheduling else {
        panic!("{:?}", model.scheduling)
    };
    assert_eq!(batching.preferred_batch_sizes, [4]);

    // What a backend proposes must be right once it is done.
    let wrong =
        from_json(r#"{"input":[{"name":"a","data_type":"TYPE_FP32","dims":[0]}]}"#).unwrap();
    let merged = merge_proposal(&partial.message, wrong).unwrap();
    assert_eq!(
        ResolvedConfig::from_message(merged).unwrap_err().message,
        "model input 'a' dimension must be integer >= 1, or -1 to indicate a variable-size \
         dimension for m"
    );
}

#[test]
fn a_name_must_be_the_directorys_unless_it_is_mapped() {
    let error = load("m2", r#"name: "n" backend: "b""#, true).unwrap_err();
    assert_eq!(
        error.message,
        "unexpected directory name 'm2' for model 'n', directory name must equal model name"
    );
    assert_eq!(error.code, ConfigErrorCode::InvalidArg);
    let mut config = parse_text("f", r#"name: "n" backend: "b""#).unwrap();
    let path = &std::env::temp_dir();
    prepare(
        &mut config,
        &Preparation {
            name: "m",
            path,
            is_mapped: true,
            may_complete: true,
        },
    )
    .unwrap();
    assert_eq!(config.name, "m");
}

#[test]
fn unresolved_groups_are_no_facts() {
    let mut config = parse_text("f", r#"name: "m" backend: "b" instance_group { }"#).unwrap();
    normalize(&mut config);
    let error = ResolvedConfig::from_message(config).unwrap_err();
    assert_eq!(
        error,
        ConfigError::internal("instance group  of model m has unexpected kind KIND_AUTO")
    );
}
