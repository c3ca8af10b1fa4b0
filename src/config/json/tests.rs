//! Tables of JSON: what upstream prints, what is read and what refused.

use conch_proto::inference::ModelConfig;
use prost_reflect::Kind;

use super::*;
use crate::{Gpus, normalize, parse_text, resolve_instance_groups};

/// Configurations and what Triton 2.51 answers to `GET /v2/models/m/config` for them (maps by key).
const PRINTED: &[(&str, &str)] = &[
    (
        r#"name: "m" backend: "python" default_model_filename: "model.py""#,
        concat!(
            r#"{"name":"m","platform":"","backend":"python","runtime":"","#,
            r#""version_policy":{"latest":{"num_versions":1}},"max_batch_size":0,"input":[],"#,
            r#""output":[],"batch_input":[],"batch_output":[],"#,
            r#""optimization":{"priority":"PRIORITY_DEFAULT","#,
            r#""input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"#,
            r#""gather_kernel_buffer_threshold":0,"eager_batching":false},"#,
            r#""instance_group":[{"name":"m","kind":"KIND_CPU","count":1,"gpus":[],"#,
            r#""secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],"#,
            r#""default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"#,
            r#""parameters":{},"model_warmup":[]}"#
        ),
    ),
    (
        r#"
name: "m" backend: "python" default_model_filename: "model.py"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3, -1 ] reshape { shape: [ 1, 3, -1 ] } } ]
input { name: "b" data_type: TYPE_STRING dims: 1 optional: true format: FORMAT_NONE }
output [ { name: "o" data_type: TYPE_INT64 dims: [ 1 ] label_filename: "" } ]
dynamic_batching { priority_levels: 2 default_priority_level: 1 default_queue_policy {
  timeout_action: DELAY default_timeout_microseconds: 5 } priority_queue_policy { key: 2 value {
  max_queue_size: 3 } } }
parameters { key: "zz" value: { string_value: "1" } }
parameters { key: "aa" value: { string_value: "q\"\303\251\n</x>" } }
instance_group [ { count: 1 secondary_devices { device_id: 7 } rate_limiter { resources { name:
  "r" count: 2 } } } ]
optimization { cuda { graph_spec { batch_size: 1 input { key: "a" value { dim: [ 3, 4 ] } }
  graph_lower_bound { batch_size: 1 input { key: "a" value { dim: [3, 1] } } } } }
  execution_accelerators { gpu_execution_accelerator { name: "tensorrt" parameters { key: "p"
  value: "q" } } } }
model_warmup { name: "w" batch_size: 0 inputs { key: "a" value { data_type: TYPE_FP32 dims: [3,
  2] zero_data: true } } inputs { key: "b" value { data_type: TYPE_STRING dims: 1 random_data:
  false } } }
