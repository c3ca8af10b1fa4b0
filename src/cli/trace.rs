//! `--trace-config` and the five deprecated options that it replaces.

use conch_frontend::{TraceLevels, TraceOptions};

use crate::collector::CollectorFlags;
use crate::deprecated;
use crate::values::{out_of_bound, parse_int};

/// What the options of both kinds ask for. The new ones win, wherever they stand; levels add up,
/// and `OFF` anywhere is off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceFlags {
    levels: TraceLevels,
    is_off: bool,
    is_opentelemetry: bool,
    deprecated: GivenTraceFlags,
    config: GivenTraceFlags,
    /// Settings given by deprecated flags, and those given by `--trace-config`, in order.
    deprecated_settings: Vec<TraceFlag>,
    config_settings: Vec<TraceFlag>,
    collector: CollectorFlags,
    /// Settings of one mode, as they were given, and whether that is `opentelemetry`.
    of_modes: Vec<(bool, String)>,
}

/// A setting that a deprecated flag `--trace-<name>` has, and `--trace-config` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFlag {
    Level,
    Rate,
    Count,
    File,
    LogFrequency,
}

impl TraceFlag {
    const ALL: [TraceFlag; 5] = [
        TraceFlag::Level,
        TraceFlag::Rate,
        TraceFlag::Count,
        TraceFlag::File,
        TraceFlag::LogFrequency,
    ];

