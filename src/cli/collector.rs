//! `--trace-config=opentelemetry,<setting>=<value>`, and the variables of OpenTelemetry that stand
//! in for them.

use std::path::PathBuf;

use conch_frontend::{CollectorOptions, CollectorUrl};
use percent_encoding::percent_decode_str;

use crate::values::{out_of_bound, parse_int};

/// The settings of the mode `opentelemetry`, in the order in which they were given. Their values
/// are looked at if the mode is chosen, as upstream does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CollectorFlags {
    given: Vec<(&'static str, String)>,
}

/// Numbers of the batch span processor: setting, variable, and the field that both set. Those that
/// were not given are shown in this order, which is upstream's.
type BatchProcessorSetting = (
    &'static str,
    &'static str,
    fn(&mut CollectorOptions) -> &mut u32,
);
const BATCH_SETTINGS: [BatchProcessorSetting; 3] = [
    (
        "bsp_max_export_batch_size",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        |options| &mut options.batch_spans_max,
    ),
    ("bsp_schedule_delay", "OTEL_BSP_SCHEDULE_DELAY", |options| {
        &mut options.schedule_delay_ms
    }),
    ("bsp_max_queue_size", "OTEL_BSP_MAX_QUEUE_SIZE", |options| {
        &mut options.queue_spans_max
    }),
];

const OTHER_SETTINGS: [&str; 2] = ["url", "resource"];

impl CollectorFlags {
    /// Keeps a setting; false if there is none of that name.
    pub fn set(&mut self, setting: &str, value: &str) -> bool {
        let known = BATCH_SETTINGS.map(|(known, _, _)| known);
        let mut known = known.into_iter().chain(OTHER_SETTINGS);
        let Some(known) = known.find(|known| *known == setting) else {
            return false;
        };
        self.given.push((known, value.to_owned()));
        true
    }

    /// The options; what was not given comes from the environment, which `environment` reads.
    ///
    /// # Errors
    /// The first value that is none.
    pub fn resolve(
        &self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<CollectorOptions, String> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let either = |name: &str| {
            variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
                .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let attributes = variable("OTEL_RESOURCE_ATTRIBUTES");
        let mut options = CollectorOptions {
            headers: either("HEADERS").as_deref().map(pairs).unwrap_or_default(),
            roots: either("CERTIFICATE").map(PathBuf::from),
            resource_defaults: attributes.as_deref().map(pairs).unwrap_or_default(),
            ..CollectorOptions::default()
        };
        if let Some(url) = url_of(variable) {
            options.url = CollectorUrl::parse(&url)?;
        }
        for (setting, name, field) in BATCH_SETTINGS {
            let is_given = self.given.iter().any(|(given, _)| *given == setting);
            if !is_given && let Some(value) = variable(name) {
                *field(&mut options) = positive(name, &value)?;
            }
        }
        for (setting, value) in &self.given {
            let mut shown = value.clone();
            match *setting {
                "url" => options.url = CollectorUrl::parse(value)?,
                "resource" => options.resource.push(attribute(value)?),
                setting => {
                    let batch = BATCH_SETTINGS.iter().find(|(name, _, _)| *name == setting);
                    let (_, _, field) = batch.expect("`set` keeps known settings only");
                    let number = positive(setting, value)?;
                    *field(&mut options) = number;
                    shown = number.to_string();
                }
            }
            options.shown.push(((*setting).to_owned(), shown));
        }
        for (setting, _, field) in BATCH_SETTINGS {
            if !self.given.iter().any(|(given, _)| *given == setting) {
                let value = field(&mut options).to_string();
                options.shown.push((setting.to_owned(), value));
            }
        }
        Ok(options)
    }
}

/// Where OpenTelemetry's variables say that spans go.
fn url_of(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| {
        let base = variable("OTEL_EXPORTER_OTLP_ENDPOINT")?;
        Some(format!("{}/v1/traces", base.trim_end_matches('/')))
    })
}

/// `<key>=<value>,...`, as variables have it: with characters by their numbers (`%20`). What has no
/// key is left out.
fn pairs(list: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| {
        let decoded = percent_decode_str(text.trim()).decode_utf8_lossy();
        decoded.into_owned()
    };
    list.split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (decoded(key), decoded(value)))
        .filter(|(key, _)| !key.is_empty())
        .collect()
}

/// `<key>=<value>`. A text without the sign is both, as upstream has it.
fn attribute(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, text));
    match key {
        "" => Err(format!("resource of a trace has no key. Got {text}")),
        key => Ok((key.to_owned(), value.to_owned())),
    }
}

