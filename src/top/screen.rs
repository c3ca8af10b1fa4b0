//! From lines to what makes a terminal show them.

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LineStyle {
    #[default]
    Plain,
    Bold,
    Faint,
    Reverse,
    Alarm,
}

/// A line of text without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) style: LineStyle,
}

/// What the terminal shows.
#[derive(Default)]
pub(crate) struct Screen {
    shown: Vec<Line>,
    size: (usize, usize),
}

impl Line {
    pub(crate) fn plain(text: impl Into<String>) -> Line {
        Line::styled(text, LineStyle::Plain)
    }

    pub(crate) fn styled(text: impl Into<String>, style: LineStyle) -> Line {
        Line {
            text: text.into(),
            style,
        }
    }
}

impl Screen {
    /// What has to be written so that the terminal shows `lines`: only those that differ.
    pub(crate) fn draw(&mut self, lines: &[Line], columns: usize, rows: usize) -> String {
        let mut text = String::new();
        if self.size != (columns, rows) {
            text.push_str("\x1b[2J");
            self.shown.clear();
            self.size = (columns, rows);
        }
        for row in 0..rows.max(self.shown.len()).min(rows) {
            let (fresh, old) = (lines.get(row), self.shown.get(row));
            if fresh == old {
                continue;
            }
            text.push_str(&format!("\x1b[{};1H\x1b[0m", row + 1));
            if let Some(line) = fresh {
                text.push_str(match line.style {
                    LineStyle::Plain => "",
                    LineStyle::Bold => "\x1b[1m",
                    LineStyle::Faint => "\x1b[2m",
                    LineStyle::Reverse => "\x1b[7m",
                    LineStyle::Alarm => "\x1b[1;31m",
                });
                text.extend(line.text.chars().take(columns));
                text.push_str("\x1b[0m");
            }
            text.push_str("\x1b[K");
        }
        self.shown = lines.iter().take(rows).cloned().collect();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_drawn() {
        let mut screen = Screen::default();
        let lines = [
            Line::plain("abcdef"),
            Line::styled("x", LineStyle::Reverse),
            Line::plain("below"),
        ];
        assert_eq!(
            screen.draw(&lines, 4, 2),
            "\x1b[2J\x1b[1;1H\x1b[0mabcd\x1b[0m\x1b[K\x1b[2;1H\x1b[0m\x1b[7mx\x1b[0m\x1b[K"
        );
        assert_eq!(screen.draw(&lines, 4, 2), "");
        assert_eq!(screen.draw(&lines[..1], 4, 2), "\x1b[2;1H\x1b[0m\x1b[K");
        assert!(screen.draw(&lines[..1], 5, 2).starts_with("\x1b[2J"));
    }
}
