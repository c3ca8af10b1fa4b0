//! What the console says of deprecated flags, in upstream's words: start scripts and its tests look
//! for them.

/// `--strict-model-config=false` beside `--disable-auto-complete-config`.
pub const STRICT_OVERRIDDEN: &str = "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of '--disable-auto-complete-config'!";

/// The warning that flag `name` is deprecated.
pub fn warning(name: &str, value: &str) -> String {
    // Each without its closing quote, as upstream.
    let instead = match name {
        "strict-model-config" => {
            return String::from(
                "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.",
            );
        }
        "response-cache-byte-size" => {
            return format!(
                "Warning: '--response-cache-byte-size' has been deprecated! This will default to the 'local' cache implementation with \
                 the provided byte size for its config. Please use '--cache-config' instead. The equivalent --cache-config CLI args \
                 would be: '--cache-config=local,size={}'",
                value.trim()
            );
        }
        "trace-file" => "'--trace-config triton,file=<filepath>",
        "trace-level" => "'--trace-config level=<OFF|TIMESTAMPS|TENSORS>",
        "trace-rate" => "'--trace-config rate=<rate value>",
        "trace-count" => "'--trace-config count=<count value>",
        "trace-log-frequency" => "'--trace-config triton,log-frequency=<log frequency value>",
        _ => return format!("Warning: '--{name}' has been deprecated!"),
    };
    format!(
        "Warning: '--{name}' has been deprecated and will be removed in future releases. Please use {instead} instead."
    )
}

/// The warning that `--trace-config` has the last word on what deprecated `--trace-<setting>` said.
pub fn trace_overridden(setting: &str) -> String {
    let value = match setting {
        "rate" => "rate value",
        other => other,
    };
    format!(
        "Warning: Overriding deprecated '--trace-{setting}' in favor of provided {value} in --trace-config!"
    )
}
