//! What is shown, line by line.

use crate::history::History;
use crate::numbers::{bytes, count, cut, duration, padded, right};
use crate::sample::{ModelKey, ModelSample, Sample, SlowSample, add_pairs};
use crate::screen::{Line, LineStyle};

/// Rows of the heat map.
const HEAT_ROWS: usize = 6;
/// How many requests a cell of it has, from none to the most.
const SHADES: [char; 5] = [' ', '\u{b7}', '\u{2591}', '\u{2592}', '\u{2588}'];
/// Heights of a bar, from nothing to full.
const BARS: [char; 9] = [
    ' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
    '\u{2588}',
];
/// Columns in front of charts.
const MARGIN: usize = 12;
/// Rows of instances, loads and slow requests on a screen.
const INSTANCES_MAX: usize = 6;
const LOADS_MAX: usize = 3;
/// Rows that a screen keeps for what is below the table.
const DETAIL_ROWS: usize = 18;

/// What the user has chosen, and whether the server is there.
#[derive(Debug, Default)]
pub(crate) struct ViewState {
    pub(crate) address: String,
    pub(crate) link: String,
    /// None: all models.
    chosen: Option<ModelKey>,
}

impl ViewState {
    /// Of a server that has told nothing yet.
    pub(crate) fn of(address: String) -> ViewState {
        ViewState {
            address,
            link: "connecting".into(),
            chosen: None,
        }
    }

    pub(crate) fn choose_before(&mut self, history: &History) -> bool {
        let keys = keys(history);
        let place = keys
            .iter()
            .position(|key| Some(key) == self.chosen.as_ref());
        self.chosen = place
            .and_then(|place| place.checked_sub(1))
            .and_then(|place| keys.get(place).cloned());
        true
    }

    pub(crate) fn choose_after(&mut self, history: &History) -> bool {
        let keys = keys(history);
        let place = keys
            .iter()
            .position(|key| Some(key) == self.chosen.as_ref());
        let next = keys.get(place.map_or(0, |place| place + 1));
        self.chosen = next.cloned().or_else(|| self.chosen.take());
        true
    }

    /// The model version whose details are shown, if it is still there.
    fn chosen<'a>(&'a self, history: &History) -> Option<&'a ModelKey> {
        let chosen = self.chosen.as_ref()?;
        history.latest()?.of(Some(chosen))?;
        Some(chosen)
    }
}

/// ModelSample versions in the order of the table.
fn keys(history: &History) -> Vec<ModelKey> {
    let latest = history.latest().into_iter();
    let models = latest.flat_map(|second| &second.sample.models);
    models.map(ModelSample::key).collect()
}

/// Everything in so many columns, and as much of it as fits into so many rows if there is a bound.
pub(crate) fn lines(
    history: &History,
    state: &ViewState,
    columns: usize,
    rows: Option<usize>,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let Some(second) = history.latest() else {
        let text = format!("conch top  {}  {}", state.address, state.link);
        return vec![Line::styled(cut(&text, columns), LineStyle::Bold)];
    };
    let chosen = state.chosen(history);
    push_head(&mut lines, history, state, columns);
    push_loads(&mut lines, &second.sample, columns, rows.is_some());
    let room = rows.map_or(usize::MAX, |rows| {
        rows.saturating_sub(lines.len() + DETAIL_ROWS).max(3)
    });
    push_table(&mut lines, history, chosen, columns, room);
    if let Some(model) = second.of(chosen) {
        push_details(&mut lines, history, chosen, model, columns);
    }
    push_slowest(&mut lines, &second.sample.network.slowest, columns);
    if let Some(rows) = rows {
        lines.truncate(rows.saturating_sub(1));
        let keys = "q ends, up and down choose a model";
        lines.push(Line::styled(cut(keys, columns), LineStyle::Faint));
    }
    lines
}

