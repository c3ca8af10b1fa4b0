//! Tables of texts: what is read as what, what is refused how. The refusals are those of Triton
//! 2.51 for the same files; its places may lie one token later.

use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
};
use prost_reflect::{DescriptorPool, Value};

use super::*;
use crate::to_json;

#[test]
fn equal_texts_are_read_alike() {
    // Each group is several ways to write one configuration; the first is in plain protobuf form.
    let groups: &[&[&str]] = &[
        &[
            r#"input { name: "a" dims: 1 dims: 2 } input { name: "b" }"#,
            r#"input [ { name: "a" dims: [ 1, 2 ] }, { name: "b" } ]"#,
            r#"input: [ < name: "a", dims: [1], dims: 2; >, { name: 'b' } ]"#,
            "input{name:'a'dims:[1,2]}input<name:\"b\">",
            "# head\ninput [\n  {\n    name: \"a\" # tail\n    dims: [ 1, 2 ]\n  },\n  \
             { name: \"b\" }\n]\n",
            "\u{FEFF}input [{name:\"\" \"a\" dims: [0x1, 02]} , {name: \"\\142\"}];",
        ],
        &[
            r#"dynamic_batching { preserve_ordering: true max_queue_delay_microseconds: 16 }"#,
            "dynamic_batching: { preserve_ordering: True, max_queue_delay_microseconds: 0x10, }",
            "dynamic_batching < preserve_ordering: t; max_queue_delay_microseconds: 020; >",
            "dynamic_batching { preserve_ordering: 1 max_queue_delay_microseconds: 16 }",
        ],
        &[
            r#"parameters { key: "a" value { string_value: "x" } } parameters { key: "b" value {
               } }"#,
            r#"parameters: { key: "a", value: { string_value: "x" } } parameters: { key: "b" }"#,
            r#"parameters [ { key: "b" }, { value < string_value: 'x' > key: "a" } ]"#,
            r#"parameters { key: "a" } parameters { key: "b" } parameters { key: "a" value {
               string_value: "x" } }"#,
        ],
        &[
            "instance_group { kind: KIND_CPU count: 2 } optimization { graph { level: -1 } }",
            "instance_group [ { kind: 2 count: 2 } ] optimization { graph { level: - 1 } }",
            "optimization: { graph: { level : -0x1 } } instance_group: { count: 02, kind: 0x2 }",
        ],
        &[
            "sequence_batching \
             { direct { minimum_slot_utilization: 0.5 } \
             control_input { control { fp32_false_true: [inf, -1] } } }",
            "sequence_batching \
             { direct { minimum_slot_utilization: .5f } \
             control_input { control { fp32_false_true: [Infinity, -1.0] } } }",
            "sequence_batching \
             { direct { minimum_slot_utilization: 5e-1 } \
             control_input { control { fp32_false_true: 1e999 fp32_false_true: [-1F] } } }",
        ],
        &[
            "",
            "  \t\r\n",
            "# nothing",
            "input [ ] parameters: []",
            "max_batch_size: 0 max_batch_size: 0",
        ],
    ];
    for group in groups {
        let expected = parse_text("f", group[0]).expect(group[0]);
        for text in *group {
            assert_eq!(parse_text("f", text).as_ref(), Ok(&expected), "{text}");
        }
    }
}

#[test]
fn values_are_read_exactly() {
    let text = r#"
        name: "\"quoted\" \303\251 \u00e9 \x41" ' it''s'
        max_batch_size: -2147483648
        input { dims: [ -9223372036854775808, 9223372036854775807 ] data_type: TYPE_BF16 format:
          FORMAT_NCHW optional: t }
        dynamic_batching { max_queue_delay_microseconds: 18446744073709551615
          priority_queue_policy { key: 010 value { max_queue_size: 4294967295 timeout_action:
          DELAY } } }
        model_warmup { inputs { key: "a" value { zero_data: false } } }
        model_metrics { metric_control { histogram_options { buckets: [ -5.0, -2, 0, 3.5, nan ] }
          } }
    "#;
    let expected = concat!(
        r#"{"name":"\"quoted\" é é A its","platform":"","backend":"","runtime":"","#,
        r#""max_batch_size":-2147483648,"input":[{"name":"","data_type":"TYPE_BF16","#,
        r#""format":"FORMAT_NCHW","dims":[-9223372036854775808,9223372036854775807],"#,
        r#""is_shape_tensor":false,"allow_ragged_batch":false,"optional":true,"#,
        r#""is_non_linear_format_io":false}],"output":[],"batch_input":[],"batch_output":[],"#,
        r#""dynamic_batching":{"preferred_batch_size":[],"#,
        r#""max_queue_delay_microseconds":18446744073709551615,"preserve_ordering":false,"#,
        r#""priority_levels":0,"default_priority_level":0,"#,
        r#""priority_queue_policy":{"8":{"timeout_action":"DELAY","#,
        r#""default_timeout_microseconds":0,"allow_timeout_override":false,"#,
        r#""max_queue_size":4294967295}}},"instance_group":[],"default_model_filename":"","#,
        r#""cc_model_filenames":{},"metric_tags":{},"parameters":{},"#,
        r#""model_warmup":[{"name":"","batch_size":0,"#,
        r#""inputs":{"a":{"data_type":"TYPE_INVALID","dims":[],"zero_data":false}},"#,
        r#""count":0}],"#,
        r#""model_metrics":{"metric_control":[{"histogram_options":{"buckets":[-5,-2,0,3.5,"#,
        r#""NaN"]}}]}}"#
    );
    let config = parse_text("f", text).unwrap();
    assert_eq!(to_json(&config), expected);
}