    pub fn name(self) -> &'static str {
        match self {
            TraceFlag::Level => "level",
            TraceFlag::Rate => "rate",
            TraceFlag::Count => "count",
            TraceFlag::File => "file",
            TraceFlag::LogFrequency => "log-frequency",
        }
    }

    /// Whether it is a setting of the mode `triton`, and not of all modes.
    fn is_of_mode(self) -> bool {
        matches!(self, TraceFlag::File | TraceFlag::LogFrequency)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct GivenTraceFlags {
    file: Option<String>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
}

impl TraceFlags {
    /// What a deprecated flag says.
    ///
    /// # Errors
    /// Why the value is none.
    pub fn set_deprecated(&mut self, setting: TraceFlag, value: &str) -> Result<(), String> {
        self.deprecated_settings.push(setting);
        match setting {
            TraceFlag::Level => self.add_level(value),
            setting => self.deprecated.set(setting, value),
        }
    }

    /// `[<mode>,]<setting>=<value>`. Returns a warning if it has no effect.
    ///
    /// # Errors
    /// Upstream's texts for what is not of that form.
    pub fn set_config(&mut self, text: &str) -> Result<Option<String>, String> {
        let (mode, rest) = match text.split_once(',') {
            None => ("", text),
            Some(("", _)) => {
                return Err(format!(
                    "No trace mode specified. --trace-config option format is <trace \
                     mode>,<setting>=<value> or <setting>=<value>. Got {text}"
                ));
            }
            Some(parts) => parts,
        };
        let is_opentelemetry = match mode {
            "" => false,
            mode => is_opentelemetry(mode)?,
        };
        let parts = rest.split_once('=');
        let (setting, value) = parts
            .filter(|(setting, value)| !setting.is_empty() && !value.is_empty())
            .ok_or_else(|| {
                format!(
                    "--trace-config option format is '<trace mode>,<setting>=<value>'. Got {text}"
                )
            })?;
        if mode.is_empty() && setting == "mode" {
            self.is_opentelemetry = self::is_opentelemetry(value)?;
            return Ok(None);
        }
        if is_opentelemetry && self.collector.set(setting, value) {
            self.of_modes.push((true, text.to_owned()));
            return Ok(None);
        }
        let known = TraceFlag::ALL
            .into_iter()
            .filter(|known| known.is_of_mode() != mode.is_empty() && !is_opentelemetry)
            .find(|known| known.name() == setting);
        let Some(known) = known else {
            return Ok(Some(format!("--trace-config={text} has no effect")));
        };
        match known {
            TraceFlag::Level => self.add_level(value)?,
            known => self.config.set(known, value)?,
        }
        if known.is_of_mode() {
            self.of_modes.push((false, text.to_owned()));
        }
        self.config_settings.push(known);
        Ok(None)
    }

    /// Warnings of deprecated flags on which `--trace-config` has the last word: first the settings
    /// of every mode, then the mode's.
    pub fn overridden(&self) -> Vec<String> {
        let (later, first): (Vec<TraceFlag>, Vec<TraceFlag>) = self
            .config_settings
            .iter()
            .partition(|setting| setting.is_of_mode());
        let settings = first.into_iter().chain(later);
        settings
            .filter(|setting| self.deprecated_settings.contains(setting))
            .map(|setting| {
                let value = match setting {
                    TraceFlag::Rate => "rate value",
                    other => other.name(),
                };
                deprecated::trace_overridden(setting.name(), value)
            })
            .collect()
    }

    /// Warnings of settings of the mode that is not chosen.
    pub fn unused(&self) -> Vec<String> {
        let mode = match self.is_opentelemetry {
            true => "opentelemetry",
            false => "triton",
        };
        let unused = self.of_modes.iter();
        unused
            .filter(|(is_opentelemetry, _)| *is_opentelemetry != self.is_opentelemetry)
            .map(|(_, text)| format!("--trace-config={text} has no effect in mode {mode}"))
            .collect()
    }

    /// What tracing is to be started with. `environment` reads a variable.
    ///
    /// # Errors
    /// What is wrong with settings of the mode `opentelemetry`, if that is chosen.
    pub fn resolve(
        &self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<TraceOptions, String> {
        let collector = match self.is_opentelemetry {
            true => Some(self.collector.resolve(environment)?),
            false => None,
        };
        let defaults = TraceOptions::default();
        let (old, new) = (&self.deprecated, &self.config);
        let file = new.file.as_ref().or(old.file.as_ref());
        Ok(TraceOptions {
            levels: match self.is_off {
                true => TraceLevels::default(),
                false => self.levels,
            },
            rate: new.rate.or(old.rate).unwrap_or(defaults.rate),
            count: new.count.or(old.count).unwrap_or(defaults.count),
            log_frequency: new
                .log_frequency
                .or(old.log_frequency)
                .unwrap_or(defaults.log_frequency),
            file: file.cloned().unwrap_or_default(),
            collector,
        })
    }

    fn add_level(&mut self, value: &str) -> Result<(), String> {
        match value.to_ascii_lowercase().as_str() {
            "false" | "off" => self.is_off = true,
            "true" | "on" | "min" | "max" | "timestamps" => self.levels.timestamps = true,
            "tensors" => self.levels.tensors = true,
            other => {
                return Err(format!(
                    "invalid value for trace level option: {other}; it is one of OFF, TIMESTAMPS, \
                     TENSORS"
                ));
            }
        }
        Ok(())
    }
}

impl GivenTraceFlags {
    fn set(&mut self, setting: TraceFlag, value: &str) -> Result<(), String> {
        match setting {
            TraceFlag::File => self.file = Some(value.to_owned()),
            TraceFlag::Rate => self.rate = Some(wrapped(value)?),
            TraceFlag::Count => self.count = Some(number(value)?),
            TraceFlag::LogFrequency => self.log_frequency = Some(wrapped(value)?),
            TraceFlag::Level => unreachable!("levels of both kinds of flags add up"),
        }
        Ok(())
    }
}

fn number(value: &str) -> Result<i32, String> {
    i32::try_from(parse_int(value)?).map_err(|_| out_of_bound(value))
}

/// As upstream has it, a negative number stands for the largest ones: `rate=-1` traces one request
/// in 4,294,967,295.
fn wrapped(value: &str) -> Result<u32, String> {
    number(value).map(|number| number.cast_unsigned())
}

fn is_opentelemetry(mode: &str) -> Result<bool, String> {
    match mode.to_ascii_lowercase().as_str() {
        "triton" => Ok(false),
        "opentelemetry" => Ok(true),
        other => Err(format!(
            "invalid value for trace mode option: {other}. Available options are \"triton\" and \
             \"opentelemetry\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use TraceFlag::{Count, File, Level, LogFrequency, Rate};

    fn resolved(config: &[&str], deprecated: &[(TraceFlag, &str)]) -> Result<TraceOptions, String> {
        let mut flags = TraceFlags::default();
        for text in config {
            flags.set_config(text)?;
        }
        for (setting, value) in deprecated {
            flags.set_deprecated(*setting, value)?;
        }
        flags.resolve(|_| None)
    }

    fn options(timestamps: bool, tensors: bool, rate: u32, count: i32) -> TraceOptions {
        TraceOptions {
            levels: TraceLevels {
                timestamps,
                tensors,
            },
            rate,
            count,
            ..TraceOptions::default()
        }
    }

    #[test]
    fn settings_of_both_kinds() {
        for (config, deprecated, expected) in [
            (&[][..], &[][..], options(false, false, 1000, -1)),
            (
                &[
                    "level=TIMESTAMPS",
                    "level=tensors",
                    "rate=2",
                    "count=5",
                    "mode=Triton",
                ],
                &[],
                options(true, true, 2, 5),
            ),
            (
                &["rate=7"],
                &[(Level, "max"), (Rate, "3")],
                options(true, false, 7, -1),
            ),
            (
                &["level=TIMESTAMPS"],
                &[(Level, "OFF")],
                options(false, false, 1000, -1),
            ),
            (
                &["rate=-1", "count=-2"],
                &[],
                options(false, false, u32::MAX, -2),
            ),
            (
                &["level=off", "level=tensors"],
                &[(Count, "-1")],
                options(false, false, 1000, -1),
            ),
            (
                &["triton,log-frequency=3", "TRITON,file=a,b=c"],
                &[(File, "old"), (LogFrequency, "9")],
                TraceOptions {
                    log_frequency: 3,
                    file: "a,b=c".to_owned(),
                    ..TraceOptions::default()
                },
            ),
        ] {
            assert_eq!(resolved(config, deprecated), Ok(expected), "{config:?}");
        }
    }

    #[test]
    fn the_new_flag_has_the_last_word_and_says_so() {
        let mut flags = TraceFlags::default();
        for text in ["triton,file=x", "rate=2", "level=OFF"] {
            flags.set_config(text).unwrap();
        }
        assert!(flags.overridden().is_empty());
        for (setting, value) in [(File, "y"), (Rate, "3"), (Count, "4")] {
            flags.set_deprecated(setting, value).unwrap();
        }
        assert_eq!(
            flags.overridden(),
            [
                "Warning: Overriding deprecated '--trace-rate' in favor of provided rate value in \
                 --trace-config!",
                "Warning: Overriding deprecated '--trace-file' in favor of provided file in \
                 --trace-config!",
            ]
        );
    }

    #[test]
    fn what_means_nothing_is_warned_of() {
        let mut flags = TraceFlags::default();
        for (text, has_effect) in [
            ("triton,file=x", true),
            ("level=OFF", true),
            ("colour=red", false),
            ("triton,colour=red", false),
            ("triton,rate=1", false),
            ("opentelemetry,url=localhost:4318", true),
            ("opentelemetry,colour=red", false),
            ("opentelemetry,level=OFF", false),
        ] {
            let warning = flags.set_config(text).unwrap();
            let expected = (!has_effect).then(|| format!("--trace-config={text} has no effect"));
            assert_eq!(warning, expected);
        }
        let url = "--trace-config=opentelemetry,url=localhost:4318 has no effect in mode triton";
        assert_eq!(flags.unused(), [url]);
        flags.set_config("mode=OpenTelemetry").unwrap();
        let file = "--trace-config=triton,file=x has no effect in mode opentelemetry";
        assert_eq!(flags.unused(), [file]);
    }

    #[test]
    fn refusals() {
        for (text, expected) in [
            (
                "level",
                "--trace-config option format is '<trace mode>,<setting>=<value>'. Got level",
            ),
            ("triton,file=", "--trace-config option format is"),
            ("triton,=x", "--trace-config option format is"),
            (
                ",file=x",
                "No trace mode specified. --trace-config option format is",
            ),
            (
                "jaeger,url=x",
                "invalid value for trace mode option: jaeger. Available options",
            ),
            (
                "mode=zipkin",
                "invalid value for trace mode option: zipkin.",
            ),
            ("level=loud", "invalid value for trace level option: loud"),
            ("rate=x", "Invalid option value. Got x"),
            ("count=2147483648", "Provided option value is out of bound."),
            ("rate=2147483648", "Provided option value is out of bound."),
        ] {
            let refused = resolved(&[text], &[]).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
