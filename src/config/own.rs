//! Parameters of a configuration that are this server's own: what upstream has no field for.
//! Upstream hands them to the backend, as it does all others.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::ConfigError;

/// The live requests that a version may have; one more is told to try again later.
pub const REQUESTS_MAX: &str = "CONCH_REQUESTS_MAX";
/// Whether the dynamic batcher takes requests of one priority level by their deadlines.
pub const DEADLINE_ORDER: &str = "CONCH_DEADLINE_ORDER";
/// Whether a request's timeout also counts where its queue policy allows one and has none itself;
/// upstream ignores it there.
pub const REQUEST_TIMEOUTS: &str = "CONCH_REQUEST_TIMEOUTS";
/// Requests of sequences that may wait, in all.
pub const SEQUENCE_QUEUE_MAX: &str = "CONCH_SEQUENCE_QUEUE_MAX";
/// Sequences that may wait for a slot.
pub const SEQUENCE_BACKLOG_MAX: &str = "CONCH_SEQUENCE_BACKLOG_MAX";
/// How long sequences under way keep a version, or an instance, whose place was taken; 0: they end
/// with it.
pub const SEQUENCE_DRAIN_SECONDS: &str = "CONCH_SEQUENCE_DRAIN_SECONDS";
/// A conversation may take that long; and what it holds is a model's memory.
const SEQUENCE_DRAIN_SECONDS_DEFAULT: u64 = 3_600;

/// How long an execution of an instance that does not block may last on its device; 0: for ever.
pub const EXECUTION_TIMEOUT_SECONDS: &str = "CONCH_EXECUTION_TIMEOUT_SECONDS";
/// Far more than a batch takes; a device that needs more hangs.
const EXECUTION_TIMEOUT_SECONDS_DEFAULT: u64 = 600;

/// Whether threads that submit may execute in place of an idle core: an [`InlinePolicy`].
pub const INLINE: &str = "CONCH_INLINE";

/// How often in the life of the server a model is loaded again by itself after an execution did not
/// end in time. Each time leaves an instance behind.
pub const RELOADS_MAX: &str = "CONCH_RELOADS_MAX";

/// The weight of a model where models share executions.
pub const SHARE_WEIGHT: &str = "CONCH_SHARE_WEIGHT";
const SHARE_WEIGHT_MAX: u32 = 10_000;
const SHARE_WEIGHT_DEFAULT: u32 = 100;

/// Which threads that submit may execute a model's requests in place of an idle core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InlinePolicy {
    /// Network threads, where the backend is made for it.
    #[default]
    Backend,
    /// None.
    Never,
    /// Network threads, also where the backend is not made for it.
    Always,
    /// Those, and threads of the program in whose process the server runs: a response callback may
    /// be called before the call that submits returns.
    Callers,
}

impl FromStr for InlinePolicy {
    type Err = ();

    fn from_str(text: &str) -> Result<InlinePolicy, ()> {
        match text {
            "true" => Ok(InlinePolicy::Always),
            "false" => Ok(InlinePolicy::Never),
            "callers" => Ok(InlinePolicy::Callers),
            _ => Err(()),
        }
    }
}

/// conch's own parameters of a model configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnParameters {
    /// None: what the server says for all.
    pub requests_max: Option<u64>,
    pub is_by_deadline: bool,
    pub has_request_timeouts: bool,
    /// None: as many as may be live.
    pub sequence_queue_max: Option<u32>,
    pub sequence_backlog_max: Option<u32>,
    pub sequence_drain_seconds: u64,
    pub share_weight: u32,
    /// 0: none.
    pub execution_timeout_seconds: u64,
    pub reloads_max: u32,
    pub inline: InlinePolicy,
}

impl Default for OwnParameters {
    fn default() -> OwnParameters {
        OwnParameters {
            requests_max: None,
            is_by_deadline: false,
            has_request_timeouts: false,
            sequence_queue_max: None,
            sequence_backlog_max: None,
            sequence_drain_seconds: SEQUENCE_DRAIN_SECONDS_DEFAULT,
            share_weight: SHARE_WEIGHT_DEFAULT,
            execution_timeout_seconds: EXECUTION_TIMEOUT_SECONDS_DEFAULT,
            reloads_max: 0,
            inline: InlinePolicy::Backend,
        }
    }
}

