//! What requests are answered with.

use super::*;

#[test]
fn control_operations() {
    check(&get("/v2/health/live"), 200, "");
    check(&get("/v2/health/ready"), 200, "");
    check(&get("/v2/models/echo/ready"), 200, "");
    check(&get("/v2/models/echo/versions/1/ready"), 200, "");
    check(
        &get("/v2/models/mixed"),
        200,
        concat!(
            r#"{"name":"mixed","versions":["1"],"platform":"fake","inputs":[{"name":"A","#,
            r#""datatype":"UINT32","shape":[2,2]},{"name":"B","datatype":"BOOL","#,
            r#""shape":[3]}],"outputs":[{"name":"OUT","datatype":"FP32","shape":[3,2]}]}"#
        ),
    );
    check(
        &get("/v2/models/none"),
        404,
        r#"{"error":"Request for unknown model: 'none' is not found"}"#,
    );
    check(
        &get("/v2/models/echo/versions/9/ready"),
        404,
        r#"{"error":"Request for unknown model: 'echo' version 9 is not found"}"#,
    );
    check(
        &get("/v2/models/none/stats"),
        400,
        r#"{"error":"requested model 'none' is not available"}"#,
    );
    check(&get("/v2/"), 404, r#"{"error":"Not Found"}"#);
    check(&get(ECHO), 405, r#"{"error":"Method Not Allowed"}"#);
    check(
        &post("/v2/health/live", None, b""),
        405,
        r#"{"error":"Method Not Allowed"}"#,
    );
    let (status, _, body) = exchange(&get("/v2/models/echo/config"));
    assert!(
        status == 200 && body.starts_with(b"{\"name\":\"echo\""),
        "{:?}",
        String::from_utf8_lossy(&body)
    );
    let (status, _, body) = exchange(&get("/v2/models/stats"));
    assert!(
        status == 200
            && body.starts_with(b"{\"model_stats\":[{\"name\":\"double\",\"version\":\"1\"")
    );
    for (path, status) in [
        ("/v2/logging", 200),
        ("/v2/trace/setting", 200),
        ("/v2/models/echo/trace/setting", 200),
        ("/v2/models/none/trace/setting", 400),
    ] {
        assert_eq!(exchange(&get(path)).0, status, "{path}");
    }
    let (status, _, body) = exchange(&get("/v2/systemsharedmemory/status"));
    assert_eq!((status, &body[..]), (200, &b"[]"[..]));
}

#[test]
fn operations_with_a_body() {
    check(
        &post("/v2/repository/index", None, br#"{"ready":1}"#),
        400,
        r#"{"error":"Invalid value for 'ready': expected a boolean"}"#,
    );
    let (status, head, body) = exchange(&post("/v2/repository/index", None, br#"{"ready":true}"#));
    assert!(
        head.contains("Content-Type: application/json\r\n"),
        "{head}"
    );
    // It tells what lies in the repositories now: theirs is gone.
    assert_eq!((status, body.as_slice()), (200, &b"[]"[..]));
    assert_eq!(
        exchange(&post("/v2/repository/models/echo/load", None, b"{}")).0,
        503
    );
    for (path, body, status) in [
        ("generate", &b"{\"IN\":[1,2]}"[..], 200),
        ("generate", b"{}", 400),
        ("generate_stream", b"[]", 500),
    ] {
        let path = format!("/v2/models/echo/{path}");
        assert_eq!(exchange(&post(&path, None, body)).0, status, "{path}");
    }
}

#[test]
fn inference_in_json() {
    check(&post(ECHO, None, ECHO_BODY), 200, ECHO_ANSWER);
    check(
        &post(
            "/v2/models/text/infer",
            None,
            r#"{"inputs":[{"name":"IN","shape":[2],"datatype":"BYTES","data":["a\u00e9",""]}]}"#
                .as_bytes(),
        ),
        200,
        "{\"model_name\":\"text\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUT\",\
         \"datatype\":\"BYTES\",\"shape\":[2],\"data\":[\"a\u{e9}\",\"\"]}]}",
    );
}

/// A path, a body, and what it is refused with.
const REFUSED_BODIES: &[(&str, &str, u16, &str)] = &[
    (
        ECHO,
        r#"{bad"#,
        500,
        "failed to parse the request JSON buffer: Missing a name for object member. at 1",
    ),
    (
        ECHO,
        r#"{}"#,
        500,
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
    ),
    (
        ECHO,
        r#"{"inputs":3}"#,
        500,
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    ),
    (
        ECHO,
        r#"{"id":3,"inputs":[]}"#,
        500,
        "Unable to parse 'id': attempt to access JSON non-string as string",
    ),
    (
        ECHO,
        r#"{"inputs":[{"name":"IN","shape":[-1],"datatype":"FP32","data":[1]}]}"#,
        500,
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        ECHO,
        r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"FP31","data":[1]}]}"#,
        400,
        "invalid datatype for input IN",
    ),
    (
        ECHO,
        concat!(
            r#"{"inputs":[{"name":"IN","shape":[9223372036854775807,2],"datatype":"FP32","#,
            r#""data":[1]}]}"#
        ),
        400,
        "invalid shape for input 'IN': shape [9223372036854775807,2] causes total element count \
         to exceed maximum size of 9223372036854775807",
    ),
    (
        ECHO,
        r#"{"inputs":[{"name":"IN","shape":[9223372036854775807],"datatype":"FP32","data":[1]}]}"#,
        400,
        "byte size overflow for input 'IN': element count (9223372036854775807) * data type size \
         (4) exceeds maximum allowed size (9223372036854775807)",
    ),
    (
        ECHO,
        r#"{"inputs":[{"name":"IN","shape":[300000],"datatype":"FP32","data":[1]}]}"#,
        400,
        "JSON input 'IN' has a byte_size (1200000 bytes) that exceeds the maximum allowed value \
         of 1048576 bytes. Use --http-max-input-size to increase the limit.",
    ),
    (
        ECHO,
        r#"{"inputs":[{"name":"IN","shape":[2],"datatype":"FP32"}]}"#,
        400,
        "Input must set only one of the following fields: 'data', 'binary_data_size' in \
         'parameters', 'shared_memory_region' in 'parameters'. But no field is set",
    ),
    (
        ECHO,
        concat!(
            r#"{"parameters":{"triton_x":1},"inputs":[{"name":"IN","shape":[2],"#,
            r#""datatype":"FP32","data":[1,2]}]}"#
        ),
        400,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be \
         specified.",
    ),
    (
        ECHO,
        concat!(
            r#"{"parameters":{"x":[]},"inputs":[{"name":"IN","shape":[2],"#,
            r#""datatype":"FP32","data":[1,2]}]}"#
        ),
        400,
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    (
        ECHO,
        concat!(
            r#"{"parameters":{"priority":-1},"inputs":[{"name":"IN","shape":[2],"#,
            r#""datatype":"FP32","data":[1,2]}]}"#
        ),
        500,
        "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as \
         unsigned-integer",
    ),
    (
        "/v2/models/half/infer",
        r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"FP16","data":[1]}]}"#,
        400,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for \
         input IN",
    ),
    (
        "/v2/models/text/infer",
        r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"BYTES","data":[1]}]}"#,
        500,
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    (
        "/v2/models/none/infer",
        r#"{}"#,
        404,
        "Request for unknown model: 'none' is not found",
    ),
];