cc_model_filenames { key: "7.0" value: "x" }
metric_tags { key: "k" value: "v" }
model_operations { op_library_filename: [ "x.so" ] }
response_cache { }
version_policy { specific { versions: [ 1 ] } }
batch_input { kind: BATCH_ELEMENT_COUNT source_input: "a" data_type: TYPE_FP32 target_name: "n" }
model_transaction_policy { }
"#,
        concat!(
            r#"{"name":"m","platform":"","backend":"python","runtime":"","#,
            r#""version_policy":{"specific":{"versions":[1]}},"max_batch_size":8,"#,
            r#""input":[{"name":"a","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[3,"#,
            r#"-1],"reshape":{"shape":[1,3,-1]},"is_shape_tensor":false,"#,
            r#""allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false},"#,
            r#"{"name":"b","data_type":"TYPE_STRING","format":"FORMAT_NONE","dims":[1],"#,
            r#""is_shape_tensor":false,"allow_ragged_batch":false,"optional":true,"#,
            r#""is_non_linear_format_io":false}],"output":[{"name":"o","#,
            r#""data_type":"TYPE_INT64","dims":[1],"label_filename":"","#,
            r#""is_shape_tensor":false,"is_non_linear_format_io":false}],"#,
            r#""batch_input":[{"kind":"BATCH_ELEMENT_COUNT","target_name":["n"],"#,
            r#""data_type":"TYPE_FP32","source_input":["a"]}],"batch_output":[],"#,
            r#""optimization":{"priority":"PRIORITY_DEFAULT","cuda":{"graphs":false,"#,
            r#""busy_wait_events":false,"graph_spec":[{"batch_size":1,"#,
            r#""input":{"a":{"dim":["3","4"]}},"graph_lower_bound":{"batch_size":1,"#,
            r#""input":{"a":{"dim":["3","1"]}}}}],"output_copy_stream":false},"#,
            r#""execution_accelerators":{"gpu_execution_accelerator":[{"name":"tensorrt","#,
            r#""parameters":{"p":"q"}}],"cpu_execution_accelerator":[]},"#,
            r#""input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"#,
            r#""gather_kernel_buffer_threshold":0,"eager_batching":false},"#,
            r#""dynamic_batching":{"preferred_batch_size":[8],"#,
            r#""max_queue_delay_microseconds":0,"preserve_ordering":false,"#,
            r#""priority_levels":2,"default_priority_level":1,"#,
            r#""default_queue_policy":{"timeout_action":"DELAY","#,
            r#""default_timeout_microseconds":5,"allow_timeout_override":false,"#,
            r#""max_queue_size":0},"priority_queue_policy":{"2":{"timeout_action":"REJECT","#,
            r#""default_timeout_microseconds":0,"allow_timeout_override":false,"#,
            r#""max_queue_size":3}}},"instance_group":[{"name":"m_0","kind":"KIND_CPU","#,
            r#""count":1,"rate_limiter":{"resources":[{"name":"r","global":false,"count":2}],"#,
            r#""priority":0},"gpus":[],"secondary_devices":[{"kind":"KIND_NVDLA","#,
            r#""device_id":"7"}],"profile":[],"passive":false,"host_policy":""}],"#,
            r#""default_model_filename":"model.py","cc_model_filenames":{"7.0":"x"},"#,
            r#""metric_tags":{"k":"v"},"parameters":{"aa":{"string_value":"q\"é\n</x>"},"#,
            r#""zz":{"string_value":"1"}},"model_warmup":[{"name":"w","batch_size":0,"#,
            r#""inputs":{"a":{"data_type":"TYPE_FP32","dims":[3,2],"zero_data":true},"#,
            r#""b":{"data_type":"TYPE_STRING","dims":[1],"random_data":false}},"count":0}],"#,
            r#""model_operations":{"op_library_filename":["x.so"]},"#,
            r#""model_transaction_policy":{"decoupled":false},"#,
            r#""response_cache":{"enable":false}}"#
        ),
    ),
    (
        r#"
name: "m" backend: "python" default_model_filename: "model.py"
max_batch_size: 2
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
output [ { name: "o" data_type: TYPE_INT64 dims: [ 1 ]  } ]
sequence_batching { direct { minimum_slot_utilization: 0.7 }
 control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
 control_input { name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [-0.5, 1000000]
   } }
 control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [123456789,
   1e20] } }
 state { input_name: "i" output_name: "o2" data_type: TYPE_FP32 dims: [2] initial_state {
   data_type: TYPE_FP32 dims: [2] zero_data: true name: "init" } }
}
"#,
        concat!(
            r#"{"name":"m","platform":"","backend":"python","runtime":"","#,
            r#""version_policy":{"latest":{"num_versions":1}},"max_batch_size":2,"#,
            r#""input":[{"name":"a","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[3,"#,
            r#"-1],"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"#,
            r#""is_non_linear_format_io":false}],"output":[{"name":"o","#,
            r#""data_type":"TYPE_INT64","dims":[1],"label_filename":"","#,
            r#""is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"#,
            r#""batch_output":[],"optimization":{"priority":"PRIORITY_DEFAULT","#,
            r#""input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"#,
            r#""gather_kernel_buffer_threshold":0,"eager_batching":false},"#,
            r#""sequence_batching":{"direct":{"max_queue_delay_microseconds":0,"#,
            r#""minimum_slot_utilization":0.7},"max_sequence_idle_microseconds":1000000,"#,
            r#""control_input":[{"name":"S","control":[{"kind":"CONTROL_SEQUENCE_START","#,
            r#""int32_false_true":[],"fp32_false_true":[0,1],"bool_false_true":[],"#,
            r#""data_type":"TYPE_INVALID"}]},{"name":"E","#,
            r#""control":[{"kind":"CONTROL_SEQUENCE_END","int32_false_true":[],"#,
            r#""fp32_false_true":[-0.5,1000000.0],"bool_false_true":[],"#,
            r#""data_type":"TYPE_INVALID"}]},{"name":"R","#,
            r#""control":[{"kind":"CONTROL_SEQUENCE_READY","int32_false_true":[],"#,
            r#""fp32_false_true":[123456792,100000000000000000000.0],"bool_false_true":[],"#,
            r#""data_type":"TYPE_INVALID"}]}],"state":[{"input_name":"i","output_name":"o2","#,
            r#""data_type":"TYPE_FP32","dims":[2],"initial_state":[{"data_type":"TYPE_FP32","#,
            r#""dims":["2"],"name":"init","zero_data":true}],"#,
            r#""use_same_buffer_for_input_output":false,"use_growable_memory":false}],"#,
            r#""iterative_sequence":false},"instance_group":[{"name":"m","kind":"KIND_CPU","#,
            r#""count":1,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"#,
            r#""host_policy":""}],"default_model_filename":"model.py","#,
            r#""cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}"#
        ),
    ),
];

