//! `conch check`: prints what is wrong with model repositories, and serves nothing.

use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;

use conch_cli::CheckCommand;
use conch_control::check::{CheckFault, CheckReport, CheckState, ModelReport};
use conch_log as log;
use conch_net::{limits, signal};

/// Open files of the models that are loaded, as of a server's.
const OPEN_FILES: u64 = 65_536;

/// Looks at the repositories, prints the report to the standard output, and says what the program
/// ends with. All else that is printed meanwhile, by backends too, goes to the standard error.
pub fn run(command: CheckCommand) -> ExitCode {
    let CheckCommand {
        arguments,
        loads,
        prints_json,
    } = command;
    let mut output = match conch_net::take_stdout() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("error: the standard output or the standard error is closed: {error}");
            return ExitCode::FAILURE;
        }
    };
    log::tell_panics();
    if let Err(error) = signal::drain_before_crash(log::pending) {
        eprintln!("error: cannot install signal handlers: {error}");
        return ExitCode::FAILURE;
    }
    for warning in &arguments.console_warnings {
        eprintln!("{warning}");
    }
    crate::start_log(&arguments);
    // The report has what the loader logs, unless somebody wants to see how it comes to that.
    let is_told = log::settings().verbose_level > 0;
    log::show_info(is_told && arguments.log.shows_info);
    log::show_error(is_told && arguments.log.shows_error);
    let mut report = conch_ffi::examine(&arguments.engine, &arguments.plugins);
    let mut ended = Ok(());
    if loads {
        log::show_info(arguments.log.shows_info);
        log::show_error(arguments.log.shows_error);
        // What the system allows is what there is.
        let _ = limits::raise_open_files(OPEN_FILES);
        let mut told = |model: &ModelReport| {
            if !prints_json {
                print(&mut output, &lines_of_model(model));
            }
        };
        let (engine, plugins) = (&arguments.engine, arguments.plugins);
        ended = conch_ffi::check_by_loading(engine, plugins, &mut report, &mut told);
    }
    let text = match (prints_json, loads) {
        (true, _) => report.to_json() + "\n",
        (false, true) => lines_of_end(&report),
        (false, false) => {
            let models: String = report.models.iter().map(lines_of_model).collect();
            models + &lines_of_end(&report)
        }
    };
    print(&mut output, &text);
    drop(output);
    if let Err(error) = &ended {
        log::print(log::LogLevel::Error, &format!("error: {error}"));
    }
    log::flush(log::EXIT_FLUSH);
    match (ended, report.is_good()) {
        (Ok(()), true) => ExitCode::SUCCESS,
        (Ok(()), false) => ExitCode::FAILURE,
        // Threads may still be inside of plug-ins, whose exit handlers must not run then.
        (Err(_), _) => signal::end_process(1),
    }
}

/// Whoever reads may be gone; the exit code tells all the same.
fn print(output: &mut File, text: &str) {
    let _ = output.write_all(text.as_bytes());
}

fn lines_of_model(model: &ModelReport) -> String {
    let mut lines = String::new();
    let name = printable(&model.id.to_string());
    if model.is_good() {
        lines.push_str(&format!("ok   {name}"));
        let versions: Vec<String> = model.versions.iter().map(i64::to_string).collect();
        match versions.as_slice() {
            [] => {}
            [version] => lines.push_str(&format!(" (version {version})")),
            versions => lines.push_str(&format!(" (versions {})", versions.join(", "))),
        }
        lines.push_str(match model.state {
            CheckState::Ready => ", READY\n",
            CheckState::Ok | CheckState::Failed => "\n",
        });
    }
    for fault in &model.errors {
        lines.push_str(&line_of_fault(&name, fault));
    }
    for note in &model.notes {
        lines.push_str(&format!("{INDENT}note: {}\n", printable(note)));
    }
    lines
}

/// The repositories' own faults, and how many models are how.
fn lines_of_end(report: &CheckReport) -> String {
    let mut lines = String::new();
    for fault in &report.errors {
        lines.push_str(&line_of_fault("repository", fault));
    }
    let good_count = report.models.iter().filter(|model| model.is_good()).count();
    let count = report.models.len();
    let plural = if count == 1 { "" } else { "s" };
    let failed_count = count - good_count;
    lines.push_str(&format!(
        "{count} model{plural}: {good_count} ok, {failed_count} failed\n"
    ));
    lines
}

fn line_of_fault(subject: &str, fault: &CheckFault) -> String {
    let mut line = format!("FAIL {subject}: ");
    if let Some(file) = &fault.file {
        line.push_str(&printable(&file.to_string_lossy()));
        for number in [fault.line, fault.column].into_iter().flatten() {
            line.push_str(&format!(":{number}"));
        }
        line.push_str(": ");
    }
    let message = fault.message.trim_end().split('\n').map(printable);
    let message: Vec<String> = message.collect();
    line.push_str(&message.join(&format!("\n{INDENT}")));
    line.push('\n');
    line
}

/// Names come from whoever made the folder: none may break a line or colour a terminal.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && character != '\t' {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

const INDENT: &str = "     ";
