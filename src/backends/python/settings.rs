//! Settings of the backend (`--backend-config=python,<name>=<value>`) and of a model (`parameters`
//! of its configuration).

use std::path::PathBuf;
use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::{BackendConfig, Error, ModelConfig};

/// What holds for all models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Of each of the two segments of an instance.
    pub(crate) segment_bytes: u64,
    /// A stub that was told to end is given that long.
    pub(crate) stop_timeout: Duration,
    /// `initialize` of a model may take that long; none: as long as it takes.
    pub(crate) start_timeout: Option<Duration>,
    /// The interpreter, as a path or a name that is looked up in `PATH`.
    pub(crate) interpreter: PathBuf,
    pub(crate) restart: RestartSettings,
}

/// When a stub that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartSettings {
    /// Attempts in a row that fail before the instance is given up.
    pub(crate) limit: u32,
    /// The pause before the second attempt; each that follows is twice as long.
    pub(crate) pause: Duration,
}

const MIB: u64 = 1 << 20;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            segment_bytes: 4096 * MIB,
            stop_timeout: Duration::from_secs(30),
            start_timeout: Some(Duration::from_secs(1200)),
            interpreter: PathBuf::from("python3"),
            restart: RestartSettings {
                limit: 5,
                pause: Duration::from_millis(100),
            },
        }
    }
}

/// Settings of upstream's backend that have no effect here.
const INERT: [&str; 3] = [
    "shm-region-prefix-name",
    "shm_message_queue_size",
    "thread-pool-size",
];

/// Those of them that are set.
pub(crate) fn inert(config: &BackendConfig) -> impl Iterator<Item = &'static str> + '_ {
    let is_set = |name: &&str| config.setting(name).is_some();
    INERT.into_iter().filter(is_set)
}

impl Settings {
    /// # Errors
    /// `InvalidArgument` for a value that is none.
    pub(crate) fn read(config: &BackendConfig) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        let default_bytes = config.integer("shm-default-byte-size")?;
        if default_bytes.is_some_and(|bytes| bytes < MIB as i64) {
            return Err(Error::invalid(
                "shm-default-byte-size can't be smaller than 4 MiBs",
            ));
        }
        for name in ["shm-growth-byte-size", "stub-timeout-seconds"] {
            if config.integer(name)?.is_some_and(|value| value <= 0) {
                return Err(Error::invalid(format!(
                    "{name} can't be smaller than or equal to zero."
                )));
            }
        }
        if config
            .integer("thread-pool-size")?
            .is_some_and(|count| count < 1)
        {
            return Err(Error::invalid("thread-pool-size can't be less than 1."));
        }
        if config.setting("shm-region-prefix-name") == Some("") {
            return Err(Error::invalid(
                "shm-region-prefix-name must at least contain one character.",
            ));
        }
        if let Some(seconds) = seconds(config, "stub-timeout-seconds")? {
            settings.stop_timeout = seconds;
        }
        if let Some(limit) = config.integer("shm-max-byte-size")? {
            settings.segment_bytes = u64::try_from(limit)
                .ok()
                .filter(|bytes| (MIB..=1 << 40).contains(bytes))
                .ok_or_else(|| {
                    Error::invalid("shm-max-byte-size is between 1 MiB and 1 TiB".to_owned())
                })?;
        }
        if let Some(limit) = seconds(config, "initialize-timeout-seconds")? {
            settings.start_timeout = (!limit.is_zero()).then_some(limit);
        }
        if let Some(interpreter) = config.setting("python-interpreter") {
            settings.interpreter = PathBuf::from(interpreter);
        }
        if let Some(limit) = config.integer("stub-restart-limit")? {
            settings.restart.limit = u32::try_from(limit)
                .map_err(|_| Error::invalid("stub-restart-limit is not negative"))?;
        }
        if let Some(pause) = config.integer("stub-restart-pause-ms")? {
            settings.restart.pause = u64::try_from(pause)
                .map(Duration::from_millis)
                .map_err(|_| Error::invalid("stub-restart-pause-ms is not negative"))?;
        }
        Ok(settings)
    }
}