#[test]
fn configurations_are_printed_byte_by_byte_as_upstream_does() {
    for (text, expected) in PRINTED {
        let mut config = parse_text("f", text).unwrap();
        normalize(&mut config);
        resolve_instance_groups(&mut config, &[], &Gpus::default()).unwrap();
        assert_eq!(to_json(&config), *expected);
        assert_eq!(from_json(expected), Ok(config), "reading back");
    }
}

#[test]
fn an_empty_configuration_is_an_empty_text() {
    assert_eq!(to_json(&ModelConfig::default()), "");
}

#[test]
fn equal_forms_are_read_alike() {
    let groups: &[&[&str]] = &[
        &[
            r#"{"max_batch_size":3}"#,
            r#"{"maxBatchSize":3}"#,
            r#"{"max_batch_size":"3"}"#,
            r#"{"max_batch_size":3.0, "input": null, "dynamic_batching": null}"#,
            r#" { "max_batch_size" : 3e0 , "parameters" : { } , "input" : [ ] } "#,
        ],
        &[
            r#"{"input":[{"data_type":"TYPE_FP32","dims":[1,-1]}]}"#,
            r#"{"input":[{"dataType":"type_fp32","dims":["1","-1"]}]}"#,
            r#"{"input":[{"dims":[1.0,-1],"data_type":11}]}"#,
        ],
        &[
            r#"{"dynamic_batching":{"max_queue_delay_microseconds":18446744073709551615}}"#,
            concat!(
                r#"{"dynamicBatching":{"maxQueueDelayMicroseconds":"18446744073709551615"},"#,
                r#""sequence_batching":null}"#
            ),
        ],
        &[
            r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":0.5}}}"#,
            r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":"0.5"}}}"#,
            r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":5e-1}}}"#,
        ],
        // As libprotobuf reads it; comments beyond that.
        &[
            r#"{"name":"x'y\"\t","max_batch_size":3}"#,
            r#"{name:"x'y\"\t",max_batch_size:3}"#,
            r#"{'name':'x\'y"\t','max_batch_size':3}"#,
            "{ name : 'x\\'y\\\"\t' , $max_batch_size: 3 }"
                .replace('$', "")
                .leak(),
            r#"{"name":"\x'\y\"\t","max_batch_size":3,}"#,
            "// one\n{/* two\n */name:\"x'y\\\"\\t\",// three, 'four'\nmax_batch_size:3,}//",
            "{\"name\":\"x'y\\\"\\t\",\"max_batch_size\":3}\0{]",
        ],
        &[
            r#"{"input":[{"name":"a","dims":[-1]}],"output":[]}"#,
            r#"{"input":{"name":"a","dims":-1},"output":null}"#,
            r#"{"input":[[{"name":"a","dims":["-1",],},],],"output":[null]}"#,
            r#"{input:{name:'a',dims:[[-1],null]},output:[[],[]]}"#,
        ],
    ];
    for group in groups {
        let expected = from_json(group[0]).expect(group[0]);
        for json in *group {
            assert_eq!(from_json(json).as_ref(), Ok(&expected), "{json}");
        }
    }
}

