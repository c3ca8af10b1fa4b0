//! What the parameters of a model's configuration say, under the names and with the words of
//! Triton's OpenVINO backend.

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig};

/// Settings of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `TARGET_DEVICE`: `CPU`, or what OpenVINO calls another one.
    pub device: String,
    /// `CPU_EXTENSION_PATH`: a library of custom operators.
    pub extension: Option<String>,
    /// `SKIP_OV_DYNAMIC_BATCHSIZE`: batches have `max_batch_size` rows, always.
    pub has_fixed_batches: bool,
    /// `ENABLE_BATCH_PADDING`: smaller batches are filled up with zeros.
    pub pads_batches: bool,
    /// `RESHAPE_IO_LAYERS`: inputs get the dimensions that the configuration says.
    pub reshapes_inputs: bool,
    /// `INFER_REQUESTS`, this backend's own: runs at a time in each instance.
    pub infer_requests: Option<usize>,
    /// Properties of the device, by OpenVINO's names.
    pub properties: Vec<(&'static str, String)>,
}

impl Settings {
    /// # Errors
    /// `InvalidArgument` if a parameter has a value that it cannot have.
    pub fn new(config: &ModelConfig) -> Result<Self, Error> {
        let text = |name| config.parameter(name).filter(|value| !value.is_empty());
        let is_set = |name| text(name).is_some_and(|value| value.eq_ignore_ascii_case("yes"));
        let mut properties = Vec::new();
        for (name, read) in PROPERTIES {
            if let Some(value) = text(name) {
                properties.push(read(name, value)?);
            }
        }
        let infer_requests = text(REQUESTS)
            .map(|value| match value.parse() {
                Ok(count) if (1..=REQUESTS_MAX).contains(&count) => Ok(count),
                _ => refused(REQUESTS, "a number from 1 to 64", value),
            })
            .transpose()?;
        Ok(Settings {
            infer_requests,
            device: text("TARGET_DEVICE").unwrap_or("CPU").to_ascii_uppercase(),
            extension: text("CPU_EXTENSION_PATH").map(str::to_owned),
            has_fixed_batches: is_set("SKIP_OV_DYNAMIC_BATCHSIZE"),
            pads_batches: is_set("ENABLE_BATCH_PADDING"),
            reshapes_inputs: is_set("RESHAPE_IO_LAYERS"),
            properties,
        })
    }

    /// Properties that were not set, and how the instance's thread sets them: as many threads as it
    /// has CPUs, and a stream for each instance that shares them. Threads are not bound to CPUs by
    /// OpenVINO, which begins with the same ones for each model.
    pub fn defaults(&self, cpu_count: usize, share: usize) -> Vec<(&'static str, String)> {
        if self.device != "CPU" {
            return Vec::new();
        }
        let is_set = |name| self.properties.iter().any(|(set, _)| *set == name);
        let mut defaults = vec![("ENABLE_CPU_PINNING", "NO".to_owned())];
        if !is_set(THREADS) {
            defaults.push((THREADS, cpu_count.to_string()));
        }
        // A hint is there to choose the number of streams.
        if !is_set(STREAMS) && !is_set(HINT) {
            defaults.push((STREAMS, (cpu_count / share.max(1)).max(1).to_string()));
        }
        defaults
    }
}

/// Each has a thread and scratch memory for the whole model.
pub const REQUESTS_MAX: usize = 64;
const REQUESTS: &str = "INFER_REQUESTS";
const THREADS: &str = "INFERENCE_NUM_THREADS";
const PRECISION: &str = "INFERENCE_PRECISION_HINT";
const STREAMS: &str = "NUM_STREAMS";
const HINT: &str = "PERFORMANCE_HINT";

