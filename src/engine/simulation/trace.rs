//! The events of a seed, recorded only on request: most seeds pass, and nobody reads their events.

use std::fmt;

#[derive(Default)]
pub(super) struct SeedTrace {
    lines: Option<Vec<String>>,
}

impl SeedTrace {
    pub(super) fn told() -> SeedTrace {
        SeedTrace {
            lines: Some(Vec::new()),
        }
    }

    /// `when`: in ns, or as the simulation counts.
    pub(super) fn tell(&mut self, when: u64, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{when:>12}  {}", what()));
        }
    }
}

impl fmt::Display for SeedTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines.iter().flatten() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
