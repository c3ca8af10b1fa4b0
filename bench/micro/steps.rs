//! Single steps of a request's and of a model's life, in isolation. `cargo bench` measures them;
//! `cargo test` runs each once.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use conch_bench::wire;
use conch_frontend::measure::{grpc_message, http_body, http_head, http_json, http_numbers};
use conch_memory::{Budget, ByteView, Pool};
use conch_scheduler::Batcher;
use conch_sync::Mailbox;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// A configuration of ordinary length: what a load of a repository parses for each model.
const CONFIGURATION: &str = r#"
name: "detector"
backend: "onnxruntime"
max_batch_size: 64
input [
  { name: "image" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] },
  { name: "threshold" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } optional: true }
]
output [
  { name: "boxes" data_type: TYPE_FP32 dims: [ -1, 4 ] },
  { name: "labels" data_type: TYPE_STRING dims: [ -1 ] label_filename: "labels.txt" }
]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [ 8, 16, 32 ]
  max_queue_delay_microseconds: 500
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 100000
    max_queue_size: 1000 }
}
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
parameters { key: "graph_optimization_level" value { string_value: "1" } }
version_policy { latest { num_versions: 2 } }
"#;

fn pbtxt(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pbtxt");
    group.throughput(Throughput::Bytes(CONFIGURATION.len() as u64));
    let parse = |text: &str| {
        conch_config::parse_text("config.pbtxt", text).expect("the configuration is valid")
    };
    group.bench_function("parse", |bencher| {
        bencher.iter(|| parse(black_box(CONFIGURATION)))
    });
    let message = parse(CONFIGURATION);
    group.bench_function("print as JSON", |bencher| {
        bencher.iter(|| conch_config::to_json(black_box(&message)));
    });
    group.finish();
}

/// One letter to another thread and one back: what the two hops of a request cost when both sides
/// must be woken.
fn hop(criterion: &mut Criterion) {
    let (to_core, mut core) = Mailbox::<u64>::new();
    let (to_shard, mut shard) = Mailbox::<u64>::new();
    let echo = thread::spawn(move || {
        let waker = ThreadWaker::of_this_thread();
        loop {
            for letter in wait(&waker, |context| core.poll_take(context)) {
                if letter == u64::MAX {
                    return;
                }
                to_shard.post(letter).expect("the other side lives longer");
            }
            to_shard.notify();
        }
    });
    let waker = ThreadWaker::of_this_thread();
    criterion.bench_function("hop there and back", |bencher| {
        bencher.iter(|| {
            to_core.post(black_box(7)).expect("the echo is alive");
            to_core.notify();
            wait(&waker, |context| shard.poll_take(context)).count()
        });
    });
    to_core.post(u64::MAX).expect("the echo is alive");
    to_core.notify();
    echo.join().expect("the echo does not panic");
}

struct ThreadWaker(Thread);

impl ThreadWaker {
    fn of_this_thread() -> Waker {
        Waker::from(Arc::new(ThreadWaker(thread::current())))
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// What `poll` has in the end; this thread parks until `waker` is woken.
fn wait<T>(waker: &Waker, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    loop {
        match poll(&mut Context::from_waker(waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// A request with one binary FP32[1,16], as clients send it: head, and JSON with the tensor behind
/// it.
fn http(criterion: &mut Criterion) {
    let json = b"{\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[1,16],\
         \"parameters\":{\"binary_data_size\":64}}],\
         \"parameters\":{\"binary_data_output\":true}}";
    let mut body = json.to_vec();
    body.extend_from_slice(&[0; 64]);
    let head = format!(
        "POST /v2/models/identity/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nContent-Type: \
         application/octet-stream\r\nInference-Header-Content-Length: {}\r\nContent-Length: \
         {}\r\n\r\n",
        json.len(),
        body.len()
    );
    let body = ByteView::copy_of(&body);
    let numbers: Vec<String> = (0..1000)
        .map(|number| format!("{}.125", number % 251))
        .collect();
    let text = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,1000],"data":[{}]}}]}}"#,
        numbers.join(",")
    );
    let text = ByteView::copy_of(text.as_bytes());
    let mut group = criterion.benchmark_group("http");
    group.bench_function("head", |bencher| {
        bencher.iter(|| assert!(http_head(black_box(head.as_bytes()))));
    });
    group.bench_function("body with a small tensor", |bencher| {
        bencher.iter(|| http_body(black_box(&body), json.len()).expect("the request is sound"));
    });
    group.bench_function("body with 1000 numbers as JSON", |bencher| {
        bencher.iter(|| http_body(black_box(&text), text.len()).expect("the request is sound"));
    });
    let only_json = body
        .slice(0, json.len())
        .expect("the JSON is part of the body");
    group.bench_function("JSON of a small tensor", |bencher| {
        bencher.iter(|| http_json(black_box(&only_json)).expect("the JSON is sound"));
    });
    // The parser that conch does not use, at its best: buffers that are kept, a tape instead of a
    // tree.
    let mut buffers = simd_json::Buffers::new(json.len());
    let mut copy = Vec::with_capacity(json.len());
    group.bench_function("JSON of a small tensor, by simd-json", |bencher| {
        bencher.iter(|| {
            copy.clear();
            copy.extend_from_slice(black_box(json));
            let tape = simd_json::to_tape_with_buffers(&mut copy, &mut buffers)
                .expect("the JSON is sound");
            black_box(tape.0.len())
        });
    });
    group.finish();
}