fn seconds(config: &BackendConfig, name: &str) -> Result<Option<Duration>, Error> {
    let seconds = config.integer(name)?.map(u64::try_from).transpose();
    seconds
        .map(|seconds| seconds.map(Duration::from_secs))
        .map_err(|_| Error::invalid(format!("{name} is not negative")))
}

/// What a model's `parameters` set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelSettings {
    /// A folder with an environment, or an archive of one.
    pub(crate) environment: Option<String>,
    pub(crate) interpreter: Option<PathBuf>,
    /// Instances on GPUs get inputs that lie there as they are.
    pub(crate) has_device_inputs: bool,
}

impl ModelSettings {
    /// # Errors
    /// `Unsupported` for a value that a parameter cannot have, in upstream's words.
    pub(crate) fn read(config: &ModelConfig) -> Result<ModelSettings, Error> {
        let parameter = |name: &str| {
            let value = config.json().pointer("/parameters")?.get(name)?;
            let value = value.get("string_value")?.as_str()?;
            (!value.is_empty()).then(|| value.to_owned())
        };
        let force = parameter("FORCE_CPU_ONLY_INPUT_TENSORS");
        Ok(ModelSettings {
            environment: parameter("EXECUTION_ENV_PATH"),
            interpreter: parameter("python-interpreter").map(PathBuf::from),
            has_device_inputs: match force.as_deref() {
                None | Some("yes") => false,
                Some("no") => true,
                Some(other) => {
                    return Err(Error::unsupported(format!(
                        "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {other}'"
                    )));
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(cmdline: &str) -> Result<Settings, String> {
        let config = format!(r#"{{"cmdline": {{{cmdline}}}}}"#);
        let config = BackendConfig::parse(config.as_bytes()).unwrap();
        Settings::read(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_read_or_refused() {
        assert_eq!(read(""), Ok(Settings::default()));
        let set = read(
            r#""shm-default-byte-size": "67108864", "stub-timeout-seconds": "3",
            "shm-max-byte-size": "2097152", "initialize-timeout-seconds": "0",
            "python-interpreter": "/opt/py", "stub-restart-limit": "0""#,
        )
        .unwrap();
        assert_eq!(set.stop_timeout, Duration::from_secs(3));
        assert_eq!((set.segment_bytes, set.start_timeout), (2 * MIB, None));
        assert_eq!(set.interpreter, PathBuf::from("/opt/py"));
        assert_eq!(set.restart.limit, 0);
        for (text, expected) in [
            (
                r#""shm-default-byte-size": "1000""#,
                "shm-default-byte-size can't be smaller than 4 MiBs",
            ),
            (
                r#""shm-growth-byte-size": "0""#,
                "shm-growth-byte-size can't be smaller than or equal to zero.",
            ),
            (
                r#""stub-timeout-seconds": "-1""#,
                "stub-timeout-seconds can't be smaller than or equal to zero.",
            ),
            (
                r#""thread-pool-size": "0""#,
                "thread-pool-size can't be less than 1.",
            ),
            (
                r#""shm-region-prefix-name": """#,
                "shm-region-prefix-name must at least contain one character.",
            ),
            (
                r#""shm-max-byte-size": "1""#,
                "shm-max-byte-size is between 1 MiB and 1 TiB",
            ),
            (r#""stub-restart-limit": "many""#, "expected an integer"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn parameters_of_a_model() {
        let config = ModelConfig::parse(
            br#"{"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/envs/a"},
                "python-interpreter": {"string_value": ""}}}"#,
        );
        let read = ModelSettings::read(&config.unwrap()).unwrap();
        assert_eq!(read.environment.as_deref(), Some("/envs/a"));
        assert_eq!(read.interpreter, None);
        assert!(!read.has_device_inputs);
    }

    #[test]
    fn where_inputs_lie() {
        for (value, expected) in [("yes", Some(false)), ("no", Some(true)), ("maybe", None)] {
            let name = "FORCE_CPU_ONLY_INPUT_TENSORS";
            let config = json!({ "parameters": { name: { "string_value": value } } });
            let config = ModelConfig::parse(config.to_string().as_bytes()).unwrap();
            let read = ModelSettings::read(&config).map(|read| read.has_device_inputs);
            assert_eq!(read.ok(), expected, "{value}");
        }
    }
}
