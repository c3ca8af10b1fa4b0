//! Faults that tests order, and how often each driver function was called.
//!
//! An order is `name:after:count:code`: of the calls of `name` from now on, those numbered
//! `after + 1` to `after + count` answer `code`. The name `copy` stands for a copy that a stream
//! executes, `memset` for a fill, `kernel` for a kernel, `host_function` for a function of the
//! host. A kernel that an order for `hang` names does not end before the order is taken back,
//! whatever the code, or the device breaks. The name `device:<ordinal>` acts at once: the code
//! becomes the device's sticky error, 46 loses the device, 0 heals it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::code::Code;

const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Where an order came from: those of the file leave when the file changes.
#[derive(Clone, Copy, PartialEq)]
pub enum Source {
    Test,
    File,
}

struct Rule {
    number: u64,
    name: String,
    source: Source,
    after: u64,
    count: u64,
    code: Code,
    seen: u64,
}

struct Faults {
    rules: Vec<Rule>,
    counts: BTreeMap<String, u64>,
    device_orders: Vec<(usize, Code)>,
    /// How many orders there were, over all.
    numbers: u64,
    watch: Watch,
}

/// The file of orders, as it was when last looked at.
struct Watch {
    path: Option<String>,
    checked: Option<Instant>,
    version: Option<(SystemTime, u64)>,
}

static FAULTS: Mutex<Faults> = Mutex::new(Faults {
    rules: Vec::new(),
    counts: BTreeMap::new(),
    device_orders: Vec::new(),
    numbers: 0,
    watch: Watch {
        path: None,
        checked: None,
        version: None,
    },
});

fn faults() -> MutexGuard<'static, Faults> {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the orders of the environment. The first call of any function does so.
pub fn read_environment() {
    let mut faults = faults();
    if let Ok(text) = std::env::var("CONCH_CUDA_DOUBLE_FAIL") {
        faults.add_all(&text, Source::Test);
    }
    faults.watch.path = std::env::var("CONCH_CUDA_DOUBLE_FAULTS").ok();
}

/// Adds an order. One with a count of 0 takes back all orders for its name.
pub fn add(name: &str, after: u32, count: u32, code: Code) {
    faults().add(name, u64::from(after), u64::from(count), code, Source::Test);
}

/// Counts a call of `name`, and says what it is to fail with, if it is.
pub fn pass(name: &str) -> Option<Code> {
    pass_rule(name).map(|(_, code)| code)
}

/// As [`pass`], for what lasts: the number of the order that it is to be held by, if there is one.
pub fn hold(name: &str) -> Option<u64> {
    pass_rule(name).map(|(number, _)| number)
}

/// Whether an order is not taken back yet.
pub fn is_standing(number: u64) -> bool {
    let mut faults = faults();
    faults.reread();
    faults.rules.iter().any(|rule| rule.number == number)
}

fn pass_rule(name: &str) -> Option<(u64, Code)> {
    let mut faults = faults();
    faults.reread();
    match faults.counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(faults.counts.insert(name.to_owned(), 1)),
    }
    let mut found = None;
    for rule in faults.rules.iter_mut().filter(|rule| rule.name == name) {
        rule.seen += 1;
        if rule.seen > rule.after && rule.seen - rule.after <= rule.count {
            found = found.or(Some((rule.number, rule.code)));
        }
    }
    found
}

/// Counts something that is no call and cannot fail.
pub fn count_up(name: &str) {
    *faults().counts.entry(name.to_owned()).or_default() += 1;
}

pub fn count(name: &str) -> u64 {
    faults().counts.get(name).copied().unwrap_or(0)
}

/// The orders for devices that nobody has carried out yet.
pub fn take_device_orders() -> Vec<(usize, Code)> {
    std::mem::take(&mut faults().device_orders)
}

impl Faults {
    fn add(&mut self, name: &str, after: u64, count: u64, code: Code, source: Source) {
        if let Some(ordinal) = name.strip_prefix("device:") {
            if let Ok(ordinal) = ordinal.parse() {
                self.device_orders.push((ordinal, code));
            }
        } else if count == 0 {
            self.rules.retain(|rule| rule.name != name);
        } else {
            let name = name.to_owned();
            self.numbers += 1;
            self.rules.push(Rule {
                number: self.numbers,
                name,
                source,
                after,
                count,
                code,
                seen: 0,
            });
        }
    }

    fn add_all(&mut self, text: &str, source: Source) {
        for entry in text.split([',', '\n']).map(str::trim) {
            let mut parts = entry.rsplitn(4, ':');
            let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
            let (code, count, after) = (number(), number(), number());
            if let (Some(code), Some(count), Some(after), Some(name)) =
                (code, count, after, parts.next())
            {
                self.add(name, u64::from(after), u64::from(count), code, source);
            }
        }
    }

    /// Replaces the orders of the file when the file has changed.
    fn reread(&mut self) {
        let Some(path) = self.watch.path.clone() else {
            return;
        };
        if self
            .watch
            .checked
            .is_some_and(|checked| checked.elapsed() < CHECK_EVERY)
        {
            return;
        }
        self.watch.checked = Some(Instant::now());
        let metadata = std::fs::metadata(&path).ok();
        let version = metadata.and_then(|data| Some((data.modified().ok()?, data.len())));
        if version == self.watch.version {
            return;
        }
        self.watch.version = version;
        self.rules.retain(|rule| rule.source != Source::File);
        if let Ok(text) = std::fs::read_to_string(&path) {
            self.add_all(&text, Source::File);
        }
    }
}
