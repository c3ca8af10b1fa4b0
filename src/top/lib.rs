//! `conch top`: the events of a server's dashboard, drawn in a terminal.
//!
//! A thread reads the events ([`stream`]); the calling thread reads keys and draws ([`view`]). The
//! server may be of another version: what is missing in an event counts as 0.
#![forbid(unsafe_code)]

mod events;
mod history;
mod numbers;
mod sample;
mod screen;
mod stream;
mod terminal;
#[cfg(test)]
mod testing;
mod view;

use std::io::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use conch_client::options::ConnectionOptions;
use history::History;
use screen::Screen;
use stream::{StreamReader, StreamReport};
use terminal::{Key, Terminal};
use view::ViewState;

/// Width of what is printed where there is no terminal.
const PRINTED_COLUMNS: usize = 100;
/// How long `--once` waits for the second event.
const ONCE_TIMEOUT: Duration = Duration::from_secs(15);

/// Prints one second of the server as text, and returns.
///
/// # Errors
/// Why there is nothing to print, in words for the user.
pub fn print_once(server: &ConnectionOptions) -> Result<(), String> {
    let reports = StreamReader::start(server.clone(), false);
    let (mut history, address) = (History::default(), server.url.shown());
    let deadline = Instant::now() + ONCE_TIMEOUT;
    while history.latest().is_none() {
        let left = deadline.saturating_duration_since(Instant::now());
        match reports.recv_timeout(left) {
            Ok(StreamReport::Layout(layout)) => history.set_layout(layout),
            Ok(StreamReport::Sample(sample)) => history.push(*sample),
            Ok(StreamReport::Lost(reason)) => return Err(format!("{address}: {reason}")),
            Err(RecvTimeoutError::Timeout) => return Err(format!("{address}: no event in time")),
            Err(RecvTimeoutError::Disconnected) => return Err(format!("{address}: it has ended")),
        }
    }
    let lines = view::lines(&history, &ViewState::default(), PRINTED_COLUMNS, None);
    let mut text = String::new();
    for line in lines {
        text.push_str(line.text.trim_end());
        text.push('\n');
    }
    // Whoever reads may be gone.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Draws until the user ends it.
///
/// # Errors
/// Why there is no terminal to draw in.
pub fn watch(server: &ConnectionOptions) -> Result<(), String> {
    let terminal = Terminal::open()
        .map_err(|error| format!("no terminal: {error}; --once prints one second as text"))?;
    let reports = StreamReader::start(server.clone(), true);
    let mut top = Top {
        screen: Screen::default(),
        history: History::default(),
        view: ViewState::of(server.url.shown()),
    };
    let outcome = top.run(&terminal, &reports);
    drop(terminal);
    outcome.map_err(|error| format!("the terminal is gone: {error}"))
}

struct Top {
    screen: Screen,
    history: History,
    view: ViewState,
}

impl Top {
    fn run(
        &mut self,
        terminal: &Terminal,
        reports: &Receiver<StreamReport>,
    ) -> std::io::Result<()> {
        let mut size = (0, 0);
        loop {
            let mut has_changed = self.take(reports);
            match terminal.read_key()? {
                None => {}
                Some(Key::End) => return Ok(()),
                Some(Key::Up) => has_changed |= self.view.choose_before(&self.history),
                Some(Key::Down) => has_changed |= self.view.choose_after(&self.history),
                Some(Key::Other) => {}
            }
            let fresh = terminal.size();
            if has_changed || fresh != size {
                size = fresh;
                let (columns, rows) = size;
                let lines = view::lines(&self.history, &self.view, columns, Some(rows));
                terminal.write(&self.screen.draw(&lines, columns, rows))?;
            }
        }
    }

    /// Takes what the reading thread has reported. Whether there was anything.
    fn take(&mut self, reports: &Receiver<StreamReport>) -> bool {
        let mut has_changed = false;
        loop {
            match reports.try_recv() {
                Ok(StreamReport::Layout(layout)) => self.history.set_layout(layout),
                Ok(StreamReport::Sample(sample)) => {
                    self.history.push(*sample);
                    self.view.link = "live".into();
                }
                Ok(StreamReport::Lost(reason)) => {
                    self.view.link = format!("{reason}; trying again");
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return has_changed,
            }
            has_changed = true;
        }
    }
}
