//! From command-line words to [`Arguments`], with Triton's parsing rules: GNU long options (`--flag
//! value`, `--flag=value`, unambiguous prefixes), no short options. Other words name models.

use crate::arguments::Arguments;
use crate::check;
use crate::cloud::{self, CloudVariables};
use crate::flag::{EarlyExit, FlagEffect, FlagValueKind};
use crate::lookup::{self, UnknownFlag};

/// Parses the words after the program's name.
///
/// # Errors
/// Why the process should not start: a flag that is refused, or one that asks for a text instead.
pub fn parse(
    words: impl IntoIterator<Item = String>,
    environment: CloudVariables<'_>,
) -> Result<Arguments, EarlyExit> {
    parse_beside(words, environment, |_, _| Ok(false))
}

/// As [`parse`], for a subcommand with words of its own: `take` says whether it took the word.
///
/// # Errors
/// As [`parse`], and those of `take`.
pub fn parse_beside(
    words: impl IntoIterator<Item = String>,
    environment: CloudVariables<'_>,
    mut take: impl FnMut(&mut Arguments, &str) -> Result<bool, EarlyExit>,
) -> Result<Arguments, EarlyExit> {
    let mut arguments = Arguments::default();
    cloud::set_defaults(&mut arguments, environment).map_err(EarlyExit::Clash)?;
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if take(&mut arguments, &word)? {
            continue;
        }
        if word == "-h" {
            return Err(EarlyExit::Help);
        }
        if !word.starts_with('-') && !word.is_empty() {
            arguments.model_files.push(word);
            continue;
        }
        let Some(named) = word.strip_prefix("--").filter(|named| !named.is_empty()) else {
            return Err(EarlyExit::Bad {
                flag: String::new(),
                reason: format!("Unexpected argument: {word}"),
            });
        };
        let (name, inline) = match named.split_once('=') {
            Some((name, value)) => (name, Some(String::from(value))),
            None => (named, None),
        };
        let bad = |reason: String| EarlyExit::Bad {
            flag: String::from(name),
            reason,
        };
        let flag = lookup::find(name).map_err(|why| match why {
            UnknownFlag::Unknown => bad(lookup::unknown(name)),
            UnknownFlag::Ambiguous => bad(lookup::ambiguous(name)),
        })?;
        let bad = |reason: String| EarlyExit::Bad {
            flag: String::from(flag.name),
            reason,
        };
        let value = match (flag.takes, inline) {
            (FlagValueKind::Nothing, Some(_)) => {
                return Err(bad(String::from("the option takes no value")));
            }
            (FlagValueKind::Nothing, None) => String::new(),
            (_, Some(value)) => value,
            (_, None) => words
                .next()
                .ok_or_else(|| bad(String::from("the option needs a value")))?,
        };
        if let FlagEffect::Exits(exit) = &flag.effect {
            return Err(exit.clone());
        }
        flag.apply(&mut arguments, &value).map_err(bad)?;
    }
    if arguments.engine.model_repositories.is_empty()
        && arguments.model_files.is_empty()
        && let Some(path) = environment("AIP_STORAGE_URI").filter(|path| !path.is_empty())
    {
        arguments.engine.model_repositories.push(path.into());
    }
    check::complete(arguments)
}
