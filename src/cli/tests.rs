//! Command lines and the arguments or refusals that they give.

use std::path::PathBuf;
use std::time::Duration;

use conch_control::ControlMode;
use conch_engine::ResourceCapacity;
use conch_frontend::ShardAffinity;
use conch_memory::AllowedOwners;

use crate::flag::{FlagEffect, FlagValueKind};
use crate::table::flags;
use crate::{Arguments, EarlyExit, parse};

fn parsed(line: &str) -> Result<Arguments, EarlyExit> {
    parse(line.split_whitespace().map(String::from), &|_| None)
}

fn reason(line: &str) -> String {
    match parsed(line) {
        Err(EarlyExit::Bad { reason, .. } | EarlyExit::Clash(reason)) => reason,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn accepts_both_forms_prefixes_and_repeats() {
    let arguments = parsed(
        "--model-repository=b --model-store a --model-repo b --http-port 1 --grpc-port=2 --log-v \
         true --allow-metrics=OFF --backend-config=x,y=z=w --backend-config k=v",
    )
    .unwrap();
    assert_eq!(
        arguments.engine.model_repositories,
        [PathBuf::from("a"), PathBuf::from("b")]
    );
    assert_eq!(
        (
            arguments.listeners.http.endpoint.port,
            arguments.listeners.grpc.endpoint.port,
            arguments.log.verbose_level
        ),
        (1, 2, 1)
    );
    assert!(!arguments.engine.allow_metrics);
    let expected =
        [("x", "y", "z=w"), ("", "k", "v")].map(|(a, b, c)| (a.into(), b.into(), c.into()));
    assert_eq!(arguments.plugins.backend_config, expected);
}

#[test]
fn words_that_are_no_options_name_models() {
    for (line, files, repositories) in [
        ("a.onnx", &["a.onnx"][..], &[][..]),
        ("b --log-verbose 1 a", &["b", "a"], &[]),
        ("--model-repository=m a=b.onnx", &["a=b.onnx"], &["m"]),
        ("--model-repository m", &[], &["m"]),
    ] {
        let arguments = parsed(line).unwrap();
        assert_eq!(arguments.model_files, files, "{line}");
        let expected: Vec<PathBuf> = repositories.iter().map(PathBuf::from).collect();
        assert_eq!(arguments.engine.model_repositories, expected, "{line}");
    }
}

#[test]
fn owners_of_shared_memory() {
    let owners = |line: &str| {
        let arguments = parsed(&format!("--model-repository=m {line}")).unwrap();
        arguments.engine.shm_owners
    };
    for (line, expected) in [
        ("", AllowedOwners::Own),
        ("--shm-allowed-uids=all", AllowedOwners::All),
        ("--shm-allowed-uids=1000", AllowedOwners::Only(vec![1000])),
        (
            "--shm-allowed-uids=0,4294967295",
            AllowedOwners::Only(vec![0, u32::MAX]),
        ),
    ] {
        assert_eq!(owners(line), expected, "{line}");
    }
    for value in ["x", "1,", "-1", "4294967296", "all,1"] {
        let line = format!("--model-repository=m --shm-allowed-uids={value}");
        assert!(parsed(&line).is_err(), "{value}");
    }
}

#[test]
fn metrics_and_retries_are_set() {
    let arguments = parsed(
        "--model-repository=m --metrics-interval-ms=250 --metrics-config=counter_latencies=false \
         --model-load-retry-count=2 --model-load-timeout-secs=30",
    )
    .unwrap();
    assert_eq!(
        (
            arguments.engine.metrics_interval,
            arguments.engine.counter_latencies,
            arguments.engine.model_load_retry_count,
            arguments.engine.model_load_timeout
        ),
        (
            Duration::from_millis(250),
            false,
            2,
            Some(Duration::from_secs(30))
        )
    );
    let engine = &arguments.engine;
    assert!(!engine.summary_latencies && !engine.histogram_latencies && engine.duration_histograms);
    assert_eq!(engine.summary_quantiles, [0.5, 0.9, 0.95, 0.99, 0.999]);
    let unlimited = parsed("--model-repository=m --model-load-timeout-secs=0").unwrap();
    assert_eq!(unlimited.engine.model_load_timeout, None);
    assert!(parsed("--model-repository=m --model-load-timeout-secs=-1").is_err());
}

#[test]
fn model_control() {
    let arguments = parsed("--model-repository=m").unwrap();
    assert_eq!(
        (
            arguments.engine.model_control_mode,
            arguments.repository_poll
        ),
        (ControlMode::None, Duration::from_secs(15))
    );
    let arguments = parsed(
        "--model-repository=m --model-control-mode=Explicit --load-model=b --load-model a \
         --load-model=b --repository-poll-secs=2",
    )
    .unwrap();
    assert_eq!(arguments.engine.model_control_mode, ControlMode::Explicit);
    assert_eq!(arguments.engine.startup_models, ["a", "b"]);
    assert_eq!(arguments.repository_poll, Duration::from_secs(2));
}

#[test]
fn caches() {
    let row = |name: &str, setting: &str, value: &str| {
        (name.to_owned(), setting.to_owned(), value.to_owned())
    };
    let arguments = parsed(
        "--model-repository=m --cache-directory=c --cache-config=redis,host=h,i --cache-config \
         redis,password=a=b",
    )
    .unwrap();
    assert_eq!(arguments.plugins.cache_directory, PathBuf::from("c"));
    assert_eq!(
        arguments.combined.cache.settings,
        [row("redis", "host", "h,i"), row("redis", "password", "a=b")]
    );
    let arguments = parsed(
        "--model-repository=m --response-cache-byte-size=5 --response-cache-byte-size=1048576",
    )
    .unwrap();
    assert_eq!(
        arguments.combined.cache.settings,
        [row("local", "size", "1048576")]
    );
    assert!(arguments.warnings.is_empty());
    assert_eq!(arguments.console_warnings.len(), 2);
    assert!(arguments.console_warnings[0].ends_with("'--cache-config=local,size=5'"));
    let both = "--model-repository=m --cache-config=local,size=1 --response-cache-byte-size=5";
    assert_eq!(
        reason(both),
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. \
         Please provide one or the other."
    );
    for (value, expected) in [
        (
            "size=1",
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. \
             Got size=1",
        ),
        (
            ",size=1",
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. \
             Got ,size=1",
        ),
        (
            "local,size",
            "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size",
        ),
        (
            "local,=1",
            "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,=1",
        ),
        (
            "local,size=",
            "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size=",
        ),
    ] {
        assert_eq!(reason(&format!("--cache-config={value}")), expected);
    }
}

#[test]
fn refuses_with_a_reason() {
    for (line, expected) in [
        ("", "Error: --model-repository must be specified"),
        ("-x", "Unexpected argument: -x"),
        ("--http-port", "the option needs a value"),
        ("--http-port=x", "Invalid option value. Got x"),
        ("--http-port=8000abc", "Invalid option value. Got 8000abc"),
        (
            "--http-port=65536",
            "Provided option value is out of bound. Got 65536",
        ),
        (
            "--http-port=99999999999999999999",
            "Provided option value is out of bound. Got 99999999999999999999",
        ),
        ("--allow-http=2", "invalid value for bool option: 2"),
        (
            "--log-format=iso8601",
            "invalid argument for --log-format. It takes one of: default, ISO8601, json",
        ),
        (
            "--model-control-mode=manual",
            "invalid argument for --model-control-mode. It takes one of: none, poll, explicit",
        ),
        (
            "--model-repository=m --model-control-mode=poll --load-model=a",
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as \
             well.",
        ),
        ("--no-such", "There is no such option."),
        (
            "--htpp-port=1",
            "There is no such option. Did you mean --http-port?",
        ),
        (
            "--http-max-input-size=0",
            "Error: --http-max-input-size must be greater than 0.",
        ),
        (
            "--model-repository=m --grpc-port=8000",
            "The server cannot listen to HTTP requests and GRPC requests at the same address and \
             port 0.0.0.0:8000",
        ),
    ] {
        assert_eq!(reason(line), expected, "{line}");
    }
}

#[test]
fn settings_are_refused_with_a_reason() {
    for (line, expected) in [
        (
            "--host-policy=p",
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got p",
        ),
        (
            "--host-policy=p,gpu=1",
            "Unsupported host policy setting 'gpu' is specified, supported settings are \
             'numa-node', 'cpu-cores'",
        ),
        (
            "--metrics-config=a",
            "--metrics-config option format is <setting>=<value>. Got a",
        ),
        (
            "--metrics-config=a,counter_latencies=true",
            "--metrics-config option format is <setting>=<value>. Got a,counter_latencies=true",
        ),
        (
            "--rate-limit=often",
            "invalid argument for --rate-limit. It takes one of: off, execution_count",
        ),
        (
            "--rate-limit-resource=R",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
             '<resource_name>:<count>'. Got R",
        ),
        (
            "--rate-limit-resource=R:1:2:3",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
             '<resource_name>:<count>'. Got R:1:2:3",
        ),
        (
            "--rate-limit-resource=R:-1",
            "Provided option value is out of bound. Got -1",
        ),
        (
            "--rate-limit-resource=R:1:-2",
            "Provided option value is out of bound. Got -2",
        ),
        (
            "--rate-limit-resource=R:many",
            "Invalid option value. Got many",
        ),
        (
            "--metrics-config=counter_latencies=maybe",
            "invalid value for bool option: maybe",
        ),
    ] {
        assert_eq!(reason(line), expected, "{line}");
    }
}

#[test]
fn summaries_and_histograms_are_set() {
    let arguments = parsed(
        "--model-repository=m --metrics-config=summary_latencies=true \
         --metrics-config=histogram_latencies=true --metrics-config=conch_histograms=false \
         --metrics-config=summary_quantiles=0.25:0.1,x,0.75:0.01 --metrics-on-http=true",
    )
    .unwrap();
    let engine = &arguments.engine;
    assert!(engine.summary_latencies && engine.histogram_latencies && !engine.duration_histograms);
    assert_eq!(engine.summary_quantiles, [0.25, 0.75]);
    assert_eq!(
        arguments.warnings,
        ["Invalid option: [x]. No ':' delimiter found. Expected format is <quantile>:<error>"]
    );
    assert!(arguments.frontend.metrics_on_http);
}

#[test]
fn the_rate_limiter_is_set() {
    let arguments = parsed(
        "--model-repository=m --rate-limit=Execution_Count --rate-limit-resource=R1:10 \
         --rate-limit-resource R2:5:0 --rate-limit-resource=R3:2:-1",
    )
    .unwrap();
    let capacity = |name: &str, count, device| ResourceCapacity {
        name: name.to_owned(),
        count,
        device,
    };
    assert!(arguments.engine.limits_rate);
    assert_eq!(
        arguments.engine.rate_capacities,
        [
            capacity("R1", 10, None),
            capacity("R2", 5, Some(0)),
            capacity("R3", 2, None),
        ]
    );
    assert!(
        !parsed("--model-repository=m --rate-limit=off")
            .unwrap()
            .engine
            .limits_rate
    );
}

#[test]
fn sagemaker_keeps_other_listeners_to_its_ports() {
    let outcome = |line: &str| parsed(&format!("--model-repository=m {line}"));
    let sagemaker = "--allow-sagemaker=true --sagemaker-safe-port-range=8000-8002";
    assert!(outcome(sagemaker).is_ok());
    assert!(outcome("--sagemaker-safe-port-range=1-2").is_ok());
    assert!(
        outcome(&format!(
            "{sagemaker} --http-address=127.0.0.1 --http-port=9 --metrics-address=0.0.0.0"
        ))
        .is_ok()
    );
    for (line, expected) in [
        (
            "--http-port=8003",
            "The server cannot listen to HTTP requests at port 8003, allowed port range is [8000, \
             8002]",
        ),
        (
            "--metrics-port=1",
            "The server cannot listen to metrics requests at port 1, allowed port range is [8000, \
             8002]",
        ),
        (
            "--allow-vertex-ai=true",
            "The server cannot listen to Vertex AI requests at port 8080, allowed port range is \
             [8000, 8002]",
        ),
        (
            "--sagemaker-port=8001",
            "The server cannot listen to GRPC requests and SageMaker requests at the same address \
             and port 0.0.0.0:8001",
        ),
    ] {
        let line = format!("{sagemaker} {line}");
        assert_eq!(
            outcome(&line).err(),
            Some(EarlyExit::Clash(expected.to_owned())),
            "{line}"
        );
    }
}

#[test]
fn every_served_flag_can_be_set() {
    for flag in flags().filter(|flag| {
        matches!(
            flag.effect,
            FlagEffect::Served(_) | FlagEffect::Deprecated { .. }
        )
    }) {
        let value = match (flag.name, flag.takes) {
            ("log-format", _) => "default",
            ("log-verbose", _) => "1",
            ("grpc-infer-response-compression-level", _) => "low",
            ("model-control-mode", _) => "explicit",
            ("backend-config" | "metrics-config", _) => "a=b",
            ("trace-config", _) => "rate=5",
            ("trace-level", _) => "TENSORS",
            ("http-restricted-api" | "grpc-restricted-protocol", _) => "health:k=v",
            ("http-cors-origins", _) => "http://a",
            ("sagemaker-safe-port-range", _) => "1-2",
            ("host-policy", _) => "p,cpu-cores=0-1,3-3",
            ("cache-config", _) => "a,b=c",
            ("rate-limit", _) => "execution_count",
            ("rate-limit-resource", _) => "r:1",
            ("memory-limit-bytes", _) => "1048576",
            ("cuda-memory-pool-byte-size" | "cuda-virtual-address-size", _) => "0:1048576",
            ("min-supported-compute-capability", _) => "7.5",
            ("model-load-gpu-limit", _) => "0:0.5",
            ("shard-affinity", _) => "set",
            ("unix-socket-mode", _) => "660",
            ("shm-allowed-uids", _) => "all",
            ("tls-host-cert", _) => "a:c.pem:k.pem",
            (_, FlagValueKind::Bool) => "true",
            (_, FlagValueKind::Int) => "5",
            (_, FlagValueKind::Nothing | FlagValueKind::Text(_)) => "text",
        };
        flag.apply(&mut Arguments::default(), value)
            .unwrap_or_else(|reason| panic!("{}: {reason}", flag.name));
    }
}

#[test]
fn inert_flags_warn_and_defaults_of_unserved_ones_pass() {
    let arguments = parsed(
        "--model-repository=m --http-thread-count=4 --grpc-use-ssl=false --model-control-mode=NONE \
         --strict-model-config=true --model-namespacing=true \
         --metrics-config=summary_latencies=false --metrics-config=a=b",
    )
    .unwrap();
    assert_eq!(arguments.warnings.len(), 2);
    assert_eq!(
        arguments.console_warnings,
        [
            "Warning: '--strict-model-config' has been deprecated! Please use \
             '--disable-auto-complete-config' instead."
        ]
    );
    assert!(!arguments.engine.auto_complete);
}

#[test]
fn deprecated_flags_give_way() {
    for (line, completes, overrides) in [
        ("", true, 0),
        (
            "--strict-model-config=true --strict-model-config=false",
            true,
            0,
        ),
        ("--strict-model-config=true", false, 0),
        ("--disable-auto-complete-config", false, 0),
        (
            "--strict-model-config=false --disable-auto-complete-config",
            false,
            1,
        ),
        (
            "--disable-auto-complete-config --strict-model-config=false",
            false,
            1,
        ),
        (
            "--disable-auto-complete-config --strict-model-config=true",
            false,
            0,
        ),
        ("--trace-rate=3 --trace-config=rate=4", true, 1),
    ] {
        let arguments = parsed(&format!("--model-repository=m {line}")).unwrap();
        assert_eq!(arguments.engine.auto_complete, completes, "{line}");
        let overriding = arguments
            .console_warnings
            .iter()
            .filter(|warning| warning.starts_with("Warning: Overriding deprecated"));
        assert_eq!(overriding.count(), overrides, "{line}");
    }
}

#[test]
fn what_upstream_starts_with() {
    for line in [
        "--grpc-port -47 --allow-grpc 0",
        "--allow-metrics=false --metrics-port=70000",
        "--sagemaker-port=-1 --vertex-ai-port=65536",
        "--http-port=-1 --http-port=8000",
        "--trace-config=rate=-1 --trace-config=count=-5",
        "--model-load-gpu-limit=0:0.5 --model-load-gpu-limit=1:1",
    ] {
        assert!(
            parsed(&format!("--model-repository=m {line}")).is_ok(),
            "{line}"
        );
    }
    for count in ["0", "-3"] {
        let line = format!("--model-repository=m --model-load-thread-count={count}");
        assert_eq!(parsed(&line).unwrap().engine.model_load_thread_count, 1);
    }
    for (line, expected) in [
        (
            "--grpc-port=-47",
            "Provided option value is out of bound. Got -47",
        ),
        (
            "--http-port=8000 --http-port=-1",
            "Provided option value is out of bound. Got -1",
        ),
        (
            "--model-load-gpu-limit=-1:0.6",
            "error: setting model load GPU limit: Invalid argument - expects device ID >= 0, got \
             -1",
        ),
        (
            "--model-load-gpu-limit=0:-0.4",
            "error: setting model load GPU limit: Invalid argument - expects limit fraction to be \
             in range [0.0, 1.0], got -0.4",
        ),
        (
            "--model-load-gpu-limit=x",
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument \
             requires format <first>:<second>. Found: x",
        ),
        (
            "--cuda-memory-pool-byte-size=0:x",
            "Invalid option value. Got x",
        ),
        (
            "--min-supported-compute-capability=x",
            "Invalid option value. Got x",
        ),
        (
            "--grpc-infer-thread-count=1",
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        ),
    ] {
        assert_eq!(
            reason(&format!("--model-repository=m {line}")),
            expected,
            "{line}"
        );
    }
    assert_eq!(parsed("-h").err(), Some(EarlyExit::Help));
    assert_eq!(
        parsed("--model-repository=m --version").err(),
        Some(EarlyExit::Version)
    );
}

#[test]
fn where_shards_run() {
    use ShardAffinity::{Auto, Pinned, Set};
    for (line, expected) in [
        ("", Auto),
        ("--shard-affinity=auto", Auto),
        ("--shard-affinity=Pinned", Pinned),
        ("--shard-affinity set", Set),
    ] {
        let line = format!("--model-repository=m {line}");
        assert_eq!(
            parsed(&line).unwrap().frontend.shard_affinity,
            expected,
            "{line}"
        );
    }
    assert_eq!(
        reason("--model-repository=m --shard-affinity=all"),
        "Invalid option value. Got all. It takes one of: auto, pinned, set"
    );
}

#[test]
fn metrics_do_not_inherit_what_is_no_address() {
    let outcome = |line: &str| parsed(&format!("--model-repository=m {line}")).unwrap();
    for (line, is_served) in [
        ("--http-address=-47 --allow-http=0", false),
        (
            "--http-address=-47 --allow-http=0 --metrics-address=::1",
            true,
        ),
        ("--http-address=-47", true),
        ("--http-address=:: --allow-http=0", true),
        ("--http-address=my-host.example. --allow-http=0", true),
    ] {
        let arguments = outcome(line);
        assert_eq!(arguments.engine.allow_metrics, is_served, "{line}");
        assert_eq!(arguments.warnings.is_empty(), is_served, "{line}");
    }
}

#[test]
fn backend_settings_have_their_form() {
    let outcome = |value: &str| parsed(&format!("--model-repository=m --backend-config={value}"));
    assert_eq!(
        outcome("x,y=a,b=c").unwrap().plugins.backend_config,
        [("x".into(), "y".into(), "a,b=c".into())]
    );
    let form = "--backend-config option format is '<backend name>,<setting>=<value>'. Got";
    for (value, expected) in [
        (
            ",y=z",
            "No backend specified. --backend-config option format is <backend \
             name>,<setting>=<value> or <setting>=<value>. Got ,y=z"
                .to_owned(),
        ),
        ("y", format!("{form} y")),
        ("y=", format!("{form} y=")),
        ("x,y", format!("{form} x,y")),
        ("x,=z", format!("{form} x,=z")),
    ] {
        let flag = String::from("backend-config");
        let reason = expected;
        assert_eq!(
            outcome(value).err(),
            Some(EarlyExit::Bad { flag, reason }),
            "{value}"
        );
    }
}

#[test]
fn flags_without_effect_on_unix_sockets() {
    for (line, warnings) in [
        ("--unix-socket-mode=660", 1),
        ("--unix-socket-mode=660 --http-address=unix:/s", 0),
        (
            "--unix-socket-mode=660 --http-address=unix:/s --allow-http=0",
            1,
        ),
        ("--http-address=unix:/s --reuse-http-port=1", 1),
        ("--http-address=unix:/s --reuse-grpc-port=1", 0),
    ] {
        let arguments = parsed(&format!("--model-repository=m {line}")).unwrap();
        assert_eq!(
            arguments.warnings.len(),
            warnings,
            "{line}: {:?}",
            arguments.warnings
        );
    }
    for (line, address) in [
        ("--http-address=unix:/s", "127.0.0.1"),
        (
            "--http-address=unix:/s --metrics-address=unix:/m",
            "unix:/m",
        ),
        ("--http-address=::1", "::1"),
    ] {
        let arguments = parsed(&format!("--model-repository=m {line}")).unwrap();
        assert_eq!(arguments.listeners.metrics.endpoint.address, address);
    }
    assert_eq!(
        reason("--model-repository=m --http-address=unix:/s --grpc-address=unix:///s"),
        "The server cannot listen to HTTP requests and GRPC requests at the same address and port \
         unix:/s"
    );
}