/// A text, and why it is refused.
const REFUSALS: &[(&str, &str)] = &[
    (
        "foo: 1",
        "1:1: Message type \"inference.ModelConfig\" has no field named \"foo\".",
    ),
    (
        "\n\n  input { nme: 'b' }",
        "3:11: input: Message type \"inference.ModelInput\" has no field named \"nme\".",
    ),
    (
        "max_batch_size 1",
        "1:16: max_batch_size: Expected \":\", found \"1\".",
    ),
    (
        "max_batch_size: 2147483648",
        "1:17: max_batch_size: Integer out of range (2147483648)",
    ),
    (
        "max_batch_size: -2147483649",
        "1:18: max_batch_size: Integer out of range (2147483649)",
    ),
    (
        "max_batch_size: 1.0",
        "1:17: max_batch_size: Expected integer, got: 1.0",
    ),
    (
        "max_batch_size: '1'",
        "1:17: max_batch_size: Expected integer, got: '1'",
    ),
    (
        "max_batch_size: 08",
        "1:18: max_batch_size: Numbers starting with leading zero must be in octal.",
    ),
    (
        "max_batch_size: +1",
        "1:17: max_batch_size: Expected integer, got: +",
    ),
    (
        "max_batch_size:1name:'x'",
        "1:17: max_batch_size: Need space between number and identifier.",
    ),
    ("max_batch_size: 4}", "1:18: Expected identifier, got: }"),
    ("max_batch_size: 1,,", "1:19: Expected identifier, got: ,"),
    (
        "max_batch_size: 4 max_batch_size: 4",
        "1:19: max_batch_size: Non-repeated field \"max_batch_size\" is specified multiple times.",
    ),
    (
        "dynamic_batching {} dynamic_batching {}",
        "1:21: dynamic_batching: Non-repeated field \"dynamic_batching\" is specified multiple \
         times.",
    ),
    (
        "dynamic_batching {} sequence_batching {}",
        "1:21: sequence_batching: Field \"sequence_batching\" is specified along with field \
         \"dynamic_batching\", another member of oneof \"scheduling_choice\".",
    ),
    (
        "dynamic_batching { max_queue_delay_microseconds: -1 }",
        "1:50: dynamic_batching.max_queue_delay_microseconds: Expected integer, got: -",
    ),
    (
        "dynamic_batching { preserve_ordering: TRUE }",
        "1:39: dynamic_batching.preserve_ordering: Invalid value for boolean field \
         \"preserve_ordering\". Value: \"TRUE\".",
    ),
    (
        "dynamic_batching { preserve_ordering: 2 }",
        "1:39: dynamic_batching.preserve_ordering: Integer out of range (2)",
    ),
    (
        "dynamic_batching",
        "1:17: dynamic_batching: Expected \"{\", found \"end of file\".",
    ),
    (
        "dynamic_batching {",
        "1:19: dynamic_batching: Expected \"}\", found \"end of file\".",
    ),
    (
        "input < name: 'a' }",
        "1:19: input: Expected \">\", found \"}\".",
    ),
    (
        "input { dims: [1 2] }",
        "1:18: input.dims: Expected \",\", found \"2\".",
    ),
    (
        "input { dims: [1,] }",
        "1:18: input.dims: Expected integer, got: ]",
    ),
    (
        "input { dims [1] }",
        "1:14: input.dims: Expected \":\", found \"[\".",
    ),
    (
        "input { data_type: TYPE_FLOAT }",
        "1:20: input.data_type: Unknown enumeration value of \"TYPE_FLOAT\" for field \
         \"data_type\".",
    ),
    (
        "input { data_type: 99 }",
        "1:20: input.data_type: Unknown enumeration value of \"99\" for field \"data_type\".",
    ),
    (
        "input { data_type: 'TYPE_FP32' }",
        "1:20: input.data_type: Expected integer or identifier, got: 'TYPE_FP32'",
    ),
    (
        "instance_group [ { kind: KIND_CPU }; { } ]",
        "1:36: instance_group: Expected \",\", found \";\".",
    ),
    ("name: abc", "1:7: name: Expected string, got: abc"),
    (
        "name: 'a\nb'",
        "1:9: name: String literals cannot cross line boundaries.",
    ),
    ("name: '\\xff'", "1:7: name: String is not valid UTF-8."),
    (
        "name: 'x' '\\q'",
        "1:11: name: Invalid escape sequence in string literal.",
    ),
    ("name: [ 'x' ]", "1:7: name: Expected string, got: ["),
    (
        "parameters { key: 'a' key: 'b' }",
        "1:23: parameters.key: Non-repeated field \"key\" is specified multiple times.",
    ),
    (
        "dynamic_batching { priority_queue_policy { key: '1' } }",
        "1:49: dynamic_batching.priority_queue_policy.key: Expected integer, got: '1'",
    ),
    (
        "sequence_batching { direct { minimum_slot_utilization: 01 } }",
        "1:56: sequence_batching.direct.minimum_slot_utilization: Expect a decimal number, got: 01",
    ),
    (
        "sequence_batching { direct { minimum_slot_utilization: infinit } }",
        "1:56: sequence_batching.direct.minimum_slot_utilization: Expected double, got: infinit",
    ),
    (
        "[foo.bar]: 1",
        "1:1: Message type \"inference.ModelConfig\" has no extensions.",
    ),
    ("1: 2", "1:1: Expected identifier, got: 1"),
    (
        "\u{1}",
        "1:1: Invalid control characters encountered in text.",
    ),
    (
        "max_batch_size: 1 é",
        "1:19: max_batch_size: Interpreting non ascii codepoint 195.",
    ),
];

