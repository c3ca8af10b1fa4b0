//! A real shard over a fake backend, driven through sockets: what a client sees.

mod fake;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use conch_control::EngineOptions as ServerOptions;
use conch_control::server::Server;
use conch_memory::Charge;

use crate::{Endpoint, Frontend, FrontendOptions, GrpcConnections};
use fake::{FakeHost, SLOW_COUNT};

fn tensors(kind: &str, list: &[(&str, &str, &str)]) -> String {
    list.iter()
        .map(|(name, data_type, dims)| {
            format!("{kind} {{ name: \"{name}\" data_type: TYPE_{data_type} dims: [{dims}] }}\n")
        })
        .collect()
}

fn repository() -> PathBuf {
    // Two tests may start a server at a time.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let root = std::env::temp_dir().join(format!("conch-frontend-{process}-{count}"));
    let fp32 = [("IN", "FP32", "-1")];
    // Name, data type and dims of a tensor.
    type Tensors<'a> = &'a [(&'a str, &'a str, &'a str)];
    let models: [(&str, Tensors<'_>, Tensors<'_>); 7] = [
        ("echo", &fp32, &[("OUT", "FP32", "-1")]),
        ("slow", &fp32, &[("OUT", "FP32", "-1")]),
        ("leisurely", &fp32, &[("OUT", "FP32", "-1")]),
        (
            "mixed",
            &[("A", "UINT32", "2, 2"), ("B", "BOOL", "3")],
            &[("OUT", "FP32", "3, 2")],
        ),
        (
            "double",
            &[("IN", "INT32", "4")],
            &[("OUT0", "FP32", "3, 1"), ("OUT1", "FP32", "3, 1")],
        ),
        (
            "text",
            &[("IN", "STRING", "-1")],
            &[("OUT", "STRING", "-1")],
        ),
        ("half", &[("IN", "FP16", "-1")], &[("OUT", "FP16", "-1")]),
    ];
    for (name, inputs, outputs) in models {
        let folder = root.join(name);
        std::fs::create_dir_all(folder.join("1")).unwrap();
        let text = format!(
            "backend: \"fake\"\nmax_batch_size: 0\n{}{}instance_group {{ count: 1 kind: KIND_CPU }}\n",
            tensors("input", inputs),
            tensors("output", outputs)
        );
        std::fs::write(folder.join("config.pbtxt"), text).unwrap();
    }
    root
}

fn endpoint() -> Option<Endpoint> {
    Some(Endpoint {
        address: "127.0.0.1".to_owned(),
        port: 0,
        reuse_port: false,
    })
}

fn start() -> (Frontend, Arc<Server>) {
    let root = repository();
    let options = ServerOptions {
        model_repositories: vec![root.clone()],
        auto_complete: false,
        ..ServerOptions::default()
    };
    let server = Server::start(options, Arc::new(FakeHost)).unwrap();
    std::fs::remove_dir_all(root).unwrap();
    let options = FrontendOptions {
        http: endpoint(),
        grpc: endpoint(),
        metrics: endpoint(),
        grpc_connections: GrpcConnections {
            headers_timeout: Duration::from_millis(300),
            ..GrpcConnections::default()
        },
        http_input_bytes_max: 1 << 20,
        http_body_bytes_max: 16 << 20,
        http_head_timeout: Duration::from_millis(300),
        http_stall_timeout: Duration::from_millis(300),
        ..FrontendOptions::default()
    };
    (crate::start(options, Arc::clone(&server)).unwrap(), server)
}

/// One for all tests but the one that ends it: executors leave a descriptor behind each.
static SHARED: LazyLock<(Frontend, Arc<Server>)> = LazyLock::new(start);

fn http() -> SocketAddr {
    SHARED.0.addresses().http.unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// Status, head and body of the next answer.
fn read_answer(stream: &mut TcpStream, has_body: bool) -> (u16, String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream
            .read_exact(&mut byte)
            .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&head)));
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head[9..12].parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; if has_body { length } else { 0 }];
    stream.read_exact(&mut body).unwrap();
    (status, head, body)
}

fn post(path: &str, json_length: Option<usize>, body: &[u8]) -> Vec<u8> {
    let header = json_length.map_or(String::new(), |length| {
        format!("Inference-Header-Content-Length: {length}\r\n")
    });
    let mut text = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    text.extend_from_slice(body);
    text
}