impl OwnParameters {
    /// # Errors
    /// INVALID_ARG for a value that is none of its parameter.
    pub(crate) fn read(
        model: &str,
        parameters: &BTreeMap<String, String>,
    ) -> Result<OwnParameters, ConfigError> {
        let reader = ParameterReader { model, parameters };
        let requests_max = reader.value(REQUESTS_MAX, "a number of requests above 0")?;
        if requests_max == Some(0) {
            return Err(reader.refusal(REQUESTS_MAX, "a number of requests above 0"));
        }
        let share_weight = reader
            .value(SHARE_WEIGHT, WEIGHTS)?
            .unwrap_or(SHARE_WEIGHT_DEFAULT);
        if !(1..=SHARE_WEIGHT_MAX).contains(&share_weight) {
            return Err(reader.refusal(SHARE_WEIGHT, WEIGHTS));
        }
        Ok(OwnParameters {
            requests_max,
            share_weight,
            is_by_deadline: reader
                .value(DEADLINE_ORDER, "true or false")?
                .unwrap_or(false),
            has_request_timeouts: reader
                .value(REQUEST_TIMEOUTS, "true or false")?
                .unwrap_or(false),
            sequence_queue_max: reader.value(SEQUENCE_QUEUE_MAX, "a number of requests")?,
            sequence_backlog_max: reader.value(SEQUENCE_BACKLOG_MAX, "a number of sequences")?,
            sequence_drain_seconds: reader
                .value(SEQUENCE_DRAIN_SECONDS, "a number of seconds")?
                .unwrap_or(SEQUENCE_DRAIN_SECONDS_DEFAULT),
            execution_timeout_seconds: reader
                .value(EXECUTION_TIMEOUT_SECONDS, "a number of seconds")?
                .unwrap_or(EXECUTION_TIMEOUT_SECONDS_DEFAULT),
            reloads_max: reader
                .value(RELOADS_MAX, "a number of reloads")?
                .unwrap_or(0),
            inline: reader
                .value(INLINE, "true, false or callers")?
                .unwrap_or_default(),
        })
    }
}

const WEIGHTS: &str = "a number from 1 to 10000";

struct ParameterReader<'a> {
    model: &'a str,
    parameters: &'a BTreeMap<String, String>,
}

impl ParameterReader<'_> {
    fn value<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, ConfigError> {
        self.parameters
            .get(name)
            .map(|text| text.parse().map_err(|_| self.refusal(name, expected)))
            .transpose()
    }

    fn refusal(&self, name: &str, expected: &str) -> ConfigError {
        let got = self.parameters.get(name).map_or("", String::as_str);
        ConfigError::invalid(format!(
            "parameter '{name}' of model '{}' must be {expected}, got '{got}'",
            self.model
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pairs: &[(&str, &str)], expected: Result<OwnParameters, &str>) {
        let parameters = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let read = OwnParameters::read("m", &parameters);
        let expected = expected.map_err(ConfigError::invalid);
        assert_eq!(read, expected, "{pairs:?}");
    }

    #[test]
    fn values_are_read_or_refused() {
        check(&[("OTHER", "x")], Ok(OwnParameters::default()));
        check(
            &[
                (REQUESTS_MAX, "7"),
                (DEADLINE_ORDER, "true"),
                (REQUEST_TIMEOUTS, "true"),
                (SHARE_WEIGHT, "10000"),
                (SEQUENCE_DRAIN_SECONDS, "0"),
                (EXECUTION_TIMEOUT_SECONDS, "30"),
                (RELOADS_MAX, "2"),
                (INLINE, "false"),
            ],
            Ok(OwnParameters {
                requests_max: Some(7),
                is_by_deadline: true,
                has_request_timeouts: true,
                share_weight: 10_000,
                sequence_drain_seconds: 0,
                execution_timeout_seconds: 30,
                reloads_max: 2,
                inline: InlinePolicy::Never,
                ..OwnParameters::default()
            }),
        );
        check(&[(DEADLINE_ORDER, "false")], Ok(OwnParameters::default()));
        for value in ["0", "-1", "", "many", "99999999999999999999"] {
            let message = format!(
                "parameter 'CONCH_REQUESTS_MAX' of model 'm' must be a number of requests above 0, \
                 got '{value}'"
            );
            check(&[(REQUESTS_MAX, value)], Err(&message));
        }
        for value in ["0", "10001", "-1", "1.5", ""] {
            let message = format!(
                "parameter 'CONCH_SHARE_WEIGHT' of model 'm' must be a number from 1 to 10000, got \
                 '{value}'"
            );
            check(&[(SHARE_WEIGHT, value)], Err(&message));
        }
        check(
            &[(SEQUENCE_DRAIN_SECONDS, "-1")],
            Err(
                "parameter 'CONCH_SEQUENCE_DRAIN_SECONDS' of model 'm' must be a number of \
                 seconds, got '-1'",
            ),
        );
        check(
            &[(EXECUTION_TIMEOUT_SECONDS, "soon")],
            Err(
                "parameter 'CONCH_EXECUTION_TIMEOUT_SECONDS' of model 'm' must be a number of \
                 seconds, got 'soon'",
            ),
        );
        check(
            &[(RELOADS_MAX, "-1")],
            Err("parameter 'CONCH_RELOADS_MAX' of model 'm' must be a number of reloads, got '-1'"),
        );
        check(
            &[(INLINE, "1")],
            Err("parameter 'CONCH_INLINE' of model 'm' must be true, false or callers, got '1'"),
        );
        for (text, inline) in [
            ("true", InlinePolicy::Always),
            ("callers", InlinePolicy::Callers),
        ] {
            let own = OwnParameters {
                inline,
                ..OwnParameters::default()
            };
            check(&[(INLINE, text)], Ok(own));
        }
        check(
            &[(DEADLINE_ORDER, "yes")],
            Err("parameter 'CONCH_DEADLINE_ORDER' of model 'm' must be true or false, got 'yes'"),
        );
    }
}
