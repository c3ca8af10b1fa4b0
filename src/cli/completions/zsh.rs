//! For zsh: sourced, or as a file `_conch` of a folder in `fpath`.

use super::flag_argument::{FlagArgument, joined, shells, summary};
use crate::command_table::COMMANDS;
use crate::table::flags;

pub(super) fn script() -> String {
    let mut specs = String::new();
    for flag in flags() {
        let name = flag.name;
        let help = escaped(summary(flag));
        let spec = match FlagArgument::of(flag) {
            FlagArgument::Nothing => format!("*--{name}[{help}]"),
            FlagArgument::Words(words) => {
                let words = joined(words.into_iter());
                format!("*--{name}=[{help}]:value:({words})")
            }
            FlagArgument::Path => format!("*--{name}=[{help}]:path:_files"),
            FlagArgument::Other(shown) => {
                let shown = escaped(shown);
                format!("*--{name}=[{help}]:{shown}: ")
            }
        };
        specs.push_str(&format!("        {}\n", quoted(&spec)));
    }
    let mut described = String::new();
    let mut cases = String::new();
    for command in COMMANDS {
        let line = format!("{}:{}", command.name, escaped(command.summary));
        described.push_str(&format!("        {}\n", quoted(&line)));
        let own = command.flags.iter().map(|own| format!("'--{own}'"));
        let own = own.collect::<Vec<_>>().join(" ");
        let arguments = match command.name {
            "check" => format!("$flags {own} '*:repository:_files -/'"),
            "completions" => format!("'1:shell:({})'", shells()),
            _ => own,
        };
        cases.push_str(&format!(
            "        {})\n            shift words; (( CURRENT-- ))\n            _arguments : \
             {arguments} ;;\n",
            command.name
        ));
    }
    TEMPLATE
        .replace("@SPECS@", &specs)
        .replace("@DESCRIBED@", &described)
        .replace("@CASES@", &cases)
}

/// What has a meaning within a specification.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if "\\[]:".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

const TEMPLATE: &str = r#"#compdef conch
# Completion of conch for zsh, printed by `conch completions zsh`.

_conch_first() {
    local -a commands=(
@DESCRIBED@    )
    _describe command commands
    _files
}

_conch() {
    local -a flags=(
@SPECS@    )
    local first=
    if (( CURRENT > 2 )); then first=$words[2]; fi
    case $first in
@CASES@        *)
            _arguments : $flags '1: :_conch_first' '*:model:_files' ;;
    esac
}

if [ "$funcstack[1]" = _conch ]; then
    _conch "$@"
else
    compdef _conch conch
fi
"#;
