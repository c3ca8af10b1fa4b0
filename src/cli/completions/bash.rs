//! For bash, from its own builtins: the package bash-completion is not needed.

use std::collections::BTreeMap;

use super::flag_argument::{FlagArgument, command_names, flags_with, joined, shells};
use crate::command_table::COMMANDS;
use crate::table::flags;

pub(super) fn script() -> String {
    let mut words: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for flag in flags() {
        if let FlagArgument::Words(choices) = FlagArgument::of(flag) {
            let choices = joined(choices.into_iter());
            words.entry(choices).or_default().push(flag.name);
        }
    }
    let mut cases = String::new();
    for (choices, names) in words {
        let pattern = pattern(names.into_iter());
        cases.push_str(&format!(
            "        {pattern})\n            _conch_words '{choices}'; return ;;\n"
        ));
    }
    let paths = flags_with(|argument| matches!(argument, FlagArgument::Path));
    let paths = pattern(paths.map(|flag| flag.name));
    let others = flags_with(|argument| matches!(argument, FlagArgument::Other(_)));
    let others = pattern(others.map(|flag| flag.name));
    let names: Vec<String> = flags().map(|flag| format!("--{}", flag.name)).collect();
    let mut commands = String::new();
    for command in COMMANDS {
        let own: Vec<String> = command.flags.iter().map(|own| format!("--{own}")).collect();
        let own = own.join(" ");
        let body = match command.name {
            "check" => format!("flags+=' {own}'"),
            "completions" => format!("_conch_words '{}'; return", shells()),
            _ => format!("_conch_words '{own}'; return"),
        };
        commands.push_str(&format!("            {}) {body} ;;\n", command.name));
    }
    TEMPLATE
        .replace("@CASES@", &cases)
        .replace("@PATHS@", &paths)
        .replace("@OTHERS@", &others)
        .replace("@FLAGS@", &names.join(" "))
        .replace("@OWN@", &commands)
        .replace("@COMMANDS@", &command_names())
}

/// Any of the flags.
fn pattern(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<String> = names.map(|name| format!("--{name}")).collect();
    names.join("|")
}

/// bash splits `--flag=value` at the sign, so that the value is a word of its own.
const TEMPLATE: &str = r#"# Completion of conch for bash, printed by `conch completions bash`.

_conch_words() {
    local IFS=$' \t\n'
    COMPREPLY=($(compgen -W "$1" -- "$current"))
}

_conch_paths() {
    local path
    while IFS= read -r path; do
        COMPREPLY+=("$path")
    done < <(compgen -f -- "$current")
    compopt -o filenames 2>/dev/null
}

_conch() {
    local current=${COMP_WORDS[COMP_CWORD]} flag=
    local flags='@FLAGS@'
    COMPREPLY=()
    if [ "$current" = = ]; then
        current= flag=${COMP_WORDS[COMP_CWORD - 1]}
    elif [ "$COMP_CWORD" -gt 1 ]; then
        flag=${COMP_WORDS[COMP_CWORD - 1]}
        if [ "$flag" = = ]; then flag=${COMP_WORDS[COMP_CWORD - 2]}; fi
    fi
    case $flag in
@CASES@        @PATHS@)
            _conch_paths; return ;;
        @OTHERS@)
            return ;;
    esac
    if [ "$COMP_CWORD" -gt 1 ]; then
        case ${COMP_WORDS[1]} in
@OWN@        esac
    fi
    case $current in
        -*) _conch_words "$flags" ;;
        *)
            if [ "$COMP_CWORD" = 1 ]; then _conch_words '@COMMANDS@'; fi
            _conch_paths ;;
    esac
}

complete -F _conch conch
"#;
