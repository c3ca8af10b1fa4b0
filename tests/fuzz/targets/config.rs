//! A configuration in protobuf's text format; what is read survives a round trip through JSON.
#![no_main]

use conch_config::{Gpus, ResolvedConfig, from_json, normalize, parse_text};
use conch_config::{resolve_instance_groups, to_json};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(mut config) = parse_text("config.pbtxt", text) else {
        return;
    };
    let json = to_json(&config);
    if !json.is_empty() && !json.contains("NaN") {
        assert_eq!(from_json(&json).as_ref(), Ok(&config));
    }
    normalize(&mut config);
    if resolve_instance_groups(&mut config, &[], &Gpus::default()).is_ok() {
        let _ = ResolvedConfig::from_partial(config.clone());
        let _ = ResolvedConfig::from_message(config);
    }
});
