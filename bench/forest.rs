//! The forests of the fil backend by themselves: no server, no requests. `perf/frameworks` asks
//! this program as it asks the engines of `perf/engines`, in their language (`loop.h` there).
//!
//! Its modules are the backend's own files. The answers of a row are what the model's link function
//! makes of its sums, one FP32 per class.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::BufRead as _;
use std::process::exit;
use std::time::{Duration, Instant};

use conch_bench::arguments::Arguments;
use rustix::time::{ClockId, clock_gettime};

use forest::{Compiled, Predictor};
use formats::Format;

#[allow(dead_code, unused_imports)] // The backend uses the rest.
#[path = "../src/backends/fil/forest/mod.rs"]
mod forest;
#[allow(dead_code)] // As above.
#[path = "../src/backends/fil/formats/mod.rs"]
mod formats;

const USAGE: &str = "forest --format=MODEL_TYPE --model=FILE --rows=FILE [--threads=1]";

fn main() {
    let mut arguments = Arguments::from_process(USAGE);
    let format = arguments.require("format");
    let model = arguments.require("model");
    let rows = arguments.require("rows");
    let threads = arguments.take("threads", 1);
    arguments.finish();
    let done =
        Workload::load(&format, &model, &rows, threads).and_then(|mut workload| workload.attend());
    if let Err(error) = done {
        eprintln!("{error}");
        exit(1);
    }
}

/// A forest, and rows for it.
struct Workload {
    forest: Compiled,
    predictor: Predictor,
    rows: Vec<f32>,
    answers: Vec<f32>,
}

impl Workload {
    fn load(
        format: &str,
        model: &str,
        rows: &str,
        threads: usize,
    ) -> Result<Workload, Box<dyn Error>> {
        let mut formats = Format::ALL.into_iter();
        let format = formats
            .find(|known| known.name() == format)
            .ok_or("no such format")?;
        let forest = Compiled::new(&format.read(&std::fs::read(model)?)?)?;
        let bytes = std::fs::read(rows)?;
        let numbers = bytes.as_chunks().0.iter();
        let rows: Vec<f32> = numbers.map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let count = rows.len() / forest.feature_count;
        Ok(Workload {
            answers: vec![0.0; count * forest.class_count],
            predictor: Predictor::new(threads),
            rows,
            forest,
        })
    }

    fn row_count(&self) -> usize {
        self.rows.len() / self.forest.feature_count
    }

    /// One call, as the backend makes one per batch.
    fn call(&mut self, first: usize, count: usize) {
        let (features, width) = (self.forest.feature_count, self.forest.class_count);
        let rows = self.rows.get(first * features..(first + count) * features);
        let answers = self.answers.get_mut(..count * width);
        let (Some(rows), Some(answers)) = (rows, answers) else {
            return;
        };
        let finish = |values: &[f64], answer: &mut [f32]| {
            for (answer, &value) in answer.iter_mut().zip(values) {
                *answer = value as f32;
            }
        };
        self.predictor
            .predict(&self.forest, rows, answers, width, &finish);
    }

    /// Does what standard input says until it ends.
    fn attend(&mut self) -> Result<(), Box<dyn Error>> {
        println!("ready");
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            match *line.split(' ').collect::<Vec<_>>() {
                ["save", file] => {
                    self.call(0, self.row_count());
                    let bytes = self.answers.iter().flat_map(|value| value.to_le_bytes());
                    std::fs::write(file, bytes.collect::<Vec<u8>>())?;
                    println!("saved");
                }
                ["run", rows, times] => self.run(rows.parse()?, times.parse()?),
                ["rest", times, pause_us] => {
                    self.rest(times.parse()?, Duration::from_micros(pause_us.parse()?));
                }
                _ => return Err(format!("'{line}' is no command").into()),
            }
        }
        Ok(())
    }

    fn run(&mut self, rows: usize, times: usize) {
        let (wall, cpu) = (Instant::now(), cpu_ns());
        let mut first = 0;
        for _ in 0..times {
            if first + rows > self.row_count() {
                first = 0;
            }
            self.call(first, rows);
            first += rows;
        }
        println!("{} {}", wall.elapsed().as_nanos(), cpu_ns() - cpu);
    }

    fn rest(&mut self, times: usize, pause: Duration) {
        let (mut wall_ns, mut cpu) = (0, 0);
        for index in 0..times {
            std::thread::sleep(pause);
            let (started, before) = (Instant::now(), cpu_ns());
            self.call(index % self.row_count(), 1);
            cpu += cpu_ns() - before;
            wall_ns += started.elapsed().as_nanos();
        }
        println!("{wall_ns} {cpu}");
    }
}

/// What all threads of this process have taken.
fn cpu_ns() -> i64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec * 1_000_000_000 + spent.tv_nsec
}
