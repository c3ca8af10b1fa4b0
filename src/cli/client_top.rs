//! The command line of `conch top`.

use std::path::PathBuf;
use std::time::Duration;

use conch_client::ServerUrl;
use conch_client::options::ConnectionOptions;

use crate::client::parse_header;
use crate::client_words::{ClientWord, ClientWords};
use crate::flag::EarlyExit;

/// `conch top`: shows in a terminal what a server does.
#[derive(Clone, Debug)]
pub struct TopCommand {
    /// The server's metrics port.
    pub server: ConnectionOptions,
    /// Print one second as text.
    pub prints_once: bool,
}

/// Reads the words behind `conch top`.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn parse_top(words: impl Iterator<Item = String>) -> Result<TopCommand, EarlyExit> {
    let mut words = ClientWords::new(words, TOP_HINT);
    let (mut address, mut headers, mut ca_certificate) = (None, Vec::new(), None);
    let mut prints_once = false;
    while let Some(word) = words.next()? {
        let name = match word {
            ClientWord::Plain(word) if address.is_none() => {
                address = Some(word);
                continue;
            }
            ClientWord::Plain(word) => {
                return Err(words.bad(format!("Unexpected argument: {word}")));
            }
            ClientWord::Option(name) => name,
        };
        match name.as_str() {
            "help" => return Err(EarlyExit::TopHelp),
            "once" => prints_once = true,
            "header" => headers.push(words.parsed(&name, parse_header)?),
            "ca-certificate" => ca_certificate = Some(PathBuf::from(words.value(&name)?)),
            _ => return Err(words.bad(format!("There is no option --{name}"))),
        }
    }
    let address = address.as_deref().unwrap_or(DEFAULT_ADDRESS);
    // As a browser has it, too.
    let origin = address.trim_end_matches('/').trim_end_matches("/dashboard");
    let url =
        ServerUrl::parse_with_port(origin, METRICS_PORT).map_err(|reason| words.bad(reason))?;
    Ok(TopCommand {
        server: ConnectionOptions {
            url,
            headers,
            timeout: SILENCE_MAX,
            ca_certificate,
        },
        prints_once,
    })
}

const TOP_HINT: &str =
    "Usage: conch top [ADDRESS] [--once] [options]; 'conch top --help' tells more.";
const DEFAULT_ADDRESS: &str = "http://localhost";
const METRICS_PORT: u16 = 8002;
/// The server sends an event per second.
const SILENCE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<TopCommand, EarlyExit> {
        parse_top(line.split_whitespace().map(String::from))
    }

    #[test]
    fn words_become_options() {
        for (line, address, prints_once) in [
            ("", "http://localhost:8002", false),
            ("--once", "http://localhost:8002", true),
            ("host --once", "http://host:8002", true),
            ("http://host:1/dashboard/", "http://host:1", false),
            ("https://[::1]/", "https://[::1]:8002", false),
            ("unix:/a", "unix:/a", false),
        ] {
            let top = parsed(line).unwrap();
            assert_eq!(
                (&*top.server.url.shown(), top.prints_once),
                (address, prints_once)
            );
        }
        let top = parsed("h --header=a:b --ca-certificate c").unwrap();
        assert_eq!(top.server.headers, [("a".into(), "b".into())]);
        assert_eq!(top.server.ca_certificate, Some("c".into()));
        assert_eq!(parsed("--help").unwrap_err(), EarlyExit::TopHelp);
        for line in ["a b", "--once=1", "-x", "--no-such", "ftp://a"] {
            let Err(EarlyExit::BadCommand(reason)) = parsed(line) else {
                panic!("{line}");
            };
            assert!(reason.contains("Usage: conch top"), "{line}: {reason}");
        }
    }
}