fn push_head(lines: &mut Vec<Line>, history: &History, state: &ViewState, columns: usize) {
    let Some(second) = history.latest() else {
        return;
    };
    let (layout, sample) = (history.layout(), &second.sample);
    let mut title = format!(
        "{} (conch {})  {}",
        layout.server, layout.version, sample.state
    );
    if !state.link.is_empty() {
        title.push_str(&format!("  {}  {}", state.address, state.link));
    }
    let is_well = sample.state == "ready" && ["", "live"].contains(&&*state.link);
    let style = match is_well {
        true => LineStyle::Bold,
        false => LineStyle::Alarm,
    };
    lines.push(Line::styled(cut(&title, columns), style));
    if let Some(all) = second.of(None) {
        let quantile = |share| duration(history.quantile(all, share));
        let text = format!(
            "{} req/s  {} err/s  p50 {}  p95 {}  p99 {}  queue {}  in flight {}  busy {}/{}",
            count(all.success as f64 / sample.seconds()),
            count(all.error_count() as f64 / sample.seconds()),
            quantile(0.5),
            quantile(0.95),
            quantile(0.99),
            all.pending,
            all.in_flight,
            all.busy,
            all.instances,
        );
        lines.push(Line::plain(cut(&text, columns)));
    }
    let open = sample
        .network
        .connections
        .iter()
        .filter(|(_, open)| *open > 0);
    let open: Vec<String> = open.map(|(name, open)| format!("{name} {open}")).collect();
    let text = format!(
        "cpu {:.2} cores  {} threads  memory {}  requests hold {} of {}  connections: {}",
        sample.process.cpu_us as f64 / 1e6 / sample.seconds(),
        sample.process.threads,
        bytes(sample.process.resident_bytes),
        bytes(sample.memory.held_bytes),
        bytes(sample.memory.limit_bytes),
        match open.is_empty() {
            true => "none".into(),
            false => open.join(", "),
        },
    );
    lines.push(Line::plain(cut(&text, columns)));
}

fn push_loads(lines: &mut Vec<Line>, sample: &Sample, columns: usize, is_bounded: bool) {
    let shown_max = if is_bounded { LOADS_MAX } else { usize::MAX };
    for load in sample.loads.iter().take(shown_max) {
        let version = load.version.as_deref().unwrap_or("");
        let text = format!(
            "{} {} {version} {}",
            load.state.to_lowercase(),
            load.name,
            load.reason
        );
        lines.push(Line::plain(cut(&text, columns)));
    }
    let left = sample.loads.len().saturating_sub(shown_max);
    if left > 0 {
        lines.push(Line::styled(format!("and {left} more"), LineStyle::Faint));
    }
}

/// Titles of the table behind the model's name, and their widths.
const COLUMNS: [(&str, usize); 10] = [
    ("VER", 4),
    ("REQ/S", 8),
    ("ERR/S", 7),
    ("P50", 8),
    ("P95", 8),
    ("P99", 8),
    ("QUEUE", 6),
    ("FLIGHT", 7),
    ("BATCH", 6),
    ("BUSY", 8),
];

fn push_table(
    lines: &mut Vec<Line>,
    history: &History,
    chosen: Option<&ModelKey>,
    columns: usize,
    rows_max: usize,
) {
    let Some(second) = history.latest() else {
        return;
    };
    let mut head = String::new();
    let widths: usize = COLUMNS.iter().map(|(_, width)| width + 1).sum();
    let name_columns = columns.saturating_sub(widths).clamp(12, 40);
    head.push_str(&padded("MODEL", name_columns));
    for (title, width) in COLUMNS {
        head.push_str(&format!(" {}", right(title, width)));
    }
    lines.push(Line::styled(padded(&head, columns), LineStyle::Reverse));
    let models = &second.sample.models;
    let place = models.iter().position(|model| Some(&model.key()) == chosen);
    // The chosen one is among those that are shown.
    let first = place.map_or(0, |place| (place + 1).saturating_sub(rows_max));
    for model in models.iter().skip(first).take(rows_max) {
        let mut text = padded(&model.name, name_columns);
        for (cell, (_, width)) in cells(history, model, second.sample.seconds())
            .iter()
            .zip(COLUMNS)
        {
            text.push_str(&format!(" {}", right(cell, width)));
        }
        let style = match Some(&model.key()) == chosen {
            true => LineStyle::Bold,
            false => LineStyle::Plain,
        };
        lines.push(Line::styled(cut(&text, columns), style));
    }
    let hidden = models.len().saturating_sub(first + rows_max) as u64 + first as u64;
    let left = hidden + second.sample.left_out.models;
    if left > 0 {
        lines.push(Line::styled(
            format!("and {left} more models"),
            LineStyle::Faint,
        ));
    }
}

fn cells(history: &History, model: &ModelSample, seconds: f64) -> [String; 10] {
    let quantile = |share| duration(history.quantile(model, share));
    [
        model.version.to_string(),
        count(model.success as f64 / seconds),
        count(model.error_count() as f64 / seconds),
        quantile(0.5),
        quantile(0.95),
        quantile(0.99),
        count(model.pending as f64),
        count(model.in_flight as f64),
        match model.executions {
            0 => "-".into(),
            executions => format!("{:.1}", model.inferences as f64 / executions as f64),
        },
        match model.instances {
            0 => "-".into(),
            instances => format!("{}/{instances}", model.busy),
        },
    ]
}