/// 1000 FP32 values in, as JSON, and out. Multiples of 1/8 are short; most values have 17 digits
/// when a single is written as the double that it is, which is how Triton and Python write them.
fn numbers(criterion: &mut Criterion) {
    let spread = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
    let short: Vec<f32> = (0..1000).map(|index| (index % 2008) as f32 / 8.0).collect();
    let long: Vec<f32> = (0..1000).map(spread).collect();
    let mut group = criterion.benchmark_group("1000 numbers");
    for (name, values) in [("multiples of 1/8", short), ("of 17 digits", long)] {
        let texts: Vec<String> = values
            .iter()
            .map(|value| format!("{:?}", f64::from(*value)))
            .collect();
        let body = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,1000],"data":[{}]}}]}}"#,
            texts.join(",")
        );
        let body = ByteView::copy_of(body.as_bytes());
        group.bench_function(format!("{name}, in"), |bencher| {
            bencher.iter(|| http_body(black_box(&body), body.len()).expect("the request is sound"));
        });
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let bytes = ByteView::copy_of(&bytes);
        let mut text = Vec::new();
        group.bench_function(format!("{name}, out"), |bencher| {
            bencher.iter(|| {
                text.clear();
                http_numbers(black_box(&bytes), &mut text).expect("the output is sound");
                black_box(text.len())
            });
        });
    }
    group.finish();
}

/// A ModelInferRequest with one raw FP32[1,n].
fn grpc(criterion: &mut Criterion) {
    let (pool, budget) = (Pool::new(64 << 20), Budget::new(1 << 30));
    let mut group = criterion.benchmark_group("grpc");
    for tensor_bytes in [64_usize, 600 << 10] {
        let mut shape = Vec::new();
        wire::push_varint(&mut shape, 1);
        wire::push_varint(&mut shape, tensor_bytes as u64 / 4);
        let (mut input, mut message) = (Vec::new(), Vec::new());
        wire::push_field(&mut input, 1, b"INPUT0");
        wire::push_field(&mut input, 2, b"FP32");
        wire::push_field(&mut input, 3, &shape);
        wire::push_field(&mut message, 1, b"identity");
        wire::push_field(&mut message, 5, &input);
        wire::push_field(&mut message, 7, &vec![0; tensor_bytes]);
        group.bench_function(
            format!("message with {tensor_bytes} bytes of tensor"),
            |bencher| {
                bencher.iter(|| {
                    assert_eq!(grpc_message(&pool, &budget, black_box(&message)), Some(1))
                });
            },
        );
    }
    group.finish();
}

/// 64 requests arrive and leave as batches of 16.
fn batcher(criterion: &mut Criterion) {
    let text = "name: \"m\" backend: \"b\" max_batch_size: 16 dynamic_batching { }\ninput \
                { name: \"i\" data_type: TYPE_FP32 dims: 1 } output \
                { name: \"o\" data_type: TYPE_FP32 dims: 1 }";
    let mut message = conch_config::parse_text("config.pbtxt", text).expect("the text is valid");
    conch_config::normalize(&mut message);
    let config =
        conch_config::ResolvedConfig::from_message(message).expect("the configuration is valid");
    let mut batcher = Batcher::new(&config).expect("this scheduler exists");
    criterion.bench_function("batcher: 64 requests, batches of 16", |bencher| {
        bencher.iter(|| {
            for now_ns in 1..=64 {
                batcher.accept(now_ns);
            }
            let mut left = 64;
            while left > 0 {
                let formed = batcher.form(black_box(100));
                assert!(formed > 0 && formed <= 16);
                left -= formed;
            }
        });
    });
}

fn pool(criterion: &mut Criterion) {
    let pool = Pool::new(64 << 20);
    let mut group = criterion.benchmark_group("pool");
    for bytes in [64_usize, 64 << 10, 600 << 10] {
        group.bench_function(format!("take and give back {bytes} bytes"), |bencher| {
            bencher.iter(|| drop(black_box(pool.try_take(bytes))));
        });
    }
    group.finish();
}

criterion_group!(steps, http, numbers, grpc, batcher, hop, pool, pbtxt);
criterion_main!(steps);
