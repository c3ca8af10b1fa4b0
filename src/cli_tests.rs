//! What command lines come to.

use super::*;

fn parsed(line: &str) -> Result<Arguments, Stop> {
    parse(line.split_whitespace().map(String::from), &|_| None)
}

fn reason(line: &str) -> String {
    match parsed(line) {
        Err(Stop::Bad { reason, .. } | Stop::Clash(reason)) => reason,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn accepts_both_forms_prefixes_and_repeats() {
    let arguments = parsed(
        "--model-repository=b --model-store a --model-repo b --http-port 1 --grpc-port=2 --log-v true --allow-metrics=OFF \
         --backend-config=x,y=z=w --backend-config k=v",
    )
    .unwrap();
    assert_eq!(
        arguments.model_repositories,
        [PathBuf::from("a"), PathBuf::from("b")]
    );
    assert_eq!(
        (
            arguments.http.port,
            arguments.grpc.port,
            arguments.log_verbose
        ),
        (1, 2, 1)
    );
    assert!(!arguments.metrics.is_enabled);
    let expected =
        [("x", "y", "z=w"), ("", "k", "v")].map(|(a, b, c)| (a.into(), b.into(), c.into()));
    assert_eq!(arguments.backend_config, expected);
}

#[test]
fn metrics_and_retries_are_set() {
    let arguments = parsed(
        "--model-repository=m --metrics-interval-ms=250 --metrics-config=counter_latencies=false --model-load-retry-count=2",
    )
    .unwrap();
    assert_eq!(
        (
            arguments.metrics_interval_ms,
            arguments.counter_latencies,
            arguments.model_load_retry_count
        ),
        (250, false, 2)
    );
}

#[test]
fn model_control() {
    let arguments = parsed("--model-repository=m").unwrap();
    assert_eq!(
        (arguments.model_control_mode, arguments.repository_poll_secs),
        (ControlMode::None, 15)
    );
    let arguments = parsed(
        "--model-repository=m --model-control-mode=Explicit --load-model=b --load-model a --load-model=b --repository-poll-secs=2",
    )
    .unwrap();
    assert_eq!(arguments.model_control_mode, ControlMode::Explicit);
    assert_eq!(arguments.startup_models, ["a", "b"]);
    assert_eq!(arguments.repository_poll_secs, 2);
}

#[test]
fn caches() {
    let row = |name: &str, setting: &str, value: &str| {
        (name.to_owned(), setting.to_owned(), value.to_owned())
    };
    let arguments = parsed(
        "--model-repository=m --cache-directory=c --cache-config=redis,host=h,i --cache-config redis,password=a=b",
    )
    .unwrap();
    assert_eq!(arguments.cache_directory, PathBuf::from("c"));
    assert_eq!(
        arguments.cache_config,
        [row("redis", "host", "h,i"), row("redis", "password", "a=b")]
    );
    let arguments = parsed(
        "--model-repository=m --response-cache-byte-size=5 --response-cache-byte-size=1048576",
    )
    .unwrap();
    assert_eq!(arguments.cache_config, [row("local", "size", "1048576")]);
    assert_eq!(arguments.warnings.len(), 2);
    assert!(arguments.warnings[0].contains("--cache-config=local,size="));
    let both = "--model-repository=m --cache-config=local,size=1 --response-cache-byte-size=5";
    assert_eq!(
        reason(both),
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other."
    );
    for (value, expected) in [
        (
            "size=1",
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got size=1",
        ),
        (
            ",size=1",
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got ,size=1",
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
        ("stray", "Unexpected argument: stray"),
        ("-h", "Unexpected argument: -h"),
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
        ("--log-format=iso8601", "invalid argument for --log-format"),
        (
            "--model-control-mode=manual",
            "invalid argument for --model-control-mode",
        ),
        (
            "--model-repository=m --model-control-mode=poll --load-model=a",
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        ("--no-such", "no such option; --help lists all"),
        (
            "--http-max-input-size=0",
            "Error: --http-max-input-size must be greater than 0.",
        ),
        ("", "Error: --model-repository must be specified"),
        (
            "--model-repository=m --grpc-port=8000",
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8000",
        ),
    ] {
        assert_eq!(reason(line), expected, "{line}");
    }
    for (line, expected) in [
        (
            "--host-policy=p",
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got p",
        ),
        (
            "--host-policy=p,gpu=1",
            "Unsupported host policy setting 'gpu' is specified, supported settings are 'numa-node', 'cpu-cores'",
        ),
        (
            "--metrics-config=a",
            "--metrics-config option format is <setting>=<value>. Got a",
        ),
        (
            "--metrics-config=a,counter_latencies=true",
            "--metrics-config option format is <setting>=<value>. Got a,counter_latencies=true",
        ),
        ("--rate-limit=often", "invalid argument for --rate-limit"),
        (
            "--rate-limit-resource=R",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got R",
        ),
        (
            "--rate-limit-resource=R:1:2:3",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got R:1:2:3",
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
    assert!(reason("--metrics-config=summary_latencies=true").contains("does not serve"));
}

#[test]
fn the_rate_limiter_is_set() {
    let arguments = parsed(
        "--model-repository=m --rate-limit=Execution_Count --rate-limit-resource=R1:10 --rate-limit-resource R2:5:0 \
         --rate-limit-resource=R3:2:-1",
    )
    .unwrap();
    let capacity = |name: &str, count, device| Capacity {
        name: name.to_owned(),
        count,
        device,
    };
    assert!(arguments.limits_rate);
    assert_eq!(
        arguments.rate_capacities,
        [
            capacity("R1", 10, None),
            capacity("R2", 5, Some(0)),
            capacity("R3", 2, None),
        ]
    );
    assert!(
        !parsed("--model-repository=m --rate-limit=off")
            .unwrap()
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
            "The server cannot listen to HTTP requests at port 8003, allowed port range is [8000, 8002]",
        ),
        (
            "--metrics-port=1",
            "The server cannot listen to metrics requests at port 1, allowed port range is [8000, 8002]",
        ),
        (
            "--allow-vertex-ai=true",
            "The server cannot listen to Vertex AI requests at port 8080, allowed port range is [8000, 8002]",
        ),
        (
            "--sagemaker-port=8001",
            "The server cannot listen to GRPC requests and SageMaker requests at the same address and port 0.0.0.0:8001",
        ),
    ] {
        let line = format!("{sagemaker} {line}");
        assert_eq!(
            outcome(&line),
            Err(Stop::Clash(expected.to_owned())),
            "{line}"
        );
    }
}

#[test]
fn every_served_flag_can_be_set() {
    for flag in flags::FLAGS
        .iter()
        .filter(|flag| matches!(flag.effect, Effect::Served | Effect::Deprecated(_)))
    {
        let value = match (flag.name, flag.takes) {
            ("help", _) => continue,
            ("log-format", _) => "default",
            ("log-verbose", _) => "1",
            ("grpc-infer-response-compression-level", _) => "low",
            ("model-control-mode", _) => "explicit",
            ("backend-config" | "metrics-config", _) => "a=b",
            ("trace-config", _) => "rate=5",
            ("trace-level", _) => "TENSORS",
            ("http-restricted-api" | "grpc-restricted-protocol", _) => "health:k=v",
            ("sagemaker-safe-port-range", _) => "1-2",
            ("host-policy", _) => "p,cpu-cores=0-1,3-3",
            ("cache-config", _) => "a,b=c",
            ("rate-limit", _) => "execution_count",
            ("rate-limit-resource", _) => "r:1",
            ("memory-limit-bytes", _) => "1048576",
            (_, Takes::Bool) => "true",
            (_, Takes::Int) => "5",
            (_, Takes::Nothing | Takes::Text(_)) => "text",
        };
        set(&mut Arguments::default(), flag.name, value)
            .unwrap_or_else(|reason| panic!("{}: {reason}", flag.name));
    }
}

#[test]
fn inert_flags_warn_and_defaults_of_unserved_ones_pass() {
    let arguments = parsed(
        "--model-repository=m --http-thread-count=4 --grpc-use-ssl=false --model-control-mode=NONE --strict-model-config=true \
         --model-namespacing=true --metrics-config=summary_latencies=false --metrics-config=a=b",
    )
    .unwrap();
    assert_eq!(arguments.warnings.len(), 3);
    assert!(!arguments.auto_complete);
}
