//! SageMaker and Vertex AI: flags, and the environment variables that their containers are started
//! with.

use std::sync::Arc;

use conch_engine::Error;
use conch_frontend::{InferenceType, SageMakerOptions, VertexAiOptions};

use crate::arguments::Arguments;

/// What an environment variable is set to.
pub type CloudVariables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Sets what Vertex AI's variables say, before flags do.
///
/// # Errors
/// AIP_HTTP_PORT is no port.
pub fn set_defaults(
    arguments: &mut Arguments,
    environment: CloudVariables<'_>,
) -> Result<(), String> {
    if environment("AIP_MODE").as_deref() == Some("PREDICTION") {
        arguments.listeners.vertex_ai.is_enabled = true;
        arguments.listeners.http.is_enabled = false;
        arguments.listeners.grpc.is_enabled = false;
    }
    if let Some(port) = environment("AIP_HTTP_PORT").filter(|port| !port.is_empty()) {
        arguments.listeners.vertex_ai.endpoint.port = port
            .trim()
            .parse()
            .map_err(|_| format!("AIP_HTTP_PORT is no port: {port}"))?;
    }
    Ok(())
}

/// `<low>-<high>`: the ports that other listeners on the same address may have.
pub fn parse_port_range(text: &str) -> Result<(u16, u16), String> {
    let range = text
        .split_once('-')
        .and_then(|(low, high)| Some((low.trim().parse().ok()?, high.trim().parse().ok()?)));
    range.ok_or_else(|| {
        format!(
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument \
             requires format <first>-<second>. Found: {text}"
        )
    })
}

/// The SageMaker listener, if it is enabled.
///
/// # Errors
/// SAGEMAKER_TRITON_INFERENCE_TYPE is none.
pub fn sagemaker(
    arguments: &Arguments,
    environment: CloudVariables<'_>,
) -> Result<Option<Arc<SageMakerOptions>>, Error> {
    let Some(endpoint) = arguments.listeners.sagemaker.enabled() else {
        return Ok(None);
    };
    let mut settings = SageMakerOptions::new(endpoint);
    settings.ping_is_live = environment("SAGEMAKER_TRITON_PING_MODE").as_deref() == Some("live");
    if let Some(name) = environment("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME") {
        settings.default_model = name;
    }
    settings.inference_type = match environment("SAGEMAKER_TRITON_INFERENCE_TYPE").as_deref() {
        None | Some("infer") => InferenceType::Infer,
        Some("generate") => InferenceType::Generate,
        Some("generate_stream") => InferenceType::GenerateStream,
        Some(other) => {
            return Err(Error::invalid(format!(
                "Server has invalid inference type '{other}'. Must be one of: infer, generate, \
                 generate_stream."
            )));
        }
    };
    Ok(Some(Arc::new(settings)))
}

/// The Vertex AI listener, if it is enabled.
///
/// # Errors
/// AIP_PREDICT_ROUTE or AIP_HEALTH_ROUTE is missing or no pattern.
pub fn vertex_ai(
    arguments: &Arguments,
    environment: CloudVariables<'_>,
) -> Result<Option<Arc<VertexAiOptions>>, Error> {
    let Some(endpoint) = arguments.listeners.vertex_ai.enabled() else {
        return Ok(None);
    };
    let route = |name| environment(name).unwrap_or_default();
    VertexAiOptions::new(
        endpoint,
        &route("AIP_PREDICT_ROUTE"),
        &route("AIP_HEALTH_ROUTE"),
        &arguments.vertex_ai_default_model,
    )
    .map(|settings| Some(Arc::new(settings)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listeners::Listeners;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn vertex_ai_takes_the_place_of_http_and_grpc() {
        let enabled = |pairs| {
            let mut arguments = Arguments::default();
            set_defaults(&mut arguments, &with(pairs)).unwrap();
            let Listeners {
                http,
                grpc,
                vertex_ai,
                ..
            } = arguments.listeners;
            (
                http.is_enabled,
                grpc.is_enabled,
                vertex_ai.is_enabled,
                vertex_ai.endpoint.port,
            )
        };
        assert_eq!(enabled(&[]), (true, true, false, 8080));
        assert_eq!(
            enabled(&[("AIP_MODE", "TRAINING")]),
            (true, true, false, 8080)
        );
        assert_eq!(
            enabled(&[("AIP_MODE", "PREDICTION"), ("AIP_HTTP_PORT", "9000")]),
            (false, false, true, 9000)
        );
        for port in ["x", "-1", "65536"] {
            let environment = |name: &str| (name == "AIP_HTTP_PORT").then(|| port.to_owned());
            let reason = set_defaults(&mut Arguments::default(), &environment).unwrap_err();
            assert!(reason.contains(port), "{reason}");
        }
    }

    #[test]
    fn what_sagemakers_variables_say() {
        let mut arguments = Arguments::default();
        let read = |arguments: &Arguments, pairs| sagemaker(arguments, &with(pairs));
        assert!(read(&arguments, &[]).unwrap().is_none());
        arguments.listeners.sagemaker.is_enabled = true;
        let plain = read(&arguments, &[]).unwrap().unwrap();
        assert_eq!(plain.inference_type, InferenceType::Infer);
        assert!(!plain.ping_is_live && plain.default_model.starts_with("unspecified"));
        let set = read(
            &arguments,
            &[
                ("SAGEMAKER_TRITON_PING_MODE", "live"),
                ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "m"),
                ("SAGEMAKER_TRITON_INFERENCE_TYPE", "generate_stream"),
            ],
        );
        let set = set.unwrap().unwrap();
        assert_eq!(set.inference_type, InferenceType::GenerateStream);
        assert!(set.ping_is_live && set.default_model == "m");
        assert!(read(&arguments, &[("SAGEMAKER_TRITON_INFERENCE_TYPE", "x")]).is_err());
    }

    #[test]
    fn port_ranges() {
        assert_eq!(parse_port_range("8000-9000"), Ok((8000, 9000)));
        for text in ["", "8000", "8000-", "-9000", "a-b", "1-65536", "1-2-3"] {
            assert!(parse_port_range(text).is_err(), "{text}");
        }
    }
}