#[test]
fn refusals_name_line_column_and_field() {
    for (text, expected) in REFUSALS {
        let message = parse_text("config.pbtxt", text).expect_err(text).message;
        assert_eq!(
            message,
            format!("failed to read text proto from config.pbtxt: {expected}"),
            "{text}"
        );
    }
}

#[test]
fn nesting_has_a_bound() {
    // No configuration can nest deep, so a schema that could: message R { R r = 1; }
    let field = FieldDescriptorProto {
        name: Some("r".to_owned()),
        number: Some(1),
        label: Some(Label::Optional as i32),
        r#type: Some(Type::Message as i32),
        type_name: Some(".R".to_owned()),
        ..FieldDescriptorProto::default()
    };
    let message = DescriptorProto {
        name: Some("R".to_owned()),
        field: vec![field],
        ..DescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("r.proto".to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message],
        ..FileDescriptorProto::default()
    };
    let pool =
        DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file: vec![file] }).unwrap();
    let descriptor = pool.get_message_by_name("R").unwrap();
    let nested = |depth: usize| "r{".repeat(depth) + &"}".repeat(depth);
    let read = parse::parse(nested(100).as_bytes(), descriptor.clone()).unwrap();
    assert!(matches!(
        read.get_field_by_name("r").as_deref(),
        Some(Value::Message(_))
    ));
    for depth in [101, 100_000] {
        let fault = parse::parse(nested(depth).as_bytes(), descriptor.clone()).unwrap_err();
        assert!(
            fault
                .message
                .ends_with("Message is too deep, the limit is 100."),
            "{}",
            fault.message
        );
    }
}

#[test]
fn files_are_read_and_missing_ones_named() {
    let folder = std::env::temp_dir().join(format!("conch-config-text-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("config.pbtxt");
    std::fs::write(&path, "name: \"m\"").unwrap();
    assert_eq!(load_file(&path, false).unwrap().name, "m");
    std::fs::write(&path, b"name: \"m\" \xFF").unwrap();
    let message = load_file(&path, false).unwrap_err().message;
    assert_eq!(
        message,
        format!(
            "failed to read text proto from {}: 1:11: name: Interpreting non ascii codepoint 255.",
            path.display()
        )
    );
    let json = folder.join("config.json");
    std::fs::write(&json, b"{\"name\":\"\xFF\"}").unwrap();
    for (path, expands) in [(&json, false), (&json, true), (&path, true)] {
        let message = load_file(path, expands).unwrap_err().message;
        assert_eq!(message, format!("{} is not text in UTF-8", path.display()));
    }
    std::fs::write(&json, "{").unwrap();
    let message = load_file(&json, false).unwrap_err().message;
    let begin = format!("failed to read {}: EOF while parsing", json.display());
    assert!(message.starts_with(&begin), "{message}");
    std::fs::remove_dir_all(&folder).unwrap();
    let message = load_file(&path, false).unwrap_err().message;
    assert!(
        message.starts_with(&format!(
            "failed to open text file for read {}: ",
            path.display()
        )),
        "{message}"
    );
}

#[test]
fn refusals_have_a_place() {
    let refusal = parse_text("f", "# nothing\n  input { nme: 'x' }").unwrap_err();
    let place = refusal.place.expect("the text is at fault");
    assert_eq!((place.line, place.column), (2, 11));
    let whole = format!("failed to read text proto from f: 2:11: {}", place.what);
    assert_eq!(refusal.message, whole);
}
