//! Words of the commands that are clients: `--name value`, `--name=value` and words without a name.

use std::fmt;
use std::str::FromStr;

use crate::flag::EarlyExit;

/// A word, or an option with its name.
pub(crate) enum ClientWord {
    Plain(String),
    Option(String),
}

/// The words of a command, in order.
pub(crate) struct ClientWords<W> {
    words: W,
    /// The usage, which every refusal shows.
    hint: &'static str,
    /// The value behind an equals sign that nobody has taken yet, and its option.
    inline: Option<(String, String)>,
}

impl<W: Iterator<Item = String>> ClientWords<W> {
    pub(crate) fn new(words: W, hint: &'static str) -> ClientWords<W> {
        ClientWords {
            words,
            hint,
            inline: None,
        }
    }

    /// The next word.
    ///
    /// # Errors
    /// The option before it took no value, and has one.
    pub(crate) fn next(&mut self) -> Result<Option<ClientWord>, EarlyExit> {
        if let Some((name, _)) = &self.inline {
            return Err(self.bad(format!("--{name}: the option takes no value")));
        }
        let Some(word) = self.words.next() else {
            return Ok(None);
        };
        let Some(named) = word.strip_prefix("--") else {
            return match word.starts_with('-') {
                true if word != "-h" => Err(self.bad(format!("Unexpected argument: {word}"))),
                true => Ok(Some(ClientWord::Option(String::from("help")))),
                false => Ok(Some(ClientWord::Plain(word))),
            };
        };
        let name = match named.split_once('=') {
            Some((name, value)) => {
                self.inline = Some((String::from(name), String::from(value)));
                name
            }
            None => named,
        };
        Ok(Some(ClientWord::Option(String::from(name))))
    }

    /// The value of the option `name`, which was the last word.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn value(&mut self, name: &str) -> Result<String, EarlyExit> {
        let value = match self.inline.take() {
            Some((_, value)) => Some(value),
            None => self.words.next(),
        };
        value.ok_or_else(|| self.bad(format!("--{name}: the option needs a value")))
    }

    /// The value of the option `name` as `parse` takes it.
    ///
    /// # Errors
    /// There is none, or it is not as it should be.
    pub(crate) fn parsed<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, EarlyExit> {
        let value = self.value(name)?;
        parse(&value).map_err(|reason| self.bad(format!("--{name}: {reason}")))
    }

    /// A number from `min` to `max`.
    ///
    /// # Errors
    /// As [`ClientWords::parsed`].
    pub(crate) fn number<T: FromStr + PartialOrd + fmt::Display>(
        &mut self,
        name: &str,
        min: T,
        max: T,
    ) -> Result<T, EarlyExit> {
        self.parsed(name, |text| {
            let number = text.parse().ok();
            let number = number.filter(|number| min <= *number && *number <= max);
            number.ok_or_else(|| format!("'{text}' is no number from {min} to {max}"))
        })
    }

    /// One of these words.
    ///
    /// # Errors
    /// As [`ClientWords::parsed`].
    pub(crate) fn choice<T: Copy>(
        &mut self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<T, EarlyExit> {
        self.parsed(name, |text| {
            let choice = choices.iter().find(|(word, _)| *word == text);
            choice.map(|(_, choice)| *choice).ok_or_else(|| {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                format!("'{text}' is none of {}", words.join(", "))
            })
        })
    }

    /// The refusal of a command line.
    pub(crate) fn bad(&self, reason: String) -> EarlyExit {
        EarlyExit::BadCommand(format!("{reason}\n{}", self.hint))
    }
}
