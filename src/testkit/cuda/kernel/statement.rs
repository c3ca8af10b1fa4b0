//! The text of a module cut into statements: what stands before `;`, before and behind braces, and
//! labels.

use super::program::ParseError;

#[derive(Clone, Debug, PartialEq)]
pub struct Statement<'t> {
    pub line: usize,
    pub kind: Kind<'t>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind<'t> {
    /// A directive or an instruction, without its `;`.
    Text(&'t str),
    Label(&'t str),
    /// What begins a block: the head of a kernel.
    Open(&'t str),
    Close,
}

/// Replaces comments by spaces, so that lines keep their numbers.
pub fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let (before, tail) = rest.split_at(start);
        plain.push_str(before);
        let len = if tail.starts_with("//") {
            tail.find('\n').unwrap_or(tail.len())
        } else if tail.starts_with("/*") {
            tail.find("*/").map_or(tail.len(), |end| end + 2)
        } else {
            plain.push('/');
            rest = &tail[1..];
            continue;
        };
        let (comment, after) = tail.split_at(len);
        plain.extend(comment.chars().filter(|character| *character == '\n'));
        plain.push(' ');
        rest = after;
    }
    plain.push_str(rest);
    plain
}

/// Cuts a text without comments. A directive without `;` ends with its line.
pub fn statements(text: &str) -> Result<Vec<Statement<'_>>, ParseError> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    loop {
        let blank = rest.len() - rest.trim_start().len();
        let (skipped, after) = rest.split_at(blank);
        line += skipped.matches('\n').count();
        rest = after;
        if rest.is_empty() {
            return Ok(found);
        }
        let at = line;
        let (kind, len) = next(rest).ok_or_else(|| ParseError {
            line: at,
            message: "the text ends within a statement".to_owned(),
        })?;
        line += rest.get(..len).unwrap_or_default().matches('\n').count();
        found.push(Statement { line: at, kind });
        rest = rest.get(len..).unwrap_or_default();
    }
}

/// Directives that have no `;`.
const BARE: [&str; 3] = [".version", ".target", ".address_size"];

fn next(text: &str) -> Option<(Kind<'_>, usize)> {
    if text.starts_with('}') {
        return Some((Kind::Close, 1));
    }
    if BARE.iter().any(|name| text.starts_with(name)) {
        let len = text.find('\n').unwrap_or(text.len());
        return Some((Kind::Text(text[..len].trim()), len));
    }
    let end = text.find([';', '{', ':', '}'])?;
    let head = text[..end].trim();
    match text.as_bytes()[end] {
        b';' => Some((Kind::Text(head), end + 1)),
        b'{' => Some((Kind::Open(head), end + 1)),
        b':' => Some((Kind::Label(head), end + 1)),
        _ => None,
    }
}
