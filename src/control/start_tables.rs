//! The start-up tables of the log: repository agents, backends, models with their state, options.

use conch_log as log;

use crate::options::{ControlMode, EngineOptions};
use crate::server_metadata::ServerMetadata;

/// Logs agents (name, path), backends (name, path, configuration) and models (name, version,
/// status).
pub(crate) fn log_summary(
    agents: &[(String, String)],
    backends: &[(String, String, String)],
    models: &[[String; 3]],
) {
    let mut table = TextTable::new(&["Repository Agent", "Path"]);
    for (name, path) in agents {
        table.push(&[name, path]);
    }
    log_table(&table);
    let mut table = TextTable::new(&["Backend", "Path", "Config"]);
    for (name, path, config) in backends {
        table.push(&[name, path, config]);
    }
    log_table(&table);
    let mut table = TextTable::new(&["Model", "Version", "Status"]);
    for [name, version, status] in models {
        table.push(&[name, version, status]);
    }
    log_table(&table);
}

/// Logs what the server runs with.
pub(crate) fn log_options(
    options: &EngineOptions,
    metadata: &ServerMetadata,
    is_cache_enabled: bool,
) {
    let mut rows = vec![
        ("server_id".to_owned(), metadata.name.clone()),
        ("server_version".to_owned(), metadata.version.to_owned()),
        (
            "server_extensions".to_owned(),
            metadata.extensions.join(" "),
        ),
    ];
    for (index, path) in options.model_repositories.iter().enumerate() {
        rows.push((
            format!("model_repository_path[{index}]"),
            path.display().to_string(),
        ));
    }
    rows.extend([
        (
            "model_control_mode".to_owned(),
            match options.model_control_mode {
                ControlMode::None => "MODE_NONE",
                ControlMode::Poll => "MODE_POLL",
                ControlMode::Explicit => "MODE_EXPLICIT",
            }
            .to_owned(),
        ),
        (
            "strict_model_config".to_owned(),
            u8::from(!options.auto_complete).to_string(),
        ),
        (
            "model_config_name".to_owned(),
            options.model_config_name.clone(),
        ),
        (
            "rate_limit".to_owned(),
            if options.limits_rate {
                "EXEC_COUNT"
            } else {
                "OFF"
            }
            .to_owned(),
        ),
        (
            "strict_readiness".to_owned(),
            u8::from(options.strict_readiness).to_string(),
        ),
        (
            "exit_timeout".to_owned(),
            options.exit_timeout.as_secs().to_string(),
        ),
        (
            "cache_enabled".to_owned(),
            u8::from(is_cache_enabled).to_string(),
        ),
        (
            "memory_limit_bytes".to_owned(),
            options.memory_limit_bytes.to_string(),
        ),
        (
            "queue_requests_max".to_owned(),
            options.queue_requests_max.to_string(),
        ),
    ]);
    let mut table = TextTable::new(&["Option", "Value"]);
    for (name, value) in &rows {
        table.push(&[name, value]);
    }
    log_table(&table);
}

/// Logs any table, such as the one of threads and CPUs.
pub fn log_table(table: &TextTable) {
    log::write_table(file!(), line!(), &table.to_string());
}

/// Rows of text under a heading, drawn with lines between columns.
#[derive(Debug)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub fn new(heading: &[&str]) -> TextTable {
        TextTable {
            rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row; cells may have several lines. Control characters are shown escaped, so that a
    /// hostile name cannot draw its own rows.
    pub fn push(&mut self, cells: &[&str]) {
        self.rows
            .push(cells.iter().map(|cell| clean(cell)).collect());
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let column_count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; column_count];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell
                    .lines()
                    .map(|line| line.chars().count())
                    .max()
                    .unwrap_or(0)
                    .max(*width);
            }
        }
        let divider: String = widths
            .iter()
            .map(|width| format!("+{}", "-".repeat(width + 2)))
            .collect::<String>()
            + "+\n";
        f.write_str(&divider)?;
        for (index, row) in self.rows.iter().enumerate() {
            let height = row
                .iter()
                .map(|cell| cell.lines().count())
                .max()
                .unwrap_or(0)
                .max(1);
            for line in 0..height {
                for (width, cell) in widths.iter().zip(row) {
                    write!(f, "| {:<width$} ", cell.lines().nth(line).unwrap_or(""))?;
                }
                f.write_str("|\n")?;
            }
            if index == 0 {
                f.write_str(&divider)?;
            }
        }
        f.write_str(&divider)
    }
}

fn clean(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    for character in cell.chars() {
        if character.is_control() && character != '\n' {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_look_like_upstreams() {
        let mut table = TextTable::new(&["Model", "Version", "Status"]);
        table.push(&["simple", "1", "READY"]);
        table.push(&["bad\u{1b}\r", "-", "UNAVAILABLE: Internal: first\nsecond"]);
        let expected = "\
+-------------+---------+------------------------------+
| Model       | Version | Status                       |
+-------------+---------+------------------------------+
| simple      | 1       | READY                        |
| bad\\u{1b}\\r | -       | UNAVAILABLE: Internal: first |
|             |         | second                       |
+-------------+---------+------------------------------+
";
        assert_eq!(table.to_string(), expected);
        assert_eq!(
            TextTable::new(&["A"]).to_string(),
            "+---+\n| A |\n+---+\n+---+\n"
        );
    }
}
