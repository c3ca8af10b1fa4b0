//! `enable_custom_tracing`: activities of the backend's own in the traces of its requests, to try
//! out what shows traces.
//!
//! A span and a single event, then as many spans inside each other as `nested_span_count` says,
//! with a single event in every `single_activity_frequency`-th of them. Each span takes [`SPAN`].
//! Names, order and times are those of Triton's identity backend.

use std::ffi::CString;
use std::thread;
use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig, Request};

/// How long a span lasts before the next thing begins in it, or it ends.
const SPAN: Duration = Duration::from_millis(100);

const SINGLE: &str = "CUSTOM_SINGLE_ACTIVITY";

/// Bounds what an execution takes to less than two minutes.
const NESTED_MAX: u32 = 1_000;

/// Which activities a model reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activities {
    nested_count: u32,
    /// At least 1.
    single_every: u32,
}

impl Activities {
    /// None: the model reports nothing.
    pub fn read(config: &ModelConfig) -> Result<Option<Activities>, Error> {
        if config.boolean_parameter("enable_custom_tracing")? != Some(true) {
            return Ok(None);
        }
        let number = |name: &str, least: u32, value: Option<i64>| {
            let Some(value) = value else { return Ok(least) };
            let number = u32::try_from(value).ok();
            number
                .filter(|number| (least..=NESTED_MAX).contains(number))
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "parameter '{name}' must be from {least} to {NESTED_MAX}, got {value}"
                    ))
                })
        };
        let read = |name: &str, least| number(name, least, config.integer_parameter(name)?);
        Ok(Some(Activities {
            nested_count: read("nested_span_count", 0)?,
            single_every: read("single_activity_frequency", 1)?,
        }))
    }

    /// Reports them for a request that is traced, which takes as long as they do.
    pub fn report(self, request: Request<'_>) -> Result<(), Error> {
        if !request.is_traced()? {
            return Ok(());
        }
        for (name, lasts) in self.list() {
            let name = CString::new(name).map_err(|error| Error::internal(error.to_string()))?;
            request.report_activity(&name)?;
            if lasts {
                thread::sleep(SPAN);
            }
        }
        Ok(())
    }

    /// Names, and whether time passes after them.
    fn list(self) -> Vec<(String, bool)> {
        let mut list = vec![
            ("CUSTOM_ACTIVITY_START".to_owned(), true),
            ("CUSTOM_ACTIVITY_END".to_owned(), false),
            (SINGLE.to_owned(), false),
        ];
        for index in 0..self.nested_count {
            list.push((format!("CUSTOM_ACTIVITY{index}_START"), true));
            if index % self.single_every == 0 {
                list.push((SINGLE.to_owned(), false));
            }
        }
        let ends = (0..self.nested_count).rev();
        list.extend(ends.map(|index| (format!("CUSTOM_ACTIVITY{index}_END"), false)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &str) -> Result<Option<Activities>, Error> {
        let json = format!(r#"{{"parameters": {{{parameters}}}}}"#);
        Activities::read(&ModelConfig::parse(json.as_bytes())?)
    }

    const ON: &str = r#""enable_custom_tracing": {"string_value": "true"}"#;

    #[test]
    fn spans_nest() {
        let nested = r#""nested_span_count": {"string_value": "3"}"#;
        let every = r#""single_activity_frequency": {"string_value": "2"}"#;
        let names = |parameters: &str| {
            let activities = read(parameters).unwrap().unwrap();
            let names = activities.list().into_iter().map(|(name, lasts)| {
                let name = name.replace("CUSTOM_", "").replace("ACTIVITY", "");
                if lasts { format!("{name}+") } else { name }
            });
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(ON), "_START+ _END SINGLE_");
        assert_eq!(
            names(&format!("{ON}, {nested}, {every}")),
            "_START+ _END SINGLE_ 0_START+ SINGLE_ 1_START+ 2_START+ SINGLE_ 2_END 1_END 0_END"
        );
    }

    #[test]
    fn bounds_are_kept() {
        assert_eq!(read(""), Ok(None));
        assert_eq!(
            read(r#""enable_custom_tracing": {"string_value": "false"}"#),
            Ok(None)
        );
        for wrong in [
            r#""nested_span_count": {"string_value": "-1"}"#,
            r#""nested_span_count": {"string_value": "1001"}"#,
            r#""single_activity_frequency": {"string_value": "0"}"#,
        ] {
            assert!(read(&format!("{ON}, {wrong}")).is_err(), "{wrong}");
        }
    }
}
