//! `--name=value` arguments of the programs in this crate. A word that no program reads is an
//! error.

use std::collections::BTreeMap;
use std::process::exit;
use std::str::FromStr;

/// The arguments of this process that have not been read yet.
pub struct Arguments {
    usage: &'static str,
    values: BTreeMap<String, String>,
}

impl Arguments {
    /// Reads the process's arguments; ends the process with `usage` when one is not of the form
    /// `--name=value`.
    pub fn from_process(usage: &'static str) -> Self {
        let mut values = BTreeMap::new();
        for word in std::env::args().skip(1) {
            match word
                .strip_prefix("--")
                .and_then(|rest| rest.split_once('='))
            {
                Some((name, value)) => values.insert(name.to_owned(), value.to_owned()),
                None => refuse(usage, &format!("cannot read '{word}'")),
            };
        }
        Self { usage, values }
    }

    /// Takes the value of `name`, or `default` when it was not given.
    pub fn take<T: FromStr>(&mut self, name: &str, default: T) -> T {
        match self.values.remove(name) {
            None => default,
            Some(text) => text
                .parse()
                .unwrap_or_else(|_| refuse(self.usage, &format!("bad value for --{name}: {text}"))),
        }
    }

    /// Takes the text of `name`; ends the process when it was not given.
    pub fn require(&mut self, name: &str) -> String {
        self.values
            .remove(name)
            .unwrap_or_else(|| refuse(self.usage, &format!("--{name} is needed")))
    }

    /// Ends the process when an argument is left that nothing has read.
    pub fn finish(self) {
        if let Some(name) = self.values.keys().next() {
            refuse(self.usage, &format!("unknown argument --{name}"));
        }
    }
}

fn refuse(usage: &str, reason: &str) -> ! {
    eprintln!("{reason}\nusage: {usage}");
    exit(2)
}
