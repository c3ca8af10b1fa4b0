//! Text that others wrote, as a terminal may show it.

/// What comes from a server must not colour a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && character != '\n' && character != '\t' {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}
