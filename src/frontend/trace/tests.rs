//! From settings to files.

use std::path::PathBuf;

use super::*;

/// A directory that goes away.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("conch-trace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn tracing(&self, rate: u32, count: i32, log_frequency: u32) -> Arc<Tracing> {
        Tracing::start(
            &TraceOptions {
                levels: TIMES,
                rate,
                count,
                log_frequency,
                file: self.0.join("t").to_str().unwrap().to_owned(),
                collector: None,
            },
            None,
        )
        .unwrap()
    }

    /// The files' names, and which traces are in them, by the time that each reported.
    fn files(&self) -> Vec<(String, Vec<u64>)> {
        let mut rows: Vec<(String, Vec<u64>)> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let text = std::fs::read_to_string(entry.path()).unwrap();
                assert!(
                    text.starts_with("[{\"id\":") && text.ends_with("}]}]"),
                    "{text}"
                );
                let times = text.split("\"ns\":").skip(1).map(|rest| {
                    let digits = rest.split('}').next().unwrap();
                    digits.parse().unwrap()
                });
                (entry.file_name().into_string().unwrap(), times.collect())
            })
            .collect();
        rows.sort();
        rows
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

const TIMES: TraceLevels = TraceLevels {
    timestamps: true,
    tensors: false,
};

/// Requests of these numbers to `model`, one after the other.
fn ask(tracing: &Tracing, model: &str, numbers: std::ops::Range<u64>) {
    for number in numbers {
        if let Some(traced) = tracing.sample(model, || None) {
            traced.reached_at("HTTP_RECV_START", number);
        }
    }
}

fn row(name: &str, times: &[u64]) -> (String, Vec<u64>) {
    (name.to_owned(), times.to_vec())
}

#[test]
fn which_file_a_trace_is_written_to() {
    // Rate, count, log frequency, and the files that nine requests make.
    type Files<'a> = &'a [(&'a str, &'a [u64])];
    let table: [(u32, i32, u32, Files<'_>); 7] = [
        (1, -1, 0, &[("t", &[0, 1, 2, 3, 4, 5, 6, 7, 8])]),
        (4, -1, 0, &[("t", &[3, 7])]),
        (
            1,
            -1,
            4,
            &[
                ("t.0", &[0, 1, 2, 3]),
                ("t.1", &[4, 5, 6, 7]),
                ("t.2", &[8]),
            ],
        ),
        (1, 2, 0, &[("t.0", &[0, 1])]),
        // Not all requests were traced: the file is that of the end.
        (2, 2, 0, &[("t", &[1, 3])]),
        (2, 3, 2, &[("t.0", &[1, 3]), ("t.1", &[5])]),
        (1, 20, 0, &[("t", &[0, 1, 2, 3, 4, 5, 6, 7, 8])]),
    ];
    for (index, (rate, count, log_frequency, expected)) in table.into_iter().enumerate() {
        let directory = Directory::new(&format!("which-{index}"));
        let tracing = directory.tracing(rate, count, log_frequency);
        ask(&tracing, "m", 0..9);
        tracing.finish();
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, times)| row(name, times))
            .collect();
        assert_eq!(directory.files(), expected, "case {index}");
    }
}

#[test]
fn models_have_settings_of_their_own_and_follow_in_the_rest() {
    let directory = Directory::new("models");
    let tracing = directory.tracing(1, -1, 0);
    let off = SettingsUpdate {
        levels: FieldChange::Set(TraceLevels::default()),
        ..SettingsUpdate::default()
    };
    tracing.update("", &off).unwrap();
    assert!(!tracing.is_on());
    ask(&tracing, "m", 0..3);
    let on = SettingsUpdate {
        levels: FieldChange::Set(TIMES),
        ..SettingsUpdate::default()
    };
    tracing.update("m", &on).unwrap();
    assert!(tracing.is_on());
    ask(&tracing, "m", 3..5);
    ask(&tracing, "other", 5..9);
    // A field that the model did not set follows the server's.
    let rate = SettingsUpdate {
        rate: FieldChange::Set(2),
        ..SettingsUpdate::default()
    };
    tracing.update("", &rate).unwrap();
    assert_eq!(
        (tracing.values("m").rate, tracing.values("other").rate),
        (2, 2)
    );
    ask(&tracing, "m", 10..12);
    let clear = SettingsUpdate {
        levels: FieldChange::Clear,
        ..SettingsUpdate::default()
    };
    tracing.update("m", &clear).unwrap();
    assert!(!tracing.is_on());
    ask(&tracing, "m", 20..30);
    // Back to the start.
    let all = SettingsUpdate {
        rate: FieldChange::Clear,
        ..clear
    };
    tracing.update("", &all).unwrap();
    assert_eq!(tracing.values("m"), tracing.defaults);
    ask(&tracing, "m", 30..31);
    tracing.finish();
    assert_eq!(directory.files(), [row("t", &[3, 4, 11, 30])]);
}

#[test]
fn settings_that_cannot_trace_are_refused() {
    let set_rate = |rate| SettingsUpdate {
        rate: FieldChange::Set(rate),
        ..SettingsUpdate::default()
    };
    let set_count = |count| SettingsUpdate {
        count: FieldChange::Set(count),
        ..SettingsUpdate::default()
    };
    let on = SettingsUpdate {
        levels: FieldChange::Set(TIMES),
        ..SettingsUpdate::default()
    };
    let refusal = "Attempting to set invalid trace setting :";
    let directory = Directory::new("refused");
    let tracing = directory.tracing(1, -1, 0);
    for (update, expected) in [
        (set_rate(0), "sample rate must be non-zero"),
        (set_count(0), ""),
    ] {
        for model in ["", "m"] {
            let refused = tracing.update(model, &update).unwrap_err();
            assert_eq!(refused.message, format!("{refusal}{expected}"));
        }
    }
    assert!(tracing.is_on());
    tracing.finish();
    assert!(!tracing.is_on());

    let tracing = Tracing::start(&TraceOptions::default(), None).unwrap();
    let refused = tracing.update("", &on).unwrap_err();
    assert_eq!(
        refused.message,
        format!("{refusal}trace file name is not given")
    );
    tracing.update("", &set_rate(0)).unwrap();
    assert_eq!(tracing.values("m").rate, 0);
    assert!(tracing.sample("m", || None).is_none());
    tracing.finish();
}

#[test]
fn what_ends_after_the_end_is_not_written() {
    let directory = Directory::new("late");
    let tracing = directory.tracing(1, -1, 0);
    let late = tracing.sample("m", || None).unwrap();
    ask(&tracing, "m", 1..2);
    tracing.finish();
    late.reached_at("HTTP_RECV_START", 5);
    drop(late);
    assert_eq!(directory.files(), [row("t", &[1])]);
}

#[test]
fn large_collections_are_written_on_the_way() {
    for (log_frequency, file) in [(0, "t"), (200_000, "t.0")] {
        let directory = Directory::new(&format!("large-{log_frequency}"));
        let tracing = directory.tracing(1, -1, log_frequency);
        let numbers = 0..120_000;
        for number in numbers.clone() {
            // Slower than the writer: nothing may be lost here.
            while number % 1_000 == 0 && !tracing.queue.is_idle() {
                std::thread::yield_now();
            }
            ask(&tracing, "m", number..number + 1);
        }
        tracing.finish();
        let numbers: Vec<u64> = numbers.collect();
        assert_eq!(directory.files(), [row(file, &numbers)]);
    }
}