fn positive(name: &str, text: &str) -> Result<u32, String> {
    let number = parse_int(text)?;
    if number < 1 {
        return Err(format!("{name} must be at least 1. Got {text}"));
    }
    // As upstream's, of which each is a C++ `int`.
    i32::try_from(number)
        .map(i32::cast_unsigned)
        .map_err(|_| out_of_bound(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(
        given: &[(&str, &str)],
        environment: &[(&str, &str)],
    ) -> Result<CollectorOptions, String> {
        let mut flags = CollectorFlags::default();
        for (setting, value) in given {
            assert!(flags.set(setting, value), "{setting}");
        }
        flags.resolve(|name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn shown(options: &CollectorOptions) -> Vec<(&str, &str)> {
        let rows = options.shown.iter();
        rows.map(|(name, value)| (&**name, &**value)).collect()
    }

    const DEFAULTS: [(&str, &str); 3] = [
        ("bsp_max_export_batch_size", "512"),
        ("bsp_schedule_delay", "5000"),
        ("bsp_max_queue_size", "2048"),
    ];

    /// Orders and values are those that the real Triton shows.
    #[test]
    fn settings_win_over_variables() {
        let options = resolved(&[], &[]).unwrap();
        assert_eq!(shown(&options), DEFAULTS);
        assert_eq!(options.url.to_string(), "http://localhost:4318/v1/traces");

        let variables = [
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", ""),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://base:1/"),
        ];
        let options = resolved(&[], &variables).unwrap();
        let numbers = [
            DEFAULTS[0],
            ("bsp_schedule_delay", "20"),
            ("bsp_max_queue_size", "10"),
        ];
        assert_eq!(shown(&options), numbers);
        let sizes = |options: &CollectorOptions| {
            (
                options.batch_spans_max,
                options.schedule_delay_ms,
                options.queue_spans_max,
            )
        };
        assert_eq!(sizes(&options), (512, 20, 10));
        assert_eq!(options.url.to_string(), "http://base:1/v1/traces");

        let given = [
            ("bsp_max_queue_size", "+7"),
            ("url", "localhost:4318"),
            ("resource", "a=b"),
            ("resource", "c=d=e"),
            ("url", "http://last/"),
            ("resource", "both"),
            ("resource", "empty="),
        ];
        let options = resolved(&given, &variables).unwrap();
        let mut expected = given.to_vec();
        expected[0].1 = "7";
        expected.extend([DEFAULTS[0], ("bsp_schedule_delay", "20")]);
        assert_eq!(shown(&options), expected);
        assert_eq!(sizes(&options), (512, 20, 7));
        assert_eq!(options.url.to_string(), "http://last/");
        let resource = [("a", "b"), ("c", "d=e"), ("both", "both"), ("empty", "")];
        let resource = resource.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(options.resource, resource);

        let endpoint = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own/x");
        let options = resolved(&[], &[endpoint, variables[3]]).unwrap();
        assert_eq!(options.url.to_string(), "http://own/x");
    }

    #[test]
    fn variables_without_a_setting() {
        let shared = [
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Basic%20YQ==, x-a = 1 ,nothing,=no",
            ),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/shared.pem"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment=x%2Cy,zone=a"),
        ];
        let pairs = |rows: &[(&str, &str)]| {
            let rows = rows.iter();
            rows.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<Vec<_>>()
        };
        let options = resolved(&[], &shared).unwrap();
        let headers = pairs(&[("authorization", "Basic YQ=="), ("x-a", "1")]);
        assert_eq!(options.headers, headers);
        assert_eq!(options.roots, Some(PathBuf::from("/shared.pem")));
        let attributes = pairs(&[("deployment", "x,y"), ("zone", "a")]);
        assert_eq!(options.resource_defaults, attributes);
        assert_eq!(shown(&options), DEFAULTS, "no client is shown them");
        let own = [
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "own=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/own.pem"),
            shared[0],
            shared[1],
        ];
        let options = resolved(&[], &own).unwrap();
        assert_eq!(options.headers, pairs(&[("own", "1")]));
        assert_eq!(options.roots, Some(PathBuf::from("/own.pem")));
    }

    #[test]
    fn refusals() {
        let number = "bsp_max_queue_size";
        for (setting, value, expected) in [
            (number, "abc", "Invalid option value. Got abc"),
            (number, "1.5", "Invalid option value. Got 1.5"),
            (number, "0", "bsp_max_queue_size must be at least 1. Got 0"),
            (
                number,
                "-5",
                "bsp_max_queue_size must be at least 1. Got -5",
            ),
            (
                number,
                "2147483648",
                "Provided option value is out of bound.",
            ),
            (
                "bsp_schedule_delay",
                "0",
                "bsp_schedule_delay must be at least 1.",
            ),
            ("url", "ftp://h", "its scheme must be http or https"),
            ("resource", "=v", "resource of a trace has no key. Got =v"),
        ] {
            let refused = resolved(&[(setting, value)], &[]).unwrap_err();
            assert!(refused.contains(expected), "{setting}={value}: {refused}");
        }
        for (name, value, expected) in [
            (
                "OTEL_BSP_MAX_QUEUE_SIZE",
                "abc",
                "Invalid option value. Got abc",
            ),
            (
                "OTEL_BSP_SCHEDULE_DELAY",
                "0",
                "OTEL_BSP_SCHEDULE_DELAY must be at least 1",
            ),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "ftp://h",
                "its scheme must be http or https",
            ),
        ] {
            let refused = resolved(&[], &[(name, value)]).unwrap_err();
            assert!(refused.contains(expected), "{name}={value}: {refused}");
        }
        assert!(!CollectorFlags::default().set("colour", "red"));
    }
}
