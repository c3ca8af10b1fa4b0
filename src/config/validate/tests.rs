//! Configurations and what is wrong with them. The texts are those that Triton 2.51 gives in strict
//! mode, and where 26.09 words it otherwise those of its core.

use super::*;
use crate::{normalize, parse_text};

#[test]
fn refusals_are_worded_as_upstream_words_them() {
    for (text, expected) in TABLE {
        let mut config = parse_text("config.pbtxt", text).expect(text);
        if config.name.is_empty() {
            config.name = "m".to_owned();
        }
        normalize(&mut config);
        let result = validate(&config).and_then(|()| validate_io(&config));
        let message = result.map_or_else(|error| error.message, |()| String::new());
        assert_eq!(message, *expected, "{text}");
    }
}

#[test]
fn a_model_is_named_as_its_directory() {
    let config = ModelConfig {
        name: "other".to_owned(),
        ..ModelConfig::default()
    };
    assert_eq!(validate_name(&config, "other"), Ok(()));
    assert_eq!(
        validate_name(&config, "m").unwrap_err(),
        ConfigError::invalid(
            "unexpected directory name 'm' for model 'other', directory name must equal model name"
        )
    );
}

#[test]
fn a_name_is_needed() {
    let error = validate(&ModelConfig::default()).unwrap_err();
    assert_eq!(error.message, "model configuration must specify 'name'");
}

#[test]
fn what_no_text_can_say_is_refused_all_the_same() {
    let text = "name: 'm' backend: 'b' input { name: 'i' data_type: TYPE_INT32 dims: [ 1 ] } \
                output { name: 'o' data_type: TYPE_INT32 dims: [ 1 ] }";
    let mut config = parse_text("config.pbtxt", text).unwrap();
    let refused = |config: &ModelConfig| {
        let result = validate(config).and_then(|()| validate_io(config));
        result.map_err(|error| error.message)
    };
    let says = |message: &str| Err(message.to_owned());
    assert_eq!(
        refused(&config),
        says("must specify 'version policy' for m")
    );
    normalize(&mut config);
    assert_eq!(refused(&config), Ok(()));
    config.batch_input.push(conch_proto::inference::BatchInput {
        kind: 99,
        ..Default::default()
    });
    assert_eq!(
        refused(&config),
        says("unknown batch input kind '99' for m")
    );
    config.batch_input.clear();
    config
        .batch_output
        .push(conch_proto::inference::BatchOutput {
            kind: 99,
            ..Default::default()
        });
    assert_eq!(
        refused(&config),
        says("unknown batch output kind '99' for m")
    );
}

