//! Metadata of a call that become parameters of its requests.

use conch_http2::HeaderList;

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
pub(super) fn collect(pattern: &HeaderPattern, fields: &HeaderList) -> ForwardedHeaders {
    let mut collector = HeaderCollector::new(pattern);
    for (name, value) in fields.iter() {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        if OWN.contains(&name) {
            continue;
        }
        if name.ends_with("-bin") {
            match base64::decode(value) {
                Ok(decoded) => collector.see_binary(name, &decoded),
                Err(refused) => collector.refuse(refused.into()),
            }
        } else {
            collector.collect(name, value);
        }
    }
    collector.finish()
}
