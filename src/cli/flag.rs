//! One flag: its name, the kind of its value, its effect with the field that it sets, and its help.
//!
//! Names, defaults and kinds are Triton's, so that existing start scripts keep working; the flags
//! of the `conch` groups are ours.

use std::path::PathBuf;
use std::time::Duration;

use crate::arguments::Arguments;
use crate::listeners::ListenerKind;
use crate::values::{parse_bool, parse_int, parse_port, parse_some};

/// Why the process should not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlyExit {
    /// `--help`: print the usage to standard output and exit 0.
    Help,
    /// `--help` of `conch check`, likewise.
    CheckHelp,
    /// `--help` of `conch doctor`, likewise.
    DoctorHelp,
    /// `--help` of `conch infer`, likewise.
    InferHelp,
    /// `--help` of `conch bench`, likewise.
    BenchHelp,
    /// `--help` of `conch top`, likewise.
    TopHelp,
    /// `--help` of `conch completions`, likewise.
    CompletionsHelp,
    /// `--help` of `conch man`, likewise.
    ManualHelp,
    /// `--version`: print the version to standard output and exit 0.
    Version,
    /// A bad flag: its name and the reason to standard error, exit 1.
    Bad { flag: String, reason: String },
    /// Flags that do not go together: the reason to standard error, exit 1.
    Clash(String),
    /// Words of a client that cannot be meant: the reason to standard error, exit 2.
    BadCommand(String),
}

/// One row of the table.
pub struct Flag {
    pub name: &'static str,
    pub takes: FlagValueKind,
    pub effect: FlagEffect,
    /// `{}` stands for the default, which is read from the field that the flag sets.
    pub help: &'static str,
}

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagValueKind {
    /// Nothing: naming it switches it on.
    Nothing,
    Bool,
    /// A whole number.
    Int,
    /// Text; `--help` shows it under this name.
    Text(&'static str),
}

/// What this version does with a flag.
pub enum FlagEffect {
    /// The process prints something instead of serving.
    Exits(EarlyExit),
    /// It does what it says.
    Served(Setter),
    /// Accepted so that existing start scripts work; changes nothing here, and one warning says so.
    Inert {
        why: &'static str,
        /// Refuses values that upstream refuses.
        check: fn(&str) -> Result<(), String>,
    },
    /// Deprecated; a warning names what to use instead.
    Deprecated {
        instead: &'static str,
        /// The warning for a value.
        warning: fn(&str) -> String,
        setter: Setter,
    },
}

/// The place of a value.
pub type Field<T> = fn(&mut Arguments) -> &mut T;

/// How a value gets into the field that the flag sets, and how that is shown.
pub enum Setter {
    Switch(Field<bool>),
    Text(Field<String>),
    Path(Field<PathBuf>),
    Seconds(Field<Duration>, fn(&str) -> Result<u64, String>),
    Milliseconds(Field<Duration>, fn(&str) -> Result<u64, String>),
    Number(Field<u64>, fn(&str) -> Result<u64, String>),
    Size(Field<usize>, fn(&str) -> Result<usize, String>),
    /// A bound of at least 1; without the flag there is none.
    Bound(Field<Option<u64>>),
    Port(ListenerKind),
    /// A value of a form of its own, whose default is nothing or is said in words.
    Other(fn(&mut Arguments, &str) -> Result<(), String>),
    /// The same with a default that is shown.
    Shown {
        set: fn(&mut Arguments, &str) -> Result<(), String>,
        show: fn(&Arguments) -> String,
    },
}

impl Flag {
    /// Sets what the flag says.
    ///
    /// # Errors
    /// Why the flag does not take `value`.
    pub fn apply(&'static self, arguments: &mut Arguments, value: &str) -> Result<(), String> {
        match self.takes {
            FlagValueKind::Bool => {
                parse_bool(value)?;
            }
            FlagValueKind::Int => {
                parse_int(value)?;
            }
            FlagValueKind::Nothing | FlagValueKind::Text(_) => {}
        }
        match &self.effect {
            FlagEffect::Exits(_) => Ok(()),
            FlagEffect::Served(setter) => setter
                .set(arguments, self.name, value)
                .map_err(|reason| self.refuse(reason)),
            FlagEffect::Inert { why, check } => {
                check(value)?;
                let warning = format!("--{} has no effect: {why}", self.name);
                arguments.warnings.push(warning);
                Ok(())
            }
            FlagEffect::Deprecated {
                warning, setter, ..
            } => {
                arguments.console_warnings.push(warning(value));
                setter.set(arguments, self.name, value)
            }
        }
    }

    /// The value of the flag's field, if it is one that help can show.
    pub fn shown(&self, arguments: &mut Arguments) -> Option<String> {
        match &self.effect {
            FlagEffect::Served(setter) | FlagEffect::Deprecated { setter, .. } => {
                setter.shown(arguments)
            }
            FlagEffect::Exits(_) | FlagEffect::Inert { .. } => None,
        }
    }

    /// The values that it takes, if they are few and have names.
    pub fn choices(&self) -> Option<Vec<&'static str>> {
        match self.takes {
            FlagValueKind::Text(words) if words.contains('|') && !words.contains('<') => {
                Some(words.split('|').collect())
            }
            _ => None,
        }
    }

    /// A refusal of a value, with the values that there are if there are only a few.
    pub fn refuse(&self, reason: String) -> String {
        match self.choices() {
            Some(choices) => format!("{reason}. It takes one of: {}", choices.join(", ")),
            None => reason,
        }
    }
}

impl Setter {
    /// Sets the field from the `value` of `flag`.
    fn set(
        &self,
        arguments: &mut Arguments,
        flag: &'static str,
        value: &str,
    ) -> Result<(), String> {
        match self {
            Setter::Switch(field) => *field(arguments) = parse_bool(value)?,
            Setter::Text(field) => *field(arguments) = value.to_owned(),
            Setter::Path(field) => *field(arguments) = PathBuf::from(value),
            Setter::Seconds(field, parse) => {
                *field(arguments) = Duration::from_secs(parse(value)?);
            }
            Setter::Milliseconds(field, parse) => {
                *field(arguments) = Duration::from_millis(parse(value)?);
            }
            Setter::Number(field, parse) => *field(arguments) = parse(value)?,
            Setter::Size(field, parse) => *field(arguments) = parse(value)?,
            Setter::Bound(field) => *field(arguments) = Some(parse_some(value)?),
            Setter::Port(kind) => {
                let port = parse_port(value)?;
                arguments.listeners.set_port(*kind, flag, value, port);
            }
            Setter::Other(set) | Setter::Shown { set, .. } => set(arguments, value)?,
        }
        Ok(())
    }

    fn shown(&self, arguments: &mut Arguments) -> Option<String> {
        Some(match self {
            Setter::Switch(field) => field(arguments).to_string(),
            Setter::Text(field) => field(arguments).clone(),
            Setter::Path(field) => field(arguments).display().to_string(),
            Setter::Seconds(field, _) => field(arguments).as_secs().to_string(),
            Setter::Milliseconds(field, _) => field(arguments).as_millis().to_string(),
            Setter::Number(field, _) => field(arguments).to_string(),
            Setter::Size(field, _) => field(arguments).to_string(),
            Setter::Port(kind) => arguments.listeners.of(*kind).endpoint.port.to_string(),
            Setter::Shown { show, .. } => show(arguments),
            Setter::Bound(_) | Setter::Other(_) => return None,
        })
    }
}
