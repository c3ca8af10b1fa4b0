//! Single steps of a request's and of a model's life, in isolation. `cargo bench` measures them; `cargo test` runs each once.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::thread;

use conch_channel::Mailbox;
use conch_memory::Pool;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_lite::future::{block_on, poll_fn};

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
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 100000 max_queue_size: 1000 }
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
    group.bench_function("parse", |bencher| bencher.iter(|| parse(black_box(CONFIGURATION))));
    let message = parse(CONFIGURATION);
    group.bench_function("print as JSON", |bencher| {
        bencher.iter(|| conch_config::to_json(black_box(&message)));
    });
    group.finish();
}

/// One letter to another thread and one back: what the two hops of a request cost when both sides must be woken.
fn hop(criterion: &mut Criterion) {
    let (to_core, mut core) = Mailbox::<u64>::new();
    let (to_shard, mut shard) = Mailbox::<u64>::new();
    let echo = thread::spawn(move || {
        loop {
            for letter in block_on(poll_fn(|context| core.poll_take(context))) {
                if letter == u64::MAX {
                    return;
                }
                to_shard.post(letter).expect("the other side lives longer");
            }
            to_shard.ring();
        }
    });
    criterion.bench_function("hop there and back", |bencher| {
        bencher.iter(|| {
            to_core.post(black_box(7)).expect("the echo is alive");
            to_core.ring();
            block_on(poll_fn(|context| shard.poll_take(context))).count()
        });
    });
    to_core.post(u64::MAX).expect("the echo is alive");
    to_core.ring();
    echo.join().expect("the echo does not panic");
}

fn pool(criterion: &mut Criterion) {
    let pool = Pool::new(64 << 20);
    let mut group = criterion.benchmark_group("pool");
    for bytes in [64_usize, 64 << 10, 600 << 10] {
        group.bench_function(format!("take and give back {bytes} bytes"), |bencher| {
            bencher.iter(|| drop(black_box(pool.take(bytes))));
        });
    }
    group.finish();
}

criterion_group!(steps, pbtxt, hop, pool);
criterion_main!(steps);
