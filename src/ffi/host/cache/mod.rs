//! The response cache that `--cache-config` names: a plug-in of the cache directory, or conch's own
//! under the name `local`.

mod entry;
mod form;
mod plugin;

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_engine::Error;
use conch_engine::cache::{LocalCache, ResponseCache};
use conch_log as log;
use conch_memory::Budget;
use serde_json::{Map, Value};

use super::HostOptions;

pub(crate) use entry::CacheBuffer;
use plugin::PluginCache;

/// An opened cache.
pub(crate) enum OpenedCache {
    Local(Arc<LocalCache>),
    Plugin(Arc<PluginCache>),
}

impl OpenedCache {
    pub(crate) fn cache(&self) -> Arc<dyn ResponseCache> {
        match self {
            OpenedCache::Local(cache) => Arc::clone(cache) as Arc<dyn ResponseCache>,
            OpenedCache::Plugin(cache) => Arc::clone(cache) as Arc<dyn ResponseCache>,
        }
    }
}

/// Opens the cache that `options` ask for, if any. `budget` bounds what a plug-in's hits take up.
/// Blocks as long as a plug-in does.
///
/// # Errors
/// INVALID_ARG for two caches, for one that does not exist, and for a configuration that is no
/// good; NOT_FOUND for a library that is no cache; what CacheInitialize returned.
pub(crate) fn open(
    options: &HostOptions,
    budget: &Arc<Budget>,
) -> Result<Option<OpenedCache>, Error> {
    // Of a name given twice the last configuration holds.
    let Some((name, configuration)) = options.cache_config.last() else {
        return Ok(None);
    };
    if options.cache_config.iter().any(|(other, _)| other != name) {
        return Err(Error::invalid(
            "found multiple cache configurations, but only a single cache is currently supported",
        ));
    }
    let directory = &options.cache_directory;
    if directory.as_os_str().is_empty() {
        return Err(Error::invalid("cache directory can not be empty"));
    }
    let file_name = format!("libtritoncache_{name}.so");
    let path = directory.join(name).join(&file_name);
    if path.exists() {
        let plugin = PluginCache::open(&path, configuration, budget)?;
        // The configuration may hold a password.
        log::info!("opened response cache '{name}' of {}", path.display());
        return Ok(Some(OpenedCache::Plugin(plugin)));
    }
    if name != LOCAL {
        return Err(Error::invalid(format!(
            "unable to find '{file_name}' for cache. Searched: {}",
            directory.display()
        )));
    }
    let size_bytes = local_size(configuration)?;
    log::info!("opened response cache '{name}' with {size_bytes} bytes");
    Ok(Some(OpenedCache::Local(Arc::new(LocalCache::new(
        size_bytes,
    )))))
}

/// `--cache-config` in the form of [`HostOptions::cache_config`]: cache, setting and value become
/// one document per cache, in which all values are text.
pub fn cache_config(settings: &[(String, String, String)]) -> Vec<(String, String)> {
    let mut documents: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (name, setting, value) in settings {
        let document = documents.entry(name).or_default();
        document.insert(setting.clone(), value.as_str().into());
    }
    documents
        .into_iter()
        .map(|(name, document)| (name.to_owned(), Value::Object(document).to_string()))
        .collect()
}

/// The name under which conch has a cache of its own, and upstream a plug-in.
const LOCAL: &str = "local";