fn push_details(
    lines: &mut Vec<Line>,
    history: &History,
    chosen: Option<&ModelKey>,
    model: &ModelSample,
    columns: usize,
) {
    let title = match chosen {
        None => "All models".into(),
        Some((_, name, version)) => format!("{name} version {version}"),
    };
    lines.push(Line::styled(padded(&title, columns), LineStyle::Bold));
    let width = columns.saturating_sub(MARGIN);
    let rates = history.last(width).map(|second| {
        let of = second.of(chosen);
        of.map_or(0.0, |model| model.success as f64 / second.sample.seconds())
    });
    push_chart(lines, "requests", rates.collect());
    let queues = history.last(width).map(|second| {
        let of = second.of(chosen);
        of.map_or(0.0, |model| model.pending as f64)
    });
    push_chart(lines, "queue", queues.collect());
    push_heat_map(lines, history, chosen, width);
    let (mut sizes, mut reasons) = (Vec::new(), ModelSample::default());
    for second in history.last(60) {
        if let Some(model) = second.of(chosen) {
            add_pairs(&mut sizes, &model.batches);
            for (reason, count) in &model.errors {
                *reasons.errors.entry(reason.clone()).or_default() += count;
            }
        }
    }
    let sizes = sizes
        .iter()
        .map(|(size, number)| format!("{size}: {}", count(*number as f64)));
    push_list(lines, "batches", sizes.collect(), columns);
    let reasons = reasons.errors.iter();
    let reasons = reasons.map(|(reason, number)| format!("{reason} {}", count(*number as f64)));
    push_list(lines, "errors", reasons.collect(), columns);
    for timeline in model.timelines.iter().take(INSTANCES_MAX) {
        lines.push(Line::plain(instance_line(timeline, columns)));
    }
    let left = model.timelines.len().saturating_sub(INSTANCES_MAX);
    if left > 0 {
        let text = format!("and {left} more instances");
        lines.push(Line::styled(text, LineStyle::Faint));
    }
}

/// One line of bars, the latest value in front.
fn push_chart(lines: &mut Vec<Line>, title: &str, values: Vec<f64>) {
    let top = values.iter().copied().fold(1.0, f64::max);
    let bar = |value: &f64| level(&BARS, *value / top);
    let last = values.last().copied().unwrap_or(0.0);
    let head = format!("{title} {}", count(last));
    let bars: String = values.iter().map(bar).collect();
    lines.push(Line::plain(padded(&head, MARGIN) + &bars));
}

fn push_list(lines: &mut Vec<Line>, title: &str, entries: Vec<String>, columns: usize) {
    let text = match entries.is_empty() {
        true => "none in a minute".into(),
        false => entries.join(", "),
    };
    let text = padded(title, MARGIN) + &text;
    lines.push(Line::plain(cut(&text, columns)));
}

/// Requests by time and duration, the slowest above.
fn push_heat_map(
    lines: &mut Vec<Line>,
    history: &History,
    chosen: Option<&ModelKey>,
    width: usize,
) {
    let seconds = || history.last(width).map(|second| second.of(chosen));
    let buckets = || {
        seconds()
            .flatten()
            .flat_map(|model| model.latency.iter().map(|(bucket, _)| *bucket))
    };
    let (Some(low), Some(high)) = (buckets().min(), buckets().max()) else {
        lines.push(Line::plain(
            padded("latency", MARGIN) + "no request ended in this time",
        ));
        return;
    };
    let step = (high - low + 1).div_ceil(HEAT_ROWS);
    let in_row = |model: Option<&ModelSample>, row: usize| -> u64 {
        let rows = low + row * step..low + (row + 1) * step;
        let pairs = model.map_or(&[][..], |model| &model.latency);
        let pairs = pairs.iter().filter(|(bucket, _)| rows.contains(bucket));
        pairs.map(|(_, count)| count).sum()
    };
    let row_count = (high - low + 1).div_ceil(step);
    let most = (0..row_count)
        .flat_map(|row| seconds().map(move |model| in_row(model, row)))
        .max()
        .unwrap_or(1);
    let bounds = &history.layout().bounds_us;
    for row in (0..row_count).rev() {
        let top = bounds.get(low + (row + 1) * step - 1).or(bounds.last());
        let head = format!("< {}", duration(top.map(|top| *top as f64)));
        // Few are to be seen beside many.
        let share = |count: u64| (count as f64 + 1.0).ln() / (most as f64 + 1.0).ln();
        let cells = seconds().map(|model| match in_row(model, row) {
            0 => ' ',
            count => level(&SHADES, share(count)),
        });
        let cells: String = cells.collect();
        lines.push(Line::plain(padded(&head, MARGIN) + &cells));
    }
}

