//! Events of dependencies (rustls, object_store and others that use `tracing` or `log`) as
//! verbose lines: level 1 shows those of level INFO and above, 2 also DEBUG, 3 also TRACE.
//!
//! Nothing is installed until the verbose level first rises above 0: up to then, and whenever it is
//! 0 again, an event costs its dependency one load. Spans are not shown.

use std::fmt::{self, Write as _};
use std::sync::Once;

use tracing_core::callsite::rebuild_interest_cache;
use tracing_core::dispatcher::set_global_default;
use tracing_core::field::{Field, Visit};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::subscriber::Interest;
use tracing_core::{Dispatch, Event, Level, LevelFilter, Metadata, Subscriber};

use crate::level::LogLevel;
use crate::lines::write;
use crate::switches::is_shown;

/// Bytes of one event: headers and frames are shown whole, nothing that a peer sizes is.
const EVENT_BYTES_MAX: usize = 8 << 10;

static INSTALLED: Once = Once::new();

/// Follows the verbose level of the log. Another subscriber that the process has already stays.
pub(crate) fn set_verbose_level(level: u32) {
    if level > 0 {
        INSTALLED.call_once(|| {
            // Failure: an embedder's own subscriber or logger, which gets the events instead.
            let _ = set_global_default(Dispatch::new(TracingBridge));
            let _ = log::set_logger(&FacadeBridge);
        });
    }
    if INSTALLED.is_completed() {
        log::set_max_level(facade_filter(level));
        rebuild_interest_cache();
    }
}

fn verbose_level(level: &Level) -> LogLevel {
    match *level {
        Level::TRACE => LogLevel::Verbose(3),
        Level::DEBUG => LogLevel::Verbose(2),
        _ => LogLevel::Verbose(1),
    }
}

fn facade_filter(level: u32) -> log::LevelFilter {
    match level {
        0 => log::LevelFilter::Off,
        1 => log::LevelFilter::Info,
        2 => log::LevelFilter::Debug,
        _ => log::LevelFilter::Trace,
    }
}

/// Takes the events of `tracing`.
struct TracingBridge;

impl Subscriber for TracingBridge {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match metadata.is_event() {
            true => Interest::sometimes(),
            false => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && is_shown(verbose_level(metadata.level()))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let levels = [Level::TRACE, Level::DEBUG, Level::INFO];
        let shown = levels.iter().find(|level| is_shown(verbose_level(level)));
        Some(shown.map_or(LevelFilter::OFF, |level| LevelFilter::from_level(*level)))
    }

    // No span is ever enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = EventText::default();
        event.record(&mut text);
        write(
            verbose_level(metadata.level()),
            metadata.file().unwrap_or_default(),
            metadata.line().unwrap_or(0),
            format_args!("{}: {}{}", metadata.target(), text.message, text.fields),
        );
    }
}

/// Takes the records of the `log` facade.
struct FacadeBridge;

impl log::Log for FacadeBridge {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        is_shown(match metadata.level() {
            log::Level::Trace => LogLevel::Verbose(3),
            log::Level::Debug => LogLevel::Verbose(2),
            _ => LogLevel::Verbose(1),
        })
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut text = BoundedText::default();
        // A text that is cut off is still worth its line.
        let _ = text.write_fmt(*record.args());
        write(
            LogLevel::Verbose(1),
            record.file().unwrap_or_default(),
            record.line().unwrap_or(0),
            format_args!("{}: {text}", record.target()),
        );
    }

    fn flush(&self) {}
}

/// The message of an event, then its fields as ` name=value`.
#[derive(Default)]
struct EventText {
    message: BoundedText,
    fields: BoundedText,
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => self.message.write_str(value),
            name => write!(self.fields, " {name}={value}"),
        };
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Text that is cut off at [`EVENT_BYTES_MAX`].
#[derive(Default)]
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = EVENT_BYTES_MAX.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        // Ends the formatting of what is too long.
        Err(fmt::Error)
    }
}

impl fmt::Display for BoundedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_off() {
        let mut text = BoundedText::default();
        assert!(write!(text, "{}", "ä".repeat(EVENT_BYTES_MAX)).is_err());
        assert_eq!(text.0.len(), EVENT_BYTES_MAX);
        assert!(text.write_str("b").is_err());
        let mut odd = BoundedText::default();
        assert!(write!(odd, "a{}", "ä".repeat(EVENT_BYTES_MAX)).is_err());
        assert_eq!(odd.0.len(), EVENT_BYTES_MAX - 1);
    }

    #[test]
    fn levels_follow_the_verbose_level() {
        let filters = [0, 1, 2, 3, 9].map(facade_filter);
        assert_eq!(filters.map(|filter| filter as usize), [0, 3, 4, 5, 5]);
        assert_eq!(verbose_level(&Level::ERROR), LogLevel::Verbose(1));
        assert_eq!(verbose_level(&Level::INFO), LogLevel::Verbose(1));
        assert_eq!(verbose_level(&Level::DEBUG), LogLevel::Verbose(2));
        assert_eq!(verbose_level(&Level::TRACE), LogLevel::Verbose(3));
    }
}
