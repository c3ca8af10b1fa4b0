//! Wakes from other threads, a hundred million unless told otherwise, on conch's executor: a wake
//! that is lost leaves its task waiting for good, which is noticed.
//!
//! Tasks ask one of two threads to be woken, over and over. The threads answer at once, or pause
//! for so long that the executor goes to sleep, so that wakes meet it awake, asleep and in between.
//! Now and then a task waits for a timer, and the root future is woken as well.
#![forbid(unsafe_code)]

use std::future::poll_fn;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};

use conch_bench::arguments::Arguments;
use conch_executor::{LocalExecutor, Options, Timer, spawn};
use futures_util::task::AtomicWaker;

const USAGE: &str = "executor-soak [--wakes=100000000] [--tasks=64] [--seed=1]";
const THREAD_COUNT: usize = 2;
/// No progress for so long is a lost wake.
const PATIENCE: Duration = Duration::from_secs(20);

/// One that waits to be woken.
#[derive(Default)]
struct Sleeper {
    is_woken: AtomicBool,
    waker: AtomicWaker,
}

impl Sleeper {
    fn wake(&self) {
        // Release: the sleeper sees what was done before.
        self.is_woken.store(true, Ordering::Release);
        self.waker.wake();
    }

    async fn sleep(&self) {
        poll_fn(|context| {
            self.waker.register(context.waker());
            match self.is_woken.swap(false, Ordering::Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

struct SoakSettings {
    wakes: u64,
    tasks: u64,
    seed: u64,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_process(USAGE);
    let settings = SoakSettings {
        wakes: arguments.take("wakes", 100_000_000),
        tasks: arguments.take("tasks", 64),
        seed: arguments.take("seed", 1),
    };
    arguments.finish();
    let wakes = settings.wakes;
    let done = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let running = std::thread::spawn({
        let done = Arc::clone(&done);
        move || run(&settings, &done)
    });
    let (mut last, mut since) = (0, Instant::now());
    while !running.is_finished() {
        std::thread::sleep(Duration::from_millis(200));
        let now = done.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            eprintln!("FAIL: nobody was woken for {PATIENCE:?} after {now} wakes");
            return ExitCode::FAILURE;
        }
    }
    let Ok(sleeps) = running.join() else {
        return ExitCode::FAILURE;
    };
    let seconds = begun.elapsed().as_secs_f64();
    println!("PASS: {wakes} wakes in {seconds:.0} s, none lost; the thread slept {sleeps} times");
    ExitCode::SUCCESS
}

/// Runs tasks until they were woken so often. How often the thread slept.
fn run(settings: &SoakSettings, done: &Arc<AtomicU64>) -> u64 {
    let threads: Vec<_> = (0..THREAD_COUNT as u64)
        .map(|number| {
            let (sender, receiver) = mpsc::channel::<Arc<Sleeper>>();
            let seed = settings.seed * 7919 + number + 1;
            std::thread::spawn(move || wake_all(&receiver, seed));
            sender
        })
        .collect();
    let executor = LocalExecutor::new(&Options::default()).expect("io_uring is needed");
    let root = Arc::new(Sleeper::default());
    let open = Arc::new(AtomicU64::new(settings.tasks));
    let each = settings.wakes / settings.tasks;
    let ran = executor.run(async {
        for number in 0..settings.tasks {
            let (threads, done) = (threads.clone(), Arc::clone(done));
            let (open, root) = (Arc::clone(&open), Arc::clone(&root));
            let count = each + u64::from(number < settings.wakes % settings.tasks);
            let seed = settings.seed * 104_729 + number + 1;
            let task = async move {
                be_woken(count, seed, &threads, &done).await;
                open.fetch_sub(1, Ordering::Release);
                root.wake();
            };
            spawn(task).detach();
        }
        while open.load(Ordering::Acquire) > 0 {
            // Also by way of other threads, as the pump of a shard.
            let asked = threads[0].send(Arc::clone(&root));
            asked.expect("the thread lives as long as its sender");
            root.sleep().await;
            Timer::after(Duration::from_micros(50)).await;
        }
    });
    ran.expect("the kernel takes what the ring has");
    sleep_count()
}

async fn be_woken(count: u64, seed: u64, threads: &[mpsc::Sender<Arc<Sleeper>>], done: &AtomicU64) {
    let (sleeper, mut state) = (Arc::new(Sleeper::default()), seed);
    for _ in 0..count {
        let choice = random(&mut state);
        if choice.is_multiple_of(1000) {
            Timer::after(Duration::from_micros(choice / 1000 % 100)).await;
        }
        let thread = &threads[(choice >> 32) as usize % threads.len()];
        let asked = thread.send(Arc::clone(&sleeper));
        asked.expect("the thread lives as long as its sender");
        sleeper.sleep().await;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Wakes whoever asks. Mostly at once; sometimes after a pause in which the executor runs dry.
fn wake_all(asked: &mpsc::Receiver<Arc<Sleeper>>, seed: u64) {
    let mut state = seed;
    for sleeper in asked {
        let choice = random(&mut state);
        if choice.is_multiple_of(200) {
            let pause = Duration::from_nanos(choice / 200 % 60_000);
            let begun = Instant::now();
            while begun.elapsed() < pause {
                std::hint::spin_loop();
            }
        }
        sleeper.wake();
    }
}

/// How often the calling thread gave up its CPU to wait.
fn sleep_count() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}
