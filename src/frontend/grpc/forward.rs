//! Metadata of a call that become parameters of its requests.

use http::HeaderMap;

use crate::forward::{ForwardedHeaders, HeaderCollector, HeaderPattern};
use crate::http::base64;

/// What the gRPC library under upstream keeps to itself.
const OWN: [&str; 5] = [
    "te",
    "content-type",
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
];

/// The metadata that match. Values of `-bin` keys are decoded, as every gRPC library does.
pub(super) fn collect(pattern: &HeaderPattern, headers: &HeaderMap) -> ForwardedHeaders {
    let mut collector = HeaderCollector::new(pattern);
    for (name, value) in headers {
        let name = name.as_str();
        if OWN.contains(&name) {
            continue;
        }
        if name.ends_with("-bin") {
            match base64::decode(value.as_bytes()) {
                Ok(decoded) => collector.see_binary(name, &decoded),
                Err(refused) => collector.refuse(refused.into()),
            }
        } else {
            collector.collect(name, value.as_bytes());
        }
    }
    collector.finish()
}
