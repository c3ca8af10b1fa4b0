//! A real shard over a fake backend, driven through sockets: what a client sees.

mod answers;
mod connections;
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
            "backend: \"fake\"\nmax_batch_size: 0\n{}{}instance_group {{ count: 1 kind: KIND_CPU \
             }}\n",
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
    SHARED.0.addresses().http.as_ref().unwrap().tcp().unwrap()
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
const ECHO_ANSWER: &str = concat!(
    r#"{"id":"7","model_name":"echo","model_version":"1","outputs":[{"name":"OUT","#,
    r#""datatype":"FP32","shape":[2],"data":[1.0,2.5]}]}"#
);
