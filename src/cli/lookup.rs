//! From a name on the command line to its flag, and the refusal of names that lead to none.

use crate::flag::Flag;
use crate::suggest;
use crate::table::flags;

/// Why a name does not lead to one flag.
#[derive(Debug, PartialEq, Eq)]
pub enum UnknownFlag {
    Unknown,
    Ambiguous,
}

/// The flag of this name, or the only one that begins with it (as `getopt_long` does).
pub fn find(name: &str) -> Result<&'static Flag, UnknownFlag> {
    if let Some(exact) = flags().find(|flag| flag.name == name) {
        return Ok(exact);
    }
    let mut candidates = flags().filter(|flag| !name.is_empty() && flag.name.starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(UnknownFlag::Unknown),
        (Some(_), Some(_)) => Err(UnknownFlag::Ambiguous),
    }
}

/// The refusal of a name that no flag has or begins with.
pub fn unknown(name: &str) -> String {
    let similar = suggest::similar(name, flags().map(|flag| flag.name));
    if similar.is_empty() {
        return String::from("There is no such option.");
    }
    format!(
        "There is no such option. Did you mean {}?",
        listed(&similar)
    )
}

/// The refusal of a name that begins the names of several flags.
pub fn ambiguous(name: &str) -> String {
    let mut names: Vec<&str> = flags().map(|flag| flag.name).collect();
    names.retain(|known| known.starts_with(name));
    let more = if names.len() > SHOWN_MAX { ", ..." } else { "" };
    names.truncate(SHOWN_MAX);
    format!("Several options begin so: {}{more}", listed(&names))
}

fn listed(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
    names.join(", ")
}

/// Flags that begin alike which are listed.
const SHOWN_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_prefixes_resolve_as_getopt_does() {
        for (index, flag) in flags().enumerate() {
            assert!(
                !flags().take(index).any(|other| other.name == flag.name),
                "{} twice",
                flag.name
            );
        }
        for (name, expected) in [
            ("http-port", Ok("http-port")),
            ("http-po", Ok("http-port")),
            ("model-repo", Ok("model-repository")),
            ("grpc-server-c", Ok("grpc-server-cert")),
            ("grpc", Err(UnknownFlag::Ambiguous)),
            ("", Err(UnknownFlag::Unknown)),
            ("no-such", Err(UnknownFlag::Unknown)),
        ] {
            assert_eq!(find(name).map(|flag| flag.name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_refused_is_told_with_what_is_meant() {
        for (name, expected) in [
            (
                "htttp-port",
                "There is no such option. Did you mean --http-port?",
            ),
            (
                "model_repository",
                "There is no such option. Did you mean --model-repository?",
            ),
            ("zzzzzzzzzz", "There is no such option."),
        ] {
            assert_eq!(unknown(name), expected);
        }
        assert_eq!(
            ambiguous("grpc-use"),
            "Several options begin so: --grpc-use-ssl, --grpc-use-ssl-mutual"
        );
        assert!(ambiguous("grpc").ends_with(", ..."));
        let mode = find("model-control-mode").unwrap_or_else(|_| panic!("it is there"));
        assert_eq!(
            mode.refuse(String::from("no")),
            "no. It takes one of: none, poll, explicit"
        );
    }
}