/// What follows the shape and type of an input, and what it is refused with.
const REFUSED_INPUTS: &[(&str, u16, &str)] = &[
    (
        r#""data":[1,2,3]}]}"#,
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    (
        r#""data":[1]}]}"#,
        500,
        "Failed to parse 'data' field: shape does not match true shape",
    ),
    (
        r#""data":["a",1]}]}"#,
        500,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        r#""data":[1,2],"parameters":{"binary_data_size":8}}]}"#,
        400,
        "Input must set only one of the following fields: 'data', 'binary_data_size' in \
         'parameters', 'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'",
    ),
    (
        r#""parameters":{"binary_data_size":8}}]}"#,
        400,
        "unexpected size for input 'IN', expecting 8 additional bytes for model 'echo'",
    ),
    (
        r#""parameters":{"shared_memory_region":"r"}}]}"#,
        404,
        "Unable to find shared memory region: 'r'",
    ),
    (
        concat!(
            r#""data":[1,2]}],"outputs":[{"name":"OUT","#,
            r#""parameters":{"shared_memory_region":"r","classification":1}}]}"#
        ),
        400,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
];

#[test]
fn inference_errors() {
    for (path, body, status, message) in REFUSED_BODIES {
        let answer = format!("{{\"error\":\"{message}\"}}");
        check(&post(path, None, body.as_bytes()), *status, &answer);
    }
    for (rest, status, message) in REFUSED_INPUTS {
        let body = format!(r#"{{"inputs":[{{"name":"IN","shape":[2],"datatype":"FP32",{rest}"#);
        let answer = format!("{{\"error\":\"{message}\"}}");
        check(&post(ECHO, None, body.as_bytes()), *status, &answer);
    }
}

#[test]
fn errors_of_headers() {
    let with = |header: &str| {
        format!(
            "POST {ECHO} HTTP/1.1\r\nHost: x\r\n{header}\r\nContent-Length: {}\r\n\r\n{}",
            ECHO_BODY.len(),
            String::from_utf8_lossy(ECHO_BODY)
        )
    };
    let length = ECHO_BODY.len();
    for (header, status, message) in [
        (
            "Inference-Header-Content-Length: x",
            400,
            "Unable to parse Inference-Header-Content-Length, got: x".to_owned(),
        ),
        (
            "Inference-Header-Content-Length: -1",
            400,
            format!("inference header size should be in range (0, {length}), got: -1"),
        ),
        (
            "Inference-Header-Content-Length: 999",
            400,
            format!("inference header size should be in range (0, {length}), got: 999"),
        ),
        (
            "Content-Encoding: br",
            501,
            "Unsupported compression type".to_owned(),
        ),
    ] {
        check(
            with(header).as_bytes(),
            status,
            &format!("{{\"error\":\"{message}\"}}"),
        );
    }
}

/// The worked examples of the binary tensor extension, byte for byte.
#[test]
fn binary_tensors() {
    let json = b"{\"model_name\":\"mymodel\",\"inputs\":[{\"name\":\"A\",\"shape\":[2,2],\
         \"datatype\":\"UINT32\",\"parameters\":{\"binary_data_size\":16}},{\"name\":\"B\",\
         \"shape\":[3],\"datatype\":\"BOOL\",\"parameters\":{\"binary_data_size\":3}}],\
         \"outputs\":[{\"name\":\"OUT\",\"parameters\":{\"binary_data\":true}}]}";
    let mut body = json.to_vec();
    body.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 1, 0, 1]);
    let (status, head, answer) = exchange(&post("/v2/models/mixed/infer", Some(json.len()), &body));
    let expected =
        b"{\"model_name\":\"mixed\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUT\",\
         \"datatype\":\"FP32\",\"shape\":[3,2],\"parameters\":{\"binary_data_size\":24}}]}";
    assert_eq!(status, 200, "{:?}", String::from_utf8_lossy(&answer));
    assert!(
        head.contains("Content-Type: application/octet-stream\r\n"),
        "{head}"
    );
    assert!(
        head.contains(&format!(
            "Inference-Header-Content-Length: {}\r\n",
            expected.len()
        )),
        "{head}"
    );
    let floats: Vec<u8> = (0..6u8)
        .flat_map(|value| f32::from(value).to_le_bytes())
        .collect();
    assert_eq!(answer, [&expected[..], &floats].concat());

    body.push(0);
    check(
        &post("/v2/models/mixed/infer", Some(json.len()), &body),
        400,
        r#"{"error":"unexpected additional input data for model 'mixed'"}"#,
    );

    let (status, head, answer) = exchange(&post("/v2/models/double/infer", Some(0), &[7; 16]));
    assert_eq!(status, 200, "{:?}", String::from_utf8_lossy(&answer));
    assert!(head.contains("Inference-Header-Content-Length: "), "{head}");
    assert!(answer.ends_with(&[floats.get(..12).unwrap(), floats.get(..12).unwrap()].concat()));
}

#[test]
fn large_tensors_of_both_kinds() {
    let count = 150_000;
    let json = format!(
        "{{\"inputs\":[{{\"name\":\"IN\",\"shape\":[{count}],\"datatype\":\"FP32\",\
             \"parameters\":{{\"binary_data_size\":{}}}}}],\
             \"parameters\":{{\"binary_data_output\":true}}}}",
        count * 4
    );
    let values: Vec<u8> = (0..count)
        .flat_map(|value: i32| (value as f32).to_le_bytes())
        .collect();
    let body = [json.as_bytes(), &values].concat();
    let (status, _, answer) = exchange(&post(ECHO, Some(json.len()), &body));
    assert!(status == 200 && answer.ends_with(&values));

    let numbers: Vec<String> = (0..50_000).map(|value| format!("{value}.5")).collect();
    let json = format!(
        r#"{{"inputs":[{{"name":"IN","shape":[50000],"datatype":"FP32","data":[{}]}}]}}"#,
        numbers.join(",")
    );
    let (status, _, answer) = exchange(&post(ECHO, None, json.as_bytes()));
    assert_eq!(status, 200);
    assert!(
        String::from_utf8(answer)
            .unwrap()
            .ends_with(&format!("{}]}}]}}", numbers.join(",")))
    );
}

#[test]
fn what_is_long_beyond_measure_is_refused_by_its_length() {
    for (path, length, words) in [
        (
            ECHO,
            1u64 << 40,
            "Unable to parse Content-Length, value is out of range",
        ),
        (
            "/v2/repository/index",
            1 << 40,
            "request JSON size of 1099511627776 bytes exceeds",
        ),
    ] {
        let mut stream = connect(http());
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let (status, _, body) = read_answer(&mut stream, true);
        assert_eq!(status, 400);
        assert!(String::from_utf8_lossy(&body).contains(words), "{path}");
    }
}

#[test]
fn metrics_have_their_own_door() {
    let address = SHARED
        .0
        .addresses()
        .metrics
        .as_ref()
        .unwrap()
        .tcp()
        .unwrap();
    for (request, status) in [
        ("GET /metrics", 200),
        ("HEAD /metrics", 200),
        ("GET /x", 200),
        ("POST /metrics", 405),
        ("GET /v2/health/live", 200),
    ] {
        let mut stream = connect(address);
        stream
            .write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
            .unwrap();
        let (got, head, body) = read_answer(&mut stream, !request.starts_with("HEAD"));
        assert_eq!(got, status, "{request}");
        if request == "HEAD /metrics" {
            assert!(!head.contains("Content-Length: 0\r\n"), "{head}");
        }
        assert_eq!(
            body.is_empty(),
            status == 200 && request != "GET /metrics",
            "{request}"
        );
    }
}