/// `size` of the local cache's configuration, with upstream's refusals.
fn local_size(configuration: &str) -> Result<u64, Error> {
    let configuration: Value = serde_json::from_str(configuration).unwrap_or_default();
    let settings = configuration.as_object();
    let unknown = settings
        .into_iter()
        .flat_map(|settings| settings.keys())
        .filter(|setting| *setting != "size");
    for setting in unknown {
        log::warning!("setting '{setting}' of response cache 'local' has no effect");
    }
    let refuse = |why: &str| format!("Failed to initialize LocalCache: {why}");
    let size_bytes = match settings.and_then(|settings| settings.get("size")) {
        None => {
            return Err(Error::invalid(refuse(
                "config didn't contain a valid 'size' field.",
            )));
        }
        // What upstream says of text that is no number; unlike it, we read none up to the first
        // letter.
        Some(Value::String(text)) => text
            .parse()
            .map_err(|_| Error::internal(refuse("stoull")))?,
        Some(Value::Number(number)) if number.is_u64() => number.as_u64().unwrap_or_default(),
        Some(_) => {
            return Err(Error::invalid(refuse(
                "'size' config must be a string or uint type",
            )));
        }
    };
    if size_bytes == 0 {
        return Err(Error::internal(refuse("a cache of 0 bytes holds nothing")));
    }
    Ok(size_bytes)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use conch_engine::Code;

    use super::*;

    fn refusal(directory: &str, config: &[(&str, &str)]) -> (Code, String) {
        let options = HostOptions {
            cache_directory: PathBuf::from(directory),
            cache_config: config
                .iter()
                .map(|(name, json)| ((*name).to_owned(), (*json).to_owned()))
                .collect(),
            ..HostOptions::default()
        };
        match open(&options, &Budget::new(0)) {
            Err(error) => (error.code, error.message.into_owned()),
            Ok(_) => panic!("{config:?} was not refused"),
        }
    }

    #[test]
    fn refuses_in_upstreams_words() {
        const NONE: &str = "/nonexistent/caches";
        let local = |reason: &str| format!("Failed to initialize LocalCache: {reason}");
        let no_size = || local("config didn't contain a valid 'size' field.");
        let no_number = || local("'size' config must be a string or uint type");
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Code, String);
        let cases: [Case<'_>; 12] = [
            (
                NONE,
                &[("local", r#"{"size":"1"}"#), ("redis", "{}")],
                Code::InvalidArg,
                "found multiple cache configurations, but only a single cache is currently \
                 supported"
                    .to_owned(),
            ),
            (
                "",
                &[("local", r#"{"size":1}"#)],
                Code::InvalidArg,
                "cache directory can not be empty".to_owned(),
            ),
            (
                NONE,
                &[("redis", "{}")],
                Code::InvalidArg,
                format!("unable to find 'libtritoncache_redis.so' for cache. Searched: {NONE}"),
            ),
            (NONE, &[("local", "{}")], Code::InvalidArg, no_size()),
            (NONE, &[("local", "")], Code::InvalidArg, no_size()),
            (NONE, &[("local", "[1]")], Code::InvalidArg, no_size()),
            (
                NONE,
                &[("local", r#"{"size":true}"#)],
                Code::InvalidArg,
                no_number(),
            ),
            (
                NONE,
                &[("local", r#"{"size":-1}"#)],
                Code::InvalidArg,
                no_number(),
            ),
            (
                NONE,
                &[("local", r#"{"size":1.5}"#)],
                Code::InvalidArg,
                no_number(),
            ),
            (
                NONE,
                &[("local", r#"{"size":"big"}"#)],
                Code::Internal,
                local("stoull"),
            ),
            (
                NONE,
                &[("local", r#"{"size":"99999999999999999999"}"#)],
                Code::Internal,
                local("stoull"),
            ),
            (
                NONE,
                &[("local", r#"{"size":0}"#)],
                Code::Internal,
                local("a cache of 0 bytes holds nothing"),
            ),
        ];
        for (directory, config, code, message) in cases {
            assert_eq!(refusal(directory, config), (code, message), "{config:?}");
        }
    }

    #[test]
    fn settings_become_documents() {
        let row = |name: &str, setting: &str, value: &str| {
            (name.to_owned(), setting.to_owned(), value.to_owned())
        };
        let settings = [
            row("redis", "host", "h"),
            row("local", "size", "1\""),
            row("redis", "port", "1"),
            row("redis", "host", "other"),
        ];
        let documents = cache_config(&settings);
        let expected = [
            ("local", r#"{"size":"1\""}"#),
            ("redis", r#"{"host":"other","port":"1"}"#),
        ];
        assert_eq!(
            documents,
            expected.map(|(name, json)| (name.to_owned(), json.to_owned()))
        );
    }

    #[test]
    fn the_last_configuration_of_a_name_holds() {
        let options = HostOptions {
            cache_directory: PathBuf::from("/nonexistent"),
            cache_config: [r#"{"size":"5000"}"#, r#"{"size":7000000000}"#]
                .map(|json| ("local".to_owned(), json.to_owned()))
                .into(),
            ..HostOptions::default()
        };
        match open(&options, &Budget::new(0)) {
            Ok(Some(OpenedCache::Local(cache))) => assert_eq!(cache.size_bytes(), 7_000_000_000),
            _ => panic!("a local cache was asked for"),
        }
        assert!(matches!(
            open(&HostOptions::default(), &Budget::new(0)),
            Ok(None)
        ));
    }
}
