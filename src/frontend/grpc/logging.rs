//! LogSettings: the log's switches, read and set.

use std::collections::BTreeMap;

use conch_engine::truncated;
use conch_log::{LogFormat, LogSettings};
use conch_proto::inference as proto;
use proto::log_settings_request::setting_value::ParameterChoice as Given;
use proto::log_settings_response::setting_value::ParameterChoice as Shown;

use super::status::{GrpcCode, GrpcStatus};
use crate::api::{LogChanges, log_file_refusal};

type ResolvedLogSettings = BTreeMap<String, proto::log_settings_request::SettingValue>;

/// Sets what the request names, and tells what is in force then.
///
/// # Errors
/// In upstream's words; nothing is set then.
pub(super) fn answer(
    request: &proto::LogSettingsRequest,
) -> Result<proto::LogSettingsResponse, GrpcStatus> {
    Ok(show(&read(&request.settings)?.apply()))
}

fn read(settings: &ResolvedLogSettings) -> Result<LogChanges, GrpcStatus> {
    if settings.contains_key("log_file") {
        return Err(log_file_refusal().into());
    }
    let switch = |name: &'static str| match choice(settings, name) {
        None => Ok(None),
        Some(Some(Given::BoolParam(is_on))) => Ok(Some(*is_on)),
        Some(_) => Err(wrong_kind("boolean", name)),
    };
    Ok(LogChanges {
        shows_info: switch("log_info")?,
        shows_warning: switch("log_warning")?,
        shows_error: switch("log_error")?,
        verbose_level: match choice(settings, "log_verbose_level") {
            None => None,
            Some(Some(Given::Uint32Param(level))) => Some(*level),
            // Sic.
            Some(_) => return Err(wrong_kind("int32", "log_verbose_level")),
        },
        format: match choice(settings, "log_format") {
            None => None,
            Some(Some(Given::StringParam(name))) => {
                Some(LogFormat::from_name(name).ok_or_else(|| {
                    invalid(format!(
                        "invalid argument for log_format, got: {name}",
                        name = truncated(&name)
                    ))
                })?)
            }
            Some(_) => return Err(wrong_kind("string", "log_format")),
        },
    })
}

/// The value of a setting: none if it is not named, and none of any kind if it is named without
/// one.
fn choice<'a>(settings: &'a ResolvedLogSettings, name: &str) -> Option<Option<&'a Given>> {
    let value = settings.get(name)?;
    Some(value.parameter_choice.as_ref())
}

fn wrong_kind(kind: &str, name: &str) -> GrpcStatus {
    invalid(format!(
        "expect {kind} for '{name}'",
        name = truncated(&name)
    ))
}

fn invalid(message: String) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::InvalidArgument, message)
}

fn show(settings: &LogSettings) -> proto::LogSettingsResponse {
    let rows = [
        ("log_file", Shown::StringParam(settings.file.clone())),
        ("log_info", Shown::BoolParam(settings.shows_info)),
        ("log_warning", Shown::BoolParam(settings.shows_warning)),
        ("log_error", Shown::BoolParam(settings.shows_error)),
        (
            "log_verbose_level",
            Shown::Uint32Param(settings.verbose_level),
        ),
        (
            "log_format",
            Shown::StringParam(settings.format.name().to_owned()),
        ),
    ];
    proto::LogSettingsResponse {
        settings: rows
            .into_iter()
            .map(|(name, choice)| {
                let value = proto::log_settings_response::SettingValue {
                    parameter_choice: Some(choice),
                };
                (name.to_owned(), value)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(rows: &[(&str, Option<Given>)]) -> ResolvedLogSettings {
        rows.iter()
            .map(|(name, choice)| {
                let value = proto::log_settings_request::SettingValue {
                    parameter_choice: choice.clone(),
                };
                ((*name).to_owned(), value)
            })
            .collect()
    }

    #[test]
    fn what_is_named_is_set() {
        assert_eq!(read(&given(&[])), Ok(LogChanges::default()));
        let rows = [
            ("log_info", Some(Given::BoolParam(false))),
            ("log_warning", Some(Given::BoolParam(true))),
            ("log_verbose_level", Some(Given::Uint32Param(7))),
            ("log_format", Some(Given::StringParam("ISO8601".into()))),
            ("log_colour", Some(Given::StringParam("red".into()))),
        ];
        let expected = LogChanges {
            shows_info: Some(false),
            shows_warning: Some(true),
            shows_error: None,
            verbose_level: Some(7),
            format: Some(LogFormat::Iso8601),
        };
        assert_eq!(read(&given(&rows)), Ok(expected));
    }

    #[test]
    fn refusals() {
        let text = |text: &str| Some(Given::StringParam(text.into()));
        for (name, choice, expected) in [
            ("log_info", text("yes"), "expect boolean for 'log_info'"),
            (
                "log_warning",
                Some(Given::Uint32Param(1)),
                "expect boolean for 'log_warning'",
            ),
            ("log_error", None, "expect boolean for 'log_error'"),
            (
                "log_verbose_level",
                text("1"),
                "expect int32 for 'log_verbose_level'",
            ),
            (
                "log_format",
                Some(Given::BoolParam(true)),
                "expect string for 'log_format'",
            ),
            (
                "log_format",
                text("iso8601"),
                "invalid argument for log_format, got: iso8601",
            ),
            (
                "log_file",
                text(""),
                "log file location can not be updated through network protocol",
            ),
        ] {
            let refused = read(&given(&[(name, choice)])).unwrap_err();
            assert_eq!(refused.message, expected);
        }
    }
}
