//! Warnings of deprecated flags, in upstream's words: start scripts and its tests look for them.

/// `--strict-model-config=false` beside `--disable-auto-complete-config`.
pub const STRICT_OVERRIDDEN: &str = "Warning: Overriding deprecated '--strict-model-config' from \
     False to True in favor of '--disable-auto-complete-config'!";

/// The warning that `--strict-model-config` is deprecated.
pub const STRICT_MODEL_CONFIG: &str = "Warning: '--strict-model-config' has been deprecated! \
     Please use '--disable-auto-complete-config' instead.";

/// The warning that `--response-cache-byte-size` is deprecated.
pub fn response_cache(value: &str) -> String {
    format!(
        "Warning: '--response-cache-byte-size' has been deprecated! This will default to the \
         'local' cache implementation with the provided byte size for its config. Please use \
         '--cache-config' instead. The equivalent --cache-config CLI args would be: \
         '--cache-config=local,size={}'",
        value.trim()
    )
}

/// The warning that `--trace-<setting>` is deprecated in favour of `--trace-config <instead>`.
pub fn trace(setting: &str, instead: &str) -> String {
    // Without a closing quote, as upstream.
    format!(
        "Warning: '--trace-{setting}' has been deprecated and will be removed in future releases. \
         Please use '--trace-config {instead} instead."
    )
}

/// The warning that `--trace-config` has the last word on what deprecated `--trace-<setting>` said;
/// `value` is what upstream calls its value.
pub fn trace_overridden(setting: &str, value: &str) -> String {
    format!(
        "Warning: Overriding deprecated '--trace-{setting}' in favor of provided {value} in \
         --trace-config!"
    )
}