/// Text and refusal; no refusal if empty.
const TABLE: &[(&str, &str)] = &[
    (
        r#"platform: "weird""#,
        "unexpected platform type 'weird' for m",
    ),
    (
        r#"platform: "onnxruntime_onnx" backend: "tensorrt""#,
        "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, tensorrt",
    ),
    (
        r#"platform: "x" backend: "pytorch""#,
        "unexpected 'platform' and 'backend' pair, got:x, pytorch",
    ),
    (
        r#"backend: "onnxruntime" platform: "x""#,
        "unexpected 'platform' and 'backend' pair, got:x, onnxruntime",
    ),
    (
        r#"backend: "b" max_batch_size: -1"#,
        "'max_batch_size' must be non-negative value for m",
    ),
    (
        r#"platform: "ensemble" backend: "x""#,
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    (
        r#"platform: "ensemble""#,
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
    ),
    (
        r#"backend: "python" platform: "anything" max_batch_size: -5"#,
        "'max_batch_size' must be non-negative value for m",
    ),
    (
        r#"backend: "b" dynamic_batching { preferred_batch_size: 0 }"#,
        "dynamic batching preferred size must be positive for m",
    ),
    (
        r#"backend: "b" dynamic_batching { preferred_batch_size: 4 }"#,
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (
        r#"backend: "b" max_batch_size: 4 dynamic_batching { preferred_batch_size: [4, -1] }"#,
        "dynamic batching preferred size must be positive for m",
    ),
    (
        r#"backend: "b" max_batch_size: 2 dynamic_batching { preferred_batch_size: [1, 4] }"#,
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (
        r#"backend: "b" dynamic_batching { priority_levels: 2 }"#,
        "default priority level must be in range [1, 2] for m",
    ),
    (
        r#"backend: "b" dynamic_batching { priority_levels: 2 default_priority_level: 3 }"#,
        "default priority level must be in range [1, 2] for m",
    ),
    (
        r#"backend: "b" dynamic_batching { priority_levels: 2 default_priority_level: 2
           priority_queue_policy { key: 3 value { } } }"#,
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        r#"backend: "b" dynamic_batching { priority_levels: 2 default_priority_level: 2
           priority_queue_policy { value { } } }"#,
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        r#"backend: "b" dynamic_batching { priority_levels: 2 default_priority_level: 2
           preserve_ordering: true }"#,
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        r#"backend: "b" dynamic_batching { preserve_ordering: true default_queue_policy {
           timeout_action: DELAY default_timeout_microseconds: 1 } }"#,
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        r#"backend: "b" dynamic_batching { preserve_ordering: true priority_levels: 1
           default_priority_level: 1 priority_queue_policy { key: 1 value { timeout_action: DELAY
           default_timeout_microseconds: 1 } } }"#,
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        r#"backend: "b" sequence_batching { } response_cache { enable: true }"#,
        "Response Cache does not currently support model m with sequence batching scheduler. \
         Please disable the response cache.",
    ),
    (
        r#"backend: "b" model_transaction_policy { decoupled: true } response_cache { enable:
           true }"#,
        "Response Cache does not currently support model m with 'decoupled' transaction policy. \
         Please disable the response cache.",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { } }"#,
        "sequence batching control tensor must have a name for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "S" } control_input { name: "S"
           } }"#,
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "S" control { kind:
           CONTROL_SEQUENCE_START } } }"#,
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or \
         'bool_false_true' for CONTROL_SEQUENCE_START for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "S" control { kind:
           CONTROL_SEQUENCE_START int32_false_true: [0,1] fp32_false_true: [0,1] } } }"#,
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
         'bool_false_true' for CONTROL_SEQUENCE_START for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "S" control { kind:
           CONTROL_SEQUENCE_START int32_false_true: [0] } } }"#,
        "sequence batching control 'int32_false_true' must have exactly 2 entries for \
         CONTROL_SEQUENCE_START for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "S" control { kind:
           CONTROL_SEQUENCE_START fp32_false_true: [0,1,2] } } }"#,
        "sequence batching control 'fp32_false_true' must have exactly 2 entries for \
         CONTROL_SEQUENCE_START for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "S" control { kind:
           CONTROL_SEQUENCE_START bool_false_true: [true] } } }"#,
        "sequence batching control 'bool_false_true' must have exactly 2 entries for \
         CONTROL_SEQUENCE_START for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "S" control { kind:
           CONTROL_SEQUENCE_START bool_false_true: [false,true] } } control_input { name: "T"
           control { kind: CONTROL_SEQUENCE_START bool_false_true: [false,true] } } }"#,
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "C" control { kind:
           CONTROL_SEQUENCE_CORRID } } }"#,
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are \
         TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "C" control { kind:
           CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }"#,
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are \
         TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "C" control { kind:
           CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 int32_false_true: [1] } } }"#,
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or \
         'bool_false_true' for CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        r#"backend: "b" sequence_batching { control_input { name: "C" control { kind:
           CONTROL_SEQUENCE_END bool_false_true: [false,true] fp32_false_true: 1 } } }"#,
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
         'bool_false_true' for CONTROL_SEQUENCE_END for m",
    ),
    (
        r#"backend: "b" sequence_batching { oldest { preferred_batch_size: 0 } }"#,
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        r#"backend: "b" sequence_batching { oldest { preferred_batch_size: 2 } }"#,
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    (
        r#"backend: "b" sequence_batching { direct { minimum_slot_utilization: 1.5 } }"#,
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    (
        r#"backend: "b" sequence_batching { direct { minimum_slot_utilization: -0.1 } }"#,
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling {  }"#,
        "must specify 'step' for ensemble 'm'",
    ),
    (
        r#"platform: "x" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y"
           data_type: TYPE_FP32 dims: 1 } backend: "b" ensemble_scheduling { step { model_name:
           "m" model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value:
           "y" } } }"#,
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "y" }
           }  } instance_group { }"#,
        "instance group should not be specified for ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "y" }
           }  } optimization { }"#,
        "optimization should not be specified for ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "y" }
           }  } model_warmup { }"#,
        "model_warmup can not be specified for ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: ""
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "y" }
           }  }"#,
        "must specify 'model_name' in step 0 of ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1  output_map { key: "b" value: "y" } }  }"#,
        "must specify 'input_map' in step 0 of ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" }  }  }"#,
        "must specify 'output_map' in step 0 of ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "y" }
           } step { model_name: "n" model_version: -1 input_map { key: "a" value: "x" }
           output_map { key: "b" value: "y" } }  }"#,
        "ensemble tensor 'y' can appear in an output map only once for ensemble 'm' step 1",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "z" } output_map { key: "b" value: "y" }
           }  }"#,
        "ensemble input 'x' for ensemble m' is not used",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } input_map { key: "c" value: "z" }
           output_map { key: "b" value: "y" } }  }"#,
        "output 'y' for ensemble 'm' is not written: at least one of its depending tensors, 'z', \
         is not connected",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } input { name:
           "x2" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }
           ensemble_scheduling { step { model_name: "m" model_version: -1 input_map { key: "a"
           value: "x" } output_map { key: "b" value: "y" } }  }"#,
        "ensemble input 'x2' for ensemble m' is not used",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } output { name: "y2" data_type: TYPE_FP32 dims: 1 }
           ensemble_scheduling { step { model_name: "m" model_version: -1 input_map { key: "a"
           value: "x" } output_map { key: "b" value: "y" } }  }"#,
        "ensemble output 'y2' for ensemble m' is not used",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "y" }
           output_map { key: "c" value: "spare" } }  }"#,
        "ensemble tensor 'spare' is unused in ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } input_map { key: "r" value: "loop"
           } output_map { key: "b" value: "mid" } } step { model_name: "n" model_version: -1
           input_map { key: "a" value: "mid" } output_map { key: "b" value: "loop" } output_map {
           key: "c" value: "y" } }  }"#,
        "output 'y' for ensemble 'm' is not written: at least one of its depending tensors, \
         'loop', is not connected",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "y" }
           } step { model_name: "n" model_version: -1 input_map { key: "q" value: "nowhere" }
           output_map { key: "b" value: "z" } }  }"#,
        "ensemble tensor 'nowhere' is unused in ensemble 'm'",
    ),
    (
        r#"platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name:
           "y" data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: "m"
           model_version: -1 input_map { key: "a" value: "x" } output_map { key: "b" value: "q" }
           } step { model_name: "n" model_version: -1 input_map { key: "a" value: "q" } input_map
           { key: "b" value: "nowhere" } output_map { key: "c" value: "r" } } step { model_name:
           "o" model_version: -1 input_map { key: "a" value: "r" } output_map { key: "b" value:
           "y" } }  }"#,
        "output 'y' for ensemble 'm' is not written: at least one of its depending tensors, \
         'nowhere', is not connected",
    ),
    (
        r#"backend: "b" input { }"#,
        "model input must specify 'name' for m",
    ),
    (
        r#"backend: "b" input { name: "a" }"#,
        "model input 'a' must specify 'data_type' for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 }"#,
        "model input 'a' must specify 'dims' for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 0 }"#,
        "model input 'a' dimension must be integer >= 1, or -1 to indicate a variable-size \
         dimension for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: -2 }"#,
        "model input 'a' dimension must be integer >= 1, or -1 to indicate a variable-size \
         dimension for m",
    ),
    (
        r#"backend: "b" output { }"#,
        "model output must specify 'name' for m",
    ),
    (
        r#"backend: "b" output { name: "o" data_type: TYPE_FP32 }"#,
        "model output 'o' must specify 'dims' for m",
    ),
    (
        r#"backend: "b" output { name: "o" data_type: TYPE_FP32 dims: [2, 0] }"#,
        "model output 'o' dimension must be integer >= 1, or -1 to indicate a variable-size \
         dimension for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 reshape { } }"#,
        "model input 'a' cannot have empty reshape for non-batching model as scalar tensors are \
         not supported for m",
    ),
    (
        r#"backend: "b" max_batch_size: 1 input { name: "a" data_type: TYPE_FP32 dims: 2 reshape
           { } }"#,
        "model input 'a' has different size for dims and reshape for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 2 reshape { shape: 0 } }"#,
        "model input 'a' reshape dimensions must be integer >= 1, or -1 to indicate a \
         variable-size dimension for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [2,3] reshape { shape: [2,2]
           } }"#,
        "model input 'a' has different size for dims and reshape for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [2,-1] reshape { shape: [4]
           } }"#,
        "model input 'a' has different size for dims and reshape for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [2,-1] reshape { shape:
           [-1,-1] } }"#,
        "model input 'a' has different number of variable-size dimensions for dims and reshape for \
         m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [2,-1,6] reshape { shape:
           [2,-1,5] } }"#,
        "model input 'a' has different size for dims and reshape for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [4294967296,4294967296,2]
           reshape { shape: [4] } }"#,
        "element count for tensor 'a dims' exceeds maximum size of 9223372036854775807 for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [2,4,-1,6] reshape { shape:
           [8,-1,1,5] } }"#,
        "model input 'a' has different size for dims and reshape for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [2,3] format: FORMAT_NCHW }"#,
        "model input NHWC/NCHW require 3 dims for m",
    ),
    (
        r#"backend: "b" input
           { name: "a" data_type: TYPE_FP32 dims: [2,3] is_shape_tensor: true }"#,
        "shape tensors are only supported for TensorRT platform for m",
    ),
    (
        r#"backend: "b" output { name: "a" data_type: TYPE_FP32 dims: [2,3] is_shape_tensor: true
           }"#,
        "shape tensors are only supported for TensorRT platform for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: [2,3]
           is_non_linear_format_io: true }"#,
        "Non-linear IO format is only supported for the TensorRT platform for m",
    ),
    (
        r#"platform: "tensorrt_plan" backend: "tensorrt" input { name: "a" data_type: TYPE_FP32
           dims: [2,3] is_non_linear_format_io: true }"#,
        "Non-linear IO format input requires 3 dims for m",
    ),
    (
        r#"platform: "tensorrt_plan" backend: "tensorrt" output { name: "a" data_type: TYPE_FP32
           dims: [2,3] is_non_linear_format_io: true }"#,
        "Non-linear IO format output requires 3 dims for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } batch_input { }"#,
        "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } batch_input {
           source_input: ["a","a"] }"#,
        "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2 for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } batch_input {
           source_input: "a" }"#,
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } batch_input {
           source_input: "b" data_type: TYPE_FP32 }"#,
        "unknown source input name 'b' for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } output { name: "o"
           data_type: TYPE_FP32 dims: 1 } batch_output { }"#,
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } output { name: "o"
           data_type: TYPE_FP32 dims: 1 } batch_output { source_input: "b" }"#,
        "unknown source input name 'b' for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } output { name: "o"
           data_type: TYPE_FP32 dims: 1 } batch_output { source_input: "a" target_name: "p" }"#,
        "unknown target output name 'p' for m",
    ),
    (
        r#"backend: "b" input { name: "a" data_type: TYPE_FP32 dims: 1 } output { name: "o"
           data_type: TYPE_FP32 dims: 1 } batch_output { source_input: "a" target_name: ["o","o"]
           }"#,
        "target output name 'o' can only be specified once for m",
    ),
    (r#"backend: "pytorch" platform: "torch_aoti""#, ""),
    (
        r#"backend: "b" model_metrics { metric_control { } }"#,
        "metric control must specify 'metric_identifier'",
    ),
    (
        r#"backend: "b" model_metrics { metric_control { metric_identifier { } } }"#,
        "metric identifier must specify non-empty 'family'",
    ),
    (
        r#"backend: "b" model_metrics { metric_control { metric_identifier { family: "f" } } }"#,
        "metric control must specify 'histogram_options'",
    ),
    (
        r#"backend: "b" model_metrics { metric_control { metric_identifier { family: "f" }
           histogram_options { } } }"#,
        "histogram options must specify non-empty 'buckets'",
    ),
    (
        r#"backend: "b" model_metrics { metric_control { metric_identifier { family: "f" }
           histogram_options { buckets: [ -5.0, -2, 0, 3.5, 5 ] } } }"#,
        "",
    ),
    (
        r#"backend: "b" sequence_batching { direct { minimum_slot_utilization: nan } }"#,
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
];