/// A document, and why it is refused.
const REFUSALS: &[(&str, &str)] = &[
    ("", "EOF while parsing a value"),
    (
        "[]",
        "invalid type: sequence, expected an object of inference.ModelConfig",
    ),
    (
        "null",
        "invalid type: null, expected an object of inference.ModelConfig",
    ),
    ("{} x", "trailing characters"),
    (
        r#"{"foo":1}"#,
        r#"message type "inference.ModelConfig" has no field named "foo""#,
    ),
    (
        "{\"input\":[\n{\"nme\":1}]}",
        r#"input: message type "inference.ModelInput" has no field named "nme" at line 2"#,
    ),
    (
        r#"{"max_batch_size":1,"maxBatchSize":1}"#,
        r#"field "max_batch_size" is given more than once"#,
    ),
    (
        r#"{"max_batch_size":2147483648}"#,
        "max_batch_size: number out of range",
    ),
    (
        r#"{"max_batch_size":3.5}"#,
        "max_batch_size: expected an integer",
    ),
    (
        r#"{"max_batch_size":true}"#,
        "max_batch_size: expected an integer",
    ),
    (
        r#"{"max_batch_size":" 3"}"#,
        r#"max_batch_size: expected an integer, got " 3""#,
    ),
    (
        r#"{"max_batch_size":""}"#,
        r#"max_batch_size: expected an integer, got """#,
    ),
    (r#"{"name":1}"#, "name: expected a string"),
    (r#"{"input":1}"#, "input: expected an object"),
    (
        r#"{"input":{"dims":{}}}"#,
        "input.dims: expected a boolean, a number or a string",
    ),
    (
        r#"{"input":[{"dims":["x"]}]}"#,
        r#"input.dims: expected an integer, got "x""#,
    ),
    ("{max_batch_size:08}", "max_batch_size: invalid number"),
    ("{name:x}", "name: expected value"),
    ("{,name:'x'}", "key must be a string"),
    ("{name:'x',,}", "key must be a string"),
    ("{input:[,]}", "input: expected value"),
    ("{name:'x'}}", "trailing characters"),
    ("{name:'x'", "EOF while parsing an object"),
    ("{name:'x}", "name: EOF while parsing a string"),
    ("{/* name:'x'}", "key must be a string"),
    ("{# x\nname:'x'}", "key must be a string"),
    (
        r#"{"input":[{"optional":1}]}"#,
        "input.optional: expected a boolean",
    ),
    (
        r#"{"input":[{"data_type":"TYPE_X"}]}"#,
        r#"input.data_type: unknown enumerator "TYPE_X" of inference.DataType"#,
    ),
    (
        r#"{"input":[{"data_type":99}]}"#,
        "input.data_type: unknown enumerator 99 of inference.DataType",
    ),
    (
        r#"{"input":[{"dims":[9223372036854775808]}]}"#,
        "input.dims: number out of range",
    ),
    (
        r#"{"dynamic_batching":{"max_queue_delay_microseconds":-1}}"#,
        "dynamic_batching.max_queue_delay_microseconds: number out of range",
    ),
    (
        r#"{"dynamic_batching":{},"sequence_batching":{}}"#,
        r#"sequence_batching: "dynamic_batching" excludes it"#,
    ),
    (
        r#"{"dynamic_batching":{"priority_queue_policy":{"x":{}}}}"#,
        r#"dynamic_batching.priority_queue_policy.x: expected an integer, got "x""#,
    ),
    (
        r#"{"parameters":{"a":{},"a":{}}}"#,
        "parameters.a: key is given more than once",
    ),
    (
        r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":1e39}}}"#,
        "sequence_batching.direct.minimum_slot_utilization: number out of range",
    ),
    (
        r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":"half"}}}"#,
        r#"sequence_batching.direct.minimum_slot_utilization: expected a number, got "half""#,
    ),
    (
        r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":true}}}"#,
        "sequence_batching.direct.minimum_slot_utilization: expected a number",
    ),
    (
        r#"{"name":{}}"#,
        "name: invalid type: map, expected a boolean, a number or a string",
    ),
];

#[test]
fn refusals_name_field_line_and_column() {
    for (json, expected) in REFUSALS {
        let error = from_json(json).expect_err(json);
        let (what, line) = error.message.rsplit_once(" at line ").expect(json);
        let (line, column) = line.split_once(" column ").expect(json);
        assert!(column.parse::<usize>().is_ok(), "{json}");
        // Line 1 goes without saying.
        let shown = if line == "1" {
            what.to_owned()
        } else {
            format!("{what} at line {line}")
        };
        assert_eq!(shown, *expected, "{json}");
    }
}

#[test]
fn deep_input_is_refused_without_deep_recursion() {
    for depth in [200, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"input\":", "}")] {
            let json = open.repeat(depth) + &close.repeat(depth);
            assert!(from_json(&json).is_err());
            assert!(from_json(&format!("{{\"name\":{json}}}")).is_err());
        }
    }
}

/// Fields of this type have no case in the writer.
#[test]
fn the_schema_has_no_bytes() {
    let mut messages = vec![crate::schema::model_config()];
    let mut index = 0;
    while let Some(message) = messages.get(index).cloned() {
        index += 1;
        for field in message.fields() {
            match field.kind() {
                Kind::Bytes => panic!("{}", field.full_name()),
                Kind::Message(inner) if !messages.contains(&inner) => messages.push(inner),
                _ => {}
            }
        }
    }
    assert!(messages.len() > 40, "the walk reaches every message");
}

#[test]
fn refusals_have_a_place() {
    let refusal = from_json("{\n  \"no_such\": 1 }").unwrap_err();
    let place = refusal.place.expect("the text is at fault");
    assert_eq!(place.line, 2);
    let whole = format!("{} at line 2 column {}", place.what, place.column);
    assert_eq!(refusal.message, whole);
    // Read in its strict form, in which places are others.
    let refusal = from_json("{ 'no_such': 1 }").unwrap_err();
    assert_eq!(refusal.place, None);
}
