//! The lines of the Prometheus text format.

/// Writes a family's two head lines.
pub(super) fn push_head(text: &mut String, name: &str, help: &str, kind: &str) {
    text.push_str("# HELP ");
    text.push_str(name);
    text.push(' ');
    push_escaped(text, help, false);
    text.push_str("\n# TYPE ");
    text.push_str(name);
    text.push(' ');
    text.push_str(kind);
    text.push('\n');
}

/// Writes one sample line. `labels` are written in the order given.
pub(super) fn push_sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    text.push_str(name);
    if !labels.is_empty() {
        text.push('{');
        for (index, (label, value)) in labels.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(label);
            text.push_str("=\"");
            push_escaped(text, value, true);
            text.push('"');
        }
        text.push('}');
    }
    text.push(' ');
    push_number(text, value);
    text.push('\n');
}

pub(super) fn push_escaped(text: &mut String, value: &str, escapes_quotes: bool) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if escapes_quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

pub(super) fn push_number(text: &mut String, value: f64) {
    use std::fmt::Write as _;
    if value.is_nan() {
        text.push_str("Nan");
    } else if value.is_infinite() {
        text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        write!(text, "{value}").expect("writing to a String cannot fail");
    }
}
