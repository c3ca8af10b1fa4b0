//! Flags of plug-ins: backends, repository agents and response caches.

use super::row::served;
use crate::flag::Flag;
use crate::flag::FlagValueKind::Text;
use crate::flag::Setter::{Other, Path};
use crate::values::{parse_backend_config, parse_cache_config};

pub const BACKEND: &[Flag] = &[
    served(
        "backend-directory",
        Text("<path>"),
        "Directory with one sub-directory per backend. Default: {}.",
        Path(|to| &mut to.plugins.backend_directory),
    ),
    served(
        "backend-config",
        Text("[<backend>,]<setting>=<value>"),
        "A setting for one backend or all; may be given several times.",
        Other(|to, text| {
            to.plugins.backend_config.push(parse_backend_config(text)?);
            Ok(())
        }),
    ),
];

pub const REPOSITORY_AGENT: &[Flag] = &[served(
    "repoagent-directory",
    Text("<path>"),
    "Directory with one sub-directory per repository agent. Default: {}.",
    Path(|to| &mut to.plugins.repoagent_directory),
)];

pub const RESPONSE_CACHE: &[Flag] = &[
    served(
        "cache-config",
        Text("<cache>,<setting>=<value>"),
        "A setting of the response cache, and that there is one: 'local,size=<bytes>' keeps \
         responses in memory. May repeat.",
        Other(|to, text| {
            to.combined.cache.settings.push(parse_cache_config(text)?);
            Ok(())
        }),
    ),
    served(
        "cache-directory",
        Text("<path>"),
        "Holds libtritoncache_<name>.so in one directory per cache. Default: {}.",
        Path(|to| &mut to.plugins.cache_directory),
    ),
];