type Property = (&'static str, String);
type Read = fn(&'static str, &str) -> Result<Property, Error>;

/// Parameters that become properties. All but one have the property's name.
const PROPERTIES: [(&str, Read); 6] = [
    (THREADS, number),
    ("COMPILATION_NUM_THREADS", number),
    ("HINT_BF16", bf16),
    (PRECISION, precision),
    (STREAMS, streams),
    (HINT, hint),
];

fn number(name: &'static str, value: &str) -> Result<Property, Error> {
    match is_number(value) {
        true => Ok((name, value.to_owned())),
        false => refused(name, "a non-negative number", value),
    }
}

fn bf16(name: &'static str, value: &str) -> Result<Property, Error> {
    match value.eq_ignore_ascii_case("yes") {
        true => Ok((PRECISION, "bf16".to_owned())),
        false => refused(name, "YES", value),
    }
}

/// This backend's own: processors that compute with bf16 do so unless they are told not to.
fn precision(name: &'static str, value: &str) -> Result<Property, Error> {
    let lower = value.to_ascii_lowercase();
    match matches!(&*lower, "f32" | "f16" | "bf16") {
        true => Ok((name, lower)),
        false => refused(name, "f32, f16 or bf16", value),
    }
}

fn streams(name: &'static str, value: &str) -> Result<Property, Error> {
    let upper = value.to_ascii_uppercase();
    match matches!(&*upper, "AUTO" | "NUMA") || is_number(value) {
        true => Ok((name, upper)),
        false => refused(name, "either AUTO/NUMA/<int_value>", value),
    }
}

fn hint(name: &'static str, value: &str) -> Result<Property, Error> {
    let upper = value.to_ascii_uppercase();
    match matches!(&*upper, "LATENCY" | "THROUGHPUT" | "CUMULATIVE_THROUGHPUT") {
        true => Ok((name, upper)),
        false => refused(name, "LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT", value),
    }
}

/// Upstream's words, with the value in small letters as it shows it.
fn refused<T>(name: &str, expected: &str, value: &str) -> Result<T, Error> {
    Err(Error::invalid(format!(
        "expected the parameter '{name}' to be {expected}, got {}",
        value.to_ascii_lowercase()
    )))
}

/// A number that OpenVINO's properties can have.
fn is_number(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit()) && value.parse::<i32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(parameters: &[(&str, &str)]) -> Result<Settings, Error> {
        let entries: Vec<_> = parameters
            .iter()
            .map(|(name, value)| format!(r#""{name}": {{"string_value": "{value}"}}"#))
            .collect();
        let json = format!(r#"{{"parameters": {{{}}}}}"#, entries.join(","));
        Settings::new(&ModelConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn reads_upstreams_parameters() {
        let none = settings(&[]).unwrap();
        assert_eq!(none.device, "CPU");
        assert!(!none.has_fixed_batches && !none.pads_batches && !none.reshapes_inputs);
        assert_eq!((none.extension, none.properties), (None, vec![]));
        let all = settings(&[
            ("TARGET_DEVICE", "auto"),
            ("CPU_EXTENSION_PATH", "/opt/libops.so"),
            ("INFER_REQUESTS", "8"),
            ("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"),
            ("ENABLE_BATCH_PADDING", "yes"),
            ("RESHAPE_IO_LAYERS", "Yes"),
            ("INFERENCE_NUM_THREADS", "3"),
            ("COMPILATION_NUM_THREADS", "2"),
            ("HINT_BF16", "YES"),
            ("NUM_STREAMS", "auto"),
            ("PERFORMANCE_HINT", "throughput"),
        ])
        .unwrap();
        assert_eq!(all.device, "AUTO");
        assert_eq!(all.infer_requests, Some(8));
        assert_eq!(all.extension.as_deref(), Some("/opt/libops.so"));
        assert!(all.has_fixed_batches && all.pads_batches && all.reshapes_inputs);
        let property = |name, value: &str| (name, value.to_owned());
        assert_eq!(
            all.properties,
            [
                property("INFERENCE_NUM_THREADS", "3"),
                property("COMPILATION_NUM_THREADS", "2"),
                property("INFERENCE_PRECISION_HINT", "bf16"),
                property("NUM_STREAMS", "AUTO"),
                property("PERFORMANCE_HINT", "THROUGHPUT"),
            ]
        );
        // As upstream's, anything but yes is no.
        assert!(
            !settings(&[("ENABLE_BATCH_PADDING", "true")])
                .unwrap()
                .pads_batches
        );
    }

    #[test]
    fn refuses_other_values_in_upstreams_words() {
        for (name, value, expected) in [
            (
                "INFERENCE_NUM_THREADS",
                "-1",
                "a non-negative number, got -1",
            ),
            (
                "INFERENCE_NUM_THREADS",
                "99999999999",
                "a non-negative number, got 99999999999",
            ),
            (
                "COMPILATION_NUM_THREADS",
                "Many",
                "a non-negative number, got many",
            ),
            (
                "INFERENCE_PRECISION_HINT",
                "F64",
                "f32, f16 or bf16, got f64",
            ),
            ("INFER_REQUESTS", "0", "a number from 1 to 64, got 0"),
            ("INFER_REQUESTS", "65", "a number from 1 to 64, got 65"),
            ("HINT_BF16", "NO", "YES, got no"),
            (
                "NUM_STREAMS",
                "some",
                "either AUTO/NUMA/<int_value>, got some",
            ),
            (
                "PERFORMANCE_HINT",
                "FAST",
                "LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast",
            ),
        ] {
            assert_eq!(
                settings(&[(name, value)]).unwrap_err().message(),
                format!("expected the parameter '{name}' to be {expected}")
            );
        }
    }

    #[test]
    fn fills_in_what_is_not_set() {
        let defaults = |parameters: &[_], cpus, share| {
            let defaults = settings(parameters).unwrap().defaults(cpus, share);
            let text = defaults
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            text.collect::<Vec<_>>().join(" ")
        };
        let pinning = "ENABLE_CPU_PINNING=NO";
        for (parameters, cpus, share, expected) in [
            (&[][..], 8, 8, " INFERENCE_NUM_THREADS=8 NUM_STREAMS=1"),
            (&[], 8, 2, " INFERENCE_NUM_THREADS=8 NUM_STREAMS=4"),
            (&[], 2, 1, " INFERENCE_NUM_THREADS=2 NUM_STREAMS=2"),
            (&[("INFERENCE_NUM_THREADS", "3")], 8, 8, " NUM_STREAMS=1"),
            (&[("NUM_STREAMS", "3")], 8, 8, " INFERENCE_NUM_THREADS=8"),
            (
                &[("PERFORMANCE_HINT", "latency")],
                8,
                8,
                " INFERENCE_NUM_THREADS=8",
            ),
        ] {
            assert_eq!(
                defaults(parameters, cpus, share),
                format!("{pinning}{expected}")
            );
        }
        assert_eq!(defaults(&[("TARGET_DEVICE", "GPU")], 8, 8), "");
    }
}
