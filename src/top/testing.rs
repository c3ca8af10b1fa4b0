//! What tests of several modules share.

use crate::history::History;
use crate::sample::{Layout, Sample};

/// A second of a server with two models, one of which has a name that commands terminals.
const SAMPLE: &str = r#"{"time_ms":1,"interval_ms":1000,"state":"ready",
  "process":{"resident_bytes":104857600,"threads":9,"cpu_us":500000},
  "memory":{"held_bytes":2048,"limit_bytes":1073741824,"refused":0},
  "loads":[{"name":"new","version":"2","state":"LOADING",
    "reason":"1 of 2 instances are ready"}],
  "models":[
    {"name":"resnet","version":1,"success":200,"errors":{"queue_full":3},"inferences":400,
     "executions":100,"cache_hits":0,"pending":5,"in_flight":7,"instances":2,"busy":1,
     "batches":[[2,50],[6,50]],"latency":[[0,100],[2,100]],
     "timelines":[{"name":"resnet_0","executions":100,"cells":"0011992233"}]},
    {"name":"a\u001b[2Jb","version":1,"success":0,"instances":1,"more":"unknown"}],
  "network":{"connections":[["http",3],["grpc",0]],"connections_refused":0,
    "slowest":[{"ended_ms":1,"model":"resnet","version":1,"id":"r7","outcome":"ok",
      "total_us":4200,"stages":[["read",100],["infer",4000],["write",100]],
      "instance":"resnet_0","batch_size":2}]}}"#;

pub(crate) fn history(seconds: usize) -> History {
    let mut history = History::default();
    history.set_layout(Layout {
        server: "triton".into(),
        version: "0.1.0".into(),
        bounds_us: vec![10, 20, 40],
    });
    for _ in 0..seconds {
        let sample: Sample = serde_json::from_str(SAMPLE).unwrap();
        history.push(sample);
    }
    history
}
