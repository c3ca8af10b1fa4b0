//! Completions for shells, made from the table of flags, so that they are those of this version.
//!
//! Texts only: a shell reads them, and asks nobody later.

mod bash;
mod fish;
mod flag_argument;
mod shell;
mod zsh;

#[cfg(test)]
mod tests;

pub use shell::Shell;

/// What `conch completions` prints: a script for `shell`.
pub fn completions(shell: Shell) -> String {
    match shell {
        Shell::Bash => bash::script(),
        Shell::Zsh => zsh::script(),
        Shell::Fish => fish::script(),
    }
}