/// What an instance did in the last second.
fn instance_line(timeline: &crate::sample::TimelineSample, columns: usize) -> String {
    let digits = timeline
        .cells
        .chars()
        .map(|cell| cell.to_digit(10).unwrap_or(0));
    let digits: Vec<u32> = digits.collect();
    let busy = digits.iter().sum::<u32>() as f64 / (9 * digits.len().max(1)) as f64;
    let tail = format!(
        " {:>3.0}% {:>6}",
        busy * 100.0,
        count(timeline.executions as f64)
    );
    let name_columns = (columns / 4).clamp(8, 28);
    let width = columns.saturating_sub(name_columns + 1 + tail.len());
    let group = digits.len().div_ceil(width.max(1)).max(1);
    // Several cells share a column where there are fewer.
    let strip = digits.chunks(group).map(|cells| {
        let most = cells.iter().copied().max().unwrap_or(0);
        level(&BARS, f64::from(most) / 9.0)
    });
    let strip: String = strip.collect();
    let strip = padded(&strip, width.min(digits.len()));
    format!("{} {strip}{tail}", padded(&timeline.name, name_columns))
}

fn push_slowest(lines: &mut Vec<Line>, slowest: &[SlowSample], columns: usize) {
    let title = "Slowest requests of the last minute";
    lines.push(Line::styled(cut(title, columns), LineStyle::Bold));
    if slowest.is_empty() {
        lines.push(Line::plain("none"));
    }
    for request in slowest {
        let mut text = format!(
            "{} {} {}",
            right(&duration(Some(request.total_us as f64)), 8),
            request.model,
            request.outcome
        );
        if !request.id.is_empty() {
            text.push_str(&format!(" [{}]", request.id));
        }
        for (stage, us) in &request.stages {
            text.push_str(&format!(" {stage} {}", duration(Some(*us as f64))));
        }
        lines.push(Line::plain(cut(&text, columns)));
    }
}

/// The sign for a share of the most; only nothing has the first.
fn level(signs: &[char], share: f64) -> char {
    let top = signs.len().saturating_sub(1);
    let place = match share > 0.0 {
        true => ((share * top as f64).ceil() as usize).clamp(1, top),
        false => 0,
    };
    signs.get(place).copied().unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::history;

    fn text(lines: &[Line]) -> String {
        let lines = lines.iter().map(|line| line.text.trim_end());
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn all_is_printed_where_there_is_no_bound() {
        let shown = text(&lines(&history(2), &ViewState::default(), 110, None));
        for expected in [
            "triton (conch 0.1.0)  ready\n",
            "200 req/s  3 err/s  p50 10us  p95 38us  p99 40us  queue 5  in flight 7  busy 1/3",
            "cpu 0.50 cores  9 threads  memory 100 MiB  requests hold 2.0 KiB of 1.0 GiB  \
             connections: http 3",
            "loading new 2 1 of 2 instances are ready",
            "MODEL",
            "a?[2Jb",
            "All models",
            "batches     2: 100, 6: 100",
            "errors      queue_full 6",
            "resnet_0",
            "4.20ms resnet ok [r7] read 100us infer 4.00ms write 100us",
        ] {
            assert!(shown.contains(expected), "{expected} is not in\n{shown}");
        }
        let row = shown.lines().find(|line| line.starts_with("resnet "));
        let cells: Vec<&str> = row.unwrap().split_whitespace().collect();
        let expected = [
            "resnet", "1", "200", "3", "10us", "38us", "40us", "5", "7", "4.0", "1/2",
        ];
        assert_eq!(cells, expected);
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn a_screen_is_never_overfull() {
        for (columns, rows) in [(1, 1), (20, 5), (40, 12), (80, 24), (300, 100)] {
            let mut state = ViewState::default();
            let history = history(300);
            state.choose_after(&history);
            let lines = lines(&history, &state, columns, Some(rows));
            assert!(lines.len() <= rows, "{columns} {rows}: {}", lines.len());
            let tail = lines.last().unwrap();
            assert!(tail.text.chars().count() <= columns);
        }
    }

    #[test]
    fn models_are_chosen_one_by_one() {
        let history = history(1);
        let mut state = ViewState::default();
        let mut names = Vec::new();
        for is_down in [true, true, true, false, false, false] {
            match is_down {
                true => state.choose_after(&history),
                false => state.choose_before(&history),
            };
            let chosen = state.chosen(&history);
            names.push(chosen.map_or("all", |(_, name, _)| name).to_owned());
        }
        let odd = "a\u{1b}[2Jb";
        assert_eq!(names, [odd, "resnet", "resnet", odd, "all", "all"]);
        let lines = lines(&history, &state, 80, None);
        assert!(text(&lines).contains("All models"));
    }

    #[test]
    fn before_the_first_event_the_server_is_named() {
        let state = ViewState::of("http://a:1".into());
        let shown = lines(&History::default(), &state, 80, Some(24));
        assert_eq!(text(&shown), "conch top  http://a:1  connecting");
    }
}