fn exchange(request: &[u8]) -> (u16, String, Vec<u8>) {
    let mut stream = connect(http());
    stream.write_all(request).unwrap();
    read_answer(&mut stream, true)
}

fn check(request: &[u8], status: u16, body: &str) {
    let (got_status, _, got_body) = exchange(request);
    let got_body = String::from_utf8(got_body).unwrap();
    assert_eq!(
        (got_status, &*got_body),
        (status, body),
        "{}",
        String::from_utf8_lossy(request)
    );
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes()
}

const ECHO: &str = "/v2/models/echo/infer";
const ECHO_BODY: &[u8] =
    br#"{"id":"7","inputs":[{"name":"IN","shape":[2],"datatype":"FP32","data":[1,2.5]}]}"#;
const ECHO_ANSWER: &str = r#"{"id":"7","model_name":"echo","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[2],"data":[1.0,2.5]}]}"#;

#[test]
fn control_operations() {
    check(&get("/v2/health/live"), 200, "");
    check(&get("/v2/health/ready"), 200, "");
    check(&get("/v2/models/echo/ready"), 200, "");
    check(&get("/v2/models/echo/versions/1/ready"), 200, "");
    check(
        &get("/v2/models/mixed"),
        200,
        r#"{"name":"mixed","versions":["1"],"platform":"fake","inputs":[{"name":"A","datatype":"UINT32","shape":[2,2]},{"name":"B","datatype":"BOOL","shape":[3]}],"outputs":[{"name":"OUT","datatype":"FP32","shape":[3,2]}]}"#,
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
        "{\"model_name\":\"text\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUT\",\"datatype\":\"BYTES\",\"shape\":[2],\"data\":[\"a\u{e9}\",\"\"]}]}",
    );
}

#[test]
fn inference_errors() {
    let input = r#"{"inputs":[{"name":"IN","shape":[2],"datatype":"FP32","#;
    for (path, body, status, message) in [
        (ECHO, "{bad".to_owned(), 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (ECHO, "{}".to_owned(), 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        (ECHO, r#"{"inputs":3}"#.to_owned(), 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        (ECHO, r#"{"id":3,"inputs":[]}"#.to_owned(), 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (ECHO, r#"{"inputs":[{"name":"IN","shape":[-1],"datatype":"FP32","data":[1]}]}"#.to_owned(), 500, "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (ECHO, r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"FP31","data":[1]}]}"#.to_owned(), 400, "invalid datatype for input IN"),
        (ECHO, r#"{"inputs":[{"name":"IN","shape":[9223372036854775807,2],"datatype":"FP32","data":[1]}]}"#.to_owned(), 400, "invalid shape for input 'IN': shape [9223372036854775807,2] causes total element count to exceed maximum size of 9223372036854775807"),
        (ECHO, r#"{"inputs":[{"name":"IN","shape":[9223372036854775807],"datatype":"FP32","data":[1]}]}"#.to_owned(), 400, "byte size overflow for input 'IN': element count (9223372036854775807) * data type size (4) exceeds maximum allowed size (9223372036854775807)"),
        (ECHO, r#"{"inputs":[{"name":"IN","shape":[300000],"datatype":"FP32","data":[1]}]}"#.to_owned(), 400, "JSON input 'IN' has a byte_size (1200000 bytes) that exceeds the maximum allowed value of 1048576 bytes. Use --http-max-input-size to increase the limit."),
        (ECHO, format!(r#"{input}"data":[1,2,3]}}]}}"#), 500, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        (ECHO, format!(r#"{input}"data":[1]}}]}}"#), 500, "Failed to parse 'data' field: shape does not match true shape"),
        (ECHO, format!(r#"{input}"data":["a",1]}}]}}"#), 500, "Unable to parse 'data': attempt to access JSON non-number as double"),
        (ECHO, format!("{}}}]}}", input.trim_end_matches(',')), 400, "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But no field is set"),
        (ECHO, format!(r#"{input}"data":[1,2],"parameters":{{"binary_data_size":8}}}}]}}"#), 400, "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'"),
        (ECHO, format!(r#"{input}"parameters":{{"binary_data_size":8}}}}]}}"#), 400, "unexpected size for input 'IN', expecting 8 additional bytes for model 'echo'"),
        (ECHO, format!(r#"{input}"parameters":{{"shared_memory_region":"r"}}}}]}}"#), 404, "Unable to find shared memory region: 'r'"),
        (ECHO, format!(r#"{input}"data":[1,2]}}],"outputs":[{{"name":"OUT","parameters":{{"shared_memory_region":"r","classification":1}}}}]}}"#), 400, "Output can't set both 'shared_memory_region' and 'classification'"),
        (ECHO, format!(r#"{{"parameters":{{"triton_x":1}},{}"data":[1,2]}}]}}"#, &input[1..]), 400, "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."),
        (ECHO, format!(r#"{{"parameters":{{"x":[]}},{}"data":[1,2]}}]}}"#, &input[1..]), 400, "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (ECHO, format!(r#"{{"parameters":{{"priority":-1}},{}"data":[1,2]}}]}}"#, &input[1..]), 500, "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("/v2/models/half/infer", r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"FP16","data":[1]}]}"#.to_owned(), 400, "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN"),
        ("/v2/models/text/infer", r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"BYTES","data":[1]}]}"#.to_owned(), 500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ("/v2/models/none/infer", "{}".to_owned(), 404, "Request for unknown model: 'none' is not found"),
    ] {
        check(&post(path, None, body.as_bytes()), status, &format!("{{\"error\":\"{message}\"}}"));
    }
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
    let json = br#"{"model_name":"mymodel","inputs":[{"name":"A","shape":[2,2],"datatype":"UINT32","parameters":{"binary_data_size":16}},{"name":"B","shape":[3],"datatype":"BOOL","parameters":{"binary_data_size":3}}],"outputs":[{"name":"OUT","parameters":{"binary_data":true}}]}"#;
    let mut body = json.to_vec();
    body.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 1, 0, 1]);
    let (status, head, answer) = exchange(&post("/v2/models/mixed/infer", Some(json.len()), &body));
    let expected = br#"{"model_name":"mixed","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[3,2],"parameters":{"binary_data_size":24}}]}"#;
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
fn any_cut_and_any_framing_gives_the_same_answer() {
    let whole = post(ECHO, None, ECHO_BODY);
    for cut in (1..whole.len()).step_by(7) {
        let mut stream = connect(http());
        stream.set_nodelay(true).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        stream.write_all(&whole[cut..]).unwrap();
        assert_eq!(
            String::from_utf8(read_answer(&mut stream, true).2).unwrap(),
            ECHO_ANSWER,
            "{cut}"
        );
    }
    let mut chunked =
        format!("POST {ECHO} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            .into_bytes();
    for piece in ECHO_BODY.chunks(9) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    check(&chunked, 200, ECHO_ANSWER);

    let mut stream = connect(http());
    let head = format!(
        "POST {ECHO} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        ECHO_BODY.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream, true).0, 100);
    stream.write_all(ECHO_BODY).unwrap();
    assert_eq!(read_answer(&mut stream, true).0, 200);
}

#[test]
fn large_tensors_of_both_kinds() {
    let count = 150_000;
    let json = format!(
        r#"{{"inputs":[{{"name":"IN","shape":[{count}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
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
fn pipelined_requests_are_answered_in_order() {
    let mut stream = connect(http());
    let mut text = Vec::new();
    for id in 0..50 {
        let body = format!(
            r#"{{"id":"{id}","inputs":[{{"name":"IN","shape":[1],"datatype":"FP32","data":[{id}]}}]}}"#
        );
        text.extend(post(ECHO, None, body.as_bytes()));
        text.extend(get("/v2/health/live"));
    }
    stream.write_all(&text).unwrap();
    for id in 0..50 {
        let (status, _, body) = read_answer(&mut stream, true);
        assert!(status == 200 && body.starts_with(format!("{{\"id\":\"{id}\"").as_bytes()));
        assert_eq!(read_answer(&mut stream, true).0, 200);
    }
}

#[test]
fn what_could_be_smuggled_ends_the_connection() {
    for text in [
        "GET / HTTP/1.1\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\nContent-Length: 5\n\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "\0\0\0",
    ] {
        let mut stream = connect(http());
        stream.write_all(text.as_bytes()).unwrap();
        if text.len() < 10 {
            stream.write_all(b"\r\n\r\n").unwrap();
        }
        let (status, head, _) = read_answer(&mut stream, true);
        assert!(
            status == 400 && head.contains("Connection: close\r\n"),
            "{text:?}: {head}"
        );
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{text:?}: nothing more is answered");
    }
}

#[test]
fn the_ways_to_end_a_connection() {
    let mut stream = connect(http());
    stream
        .write_all(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(
        text.starts_with("HTTP/1.0 200 OK\r\nConnection: close\r\n"),
        "{text}"
    );

    let mut stream = connect(http());
    stream
        .write_all(b"HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(read_answer(&mut stream, false).0, 200);
    assert_eq!(read_answer(&mut stream, true).0, 200);

    // What is delimited twice is read by its chunks, and nothing behind them.
    let mut stream = connect(http());
    let chunks = format!(
        "{:x}\r\n{}\r\n0\r\n\r\n",
        ECHO_BODY.len(),
        String::from_utf8_lossy(ECHO_BODY)
    );
    let text = format!(
        "POST {ECHO} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let (status, head, body) = read_answer(&mut stream, true);
    assert_eq!((status, &*body), (200, ECHO_ANSWER.as_bytes()));
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(
        stream.read(&mut [0; 1]).unwrap(),
        0,
        "nothing more is answered"
    );

    // Whoever speaks TLS here is told at once that nobody understands it.
    let mut stream = connect(http());
    stream.write_all(&[0x16, 3, 1, 0, 165]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);

    // A head that never ends, and a body that stops.
    for (text, part) in [
        ("GET /v2 HTT".to_owned(), "head"),
        (
            format!("POST {ECHO} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"),
            "body",
        ),
        (
            format!(
                "POST {ECHO} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"
            ),
            "body",
        ),
    ] {
        let mut stream = connect(http());
        stream.write_all(text.as_bytes()).unwrap();
        let (status, _, body) = read_answer(&mut stream, true);
        assert_eq!(
            (status, String::from_utf8(body).unwrap()),
            (
                408,
                format!(r#"{{"error":"the request's {part} did not arrive in time"}}"#)
            ),
            "{text}"
        );
    }
}

#[test]
fn headers_of_a_call_that_never_end_end_the_connection() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // Frames HEADERS (1) and CONTINUATION (9) of stream 1; flag END_HEADERS (4). The field is
    // `:method: GET`.
    let table: [(&[u8], bool); 5] = [
        (b"\0\0\x01\x01\x00\0\0\0\x01\x82", true),
        (b"\0\0\x09\x01\x04\0\0\0\x01\x82", true),
        (
            b"\0\0\x00\x01\x00\0\0\0\x01\0\0\x01\x09\x00\0\0\0\x01\x82",
            true,
        ),
        (
            b"\0\0\x01\x01\x00\0\0\0\x01\x82\0\0\x00\x09\x04\0\0\0\x01",
            false,
        ),
        (b"", false),
    ];
    for (frames, ends) in table {
        let mut stream = connect(SHARED.0.addresses().grpc.unwrap());
        stream.write_all(&[PREFACE, frames].concat()).unwrap();
        let patience = if ends { 10_000 } else { 1000 };
        stream
            .set_read_timeout(Some(Duration::from_millis(patience)))
            .unwrap();
        let mut received = Vec::new();
        let outcome = stream.read_to_end(&mut received);
        assert_eq!(outcome.is_ok(), ends, "{frames:?}: {outcome:?}");
        assert!(!received.is_empty(), "the server has shown its settings");
    }
}

#[test]
fn a_chunked_body_has_a_largest_size() {
    let mut stream = connect(http());
    // Said before the chunk comes.
    let text =
        format!("POST {ECHO} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1000001\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let (status, head, body) = read_answer(&mut stream, true);
    assert_eq!(
        (status, String::from_utf8(body).unwrap()),
        (
            413,
            r#"{"error":"the request's body is too large"}"#.to_owned()
        )
    );
    assert!(head.contains("Connection: close\r\n"), "{head}");
}

/// Were the connection closed while the client sends, the reset would fail its send, and it might
/// never read the answer.
#[test]
fn who_is_refused_in_the_middle_of_a_body_may_finish_and_reads_why() {
    let (mut frontend, server) = start();
    let budget = server.budget();
    let mut held = Charge::empty(budget);
    held.cover(budget.limit_bytes() - (512 << 10)).unwrap();
    let mut stream = connect(frontend.addresses().http.unwrap());
    let head = format!(
        "POST {ECHO} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        8 << 20
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..48 {
        stream.write_all(&[b' '; 64 << 10]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let (status, head, body) = read_answer(&mut stream, true);
    let body = String::from_utf8(body).unwrap();
    assert!(
        status == 503 && head.contains("Connection: close\r\n") && body.contains("no memory left"),
        "{head}{body}"
    );
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(held);
    assert!(frontend.drain(Instant::now() + Duration::from_secs(5), |_| {}));
    frontend.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_client_that_leaves_takes_its_request_along() {
    let body = ECHO_BODY;
    let mut first = connect(http());
    first
        .write_all(&post("/v2/models/slow/infer", None, body))
        .unwrap();
    // Also behind large bodies, for which the connection gives its own buffer back.
    let large = [body, &[b' '; 300 << 10]].concat();
    let waiting: Vec<TcpStream> = [body, large.as_slice()]
        .repeat(3)
        .into_iter()
        .map(|body| {
            let mut stream = connect(http());
            stream
                .write_all(&post("/v2/models/slow/infer", None, body))
                .unwrap();
            stream
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    for stream in &waiting {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    assert_eq!(read_answer(&mut first, true).0, 200);
    first
        .write_all(&post("/v2/models/slow/infer", None, body))
        .unwrap();
    assert_eq!(read_answer(&mut first, true).0, 200);
    assert_eq!(
        SLOW_COUNT.load(Ordering::SeqCst),
        2,
        "those whose clients left were not executed"
    );
}

/// It has only said that it sends nothing more. What it gets is what it would get otherwise, byte
/// for byte.
#[test]
fn a_client_that_ends_its_side_is_answered() {
    let request = post("/v2/models/leisurely/infer", None, ECHO_BODY);
    let mut open = connect(http());
    open.write_all(&request).unwrap();
    let (_, head, body) = read_answer(&mut open, true);
    let mut stream = connect(http());
    stream.write_all(&request.repeat(2)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut held = Vec::new();
    stream.read_to_end(&mut held).unwrap();
    let expected = [head.as_bytes(), &body].concat();
    assert_eq!(
        String::from_utf8_lossy(&held),
        String::from_utf8_lossy(&expected.repeat(2))
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
    let address = SHARED.0.addresses().metrics.unwrap();
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

#[test]
fn draining_finishes_what_was_begun() {
    let (mut frontend, server) = start();
    let address = frontend.addresses().http.unwrap();
    let mut idle = connect(address);
    let mut busy = connect(address);
    busy.write_all(&post("/v2/models/leisurely/infer", None, ECHO_BODY))
        .unwrap();
    idle.write_all(&get("/v2/health/ready")).unwrap();
    assert_eq!(read_answer(&mut idle, true).0, 200);
    server.begin_drain();
    idle.write_all(&get("/v2/health/ready")).unwrap();
    assert_eq!(read_answer(&mut idle, true).0, 503);
    assert!(
        frontend.drain(Instant::now() + Duration::from_secs(5), |_| {}),
        "everything ended in time"
    );
    let (status, head, _) = read_answer(&mut busy, true);
    assert!(
        status == 200 && head.contains("Connection: close\r\n"),
        "{head}"
    );
    assert_eq!(
        idle.read(&mut [0]).unwrap(),
        0,
        "idle connections are closed"
    );
    assert!(
        TcpStream::connect(address).is_err(),
        "no new ones are taken"
    );
    frontend.stop().unwrap();
    server.stop().unwrap();
}

/// What an idle connection costs beside its buffer of 8 KiB.
#[test]
fn a_connection_is_small() {
    fn future_bytes<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }
    let bytes = future_bytes(crate::http::serve);
    println!("an HTTP connection's task takes {bytes} bytes");
    assert!(bytes < 4096, "{bytes}");
}
