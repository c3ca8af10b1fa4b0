//! The executor beside plain models of what it promises.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use conch_net::ring::Setup;

use super::*;

/// With every setup that this kernel knows, spinning and not.
fn each(test: impl Fn(&LocalExecutor)) {
    for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
        for spin in [Duration::ZERO, Duration::from_micros(20)] {
            let options = Options {
                ring_entries: 4,
                spin,
                setup: Some(setup),
            };
            match LocalExecutor::new(&options) {
                Ok(executor) => test(&executor),
                Err(error) => println!("{setup:?} is not tested: {error}"),
            }
        }
    }
}

fn receive(socket: RawFd, target: &mut [u8]) -> io::Result<usize> {
    let mut target = target;
    conch_net::receive(socket, &mut target)
}

async fn read(socket: &mut Socket, target: &mut [u8]) -> io::Result<usize> {
    poll_fn(|context| {
        socket.poll_receive(context, target.len(), |descriptor| {
            receive(descriptor, target)
        })
    })
    .await
}

async fn write(socket: &mut Socket, source: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < source.len() {
        sent += poll_fn(|context| {
            socket.poll_send(context, |descriptor| {
                conch_net::send_vectored(descriptor, &[io::IoSlice::new(&source[sent..])])
            })
        })
        .await?;
    }
    Ok(())
}

fn pair() -> (UnixStream, Socket) {
    let (client, server) = UnixStream::pair().unwrap();
    (client, Socket::new(OwnedFd::from(server)))
}

#[test]
fn a_task_runs_after_the_call_that_spawned_it() {
    each(|executor| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let noted = executor.run(async {
            let task = spawn({
                let order = Rc::clone(&order);
                async move {
                    order.borrow_mut().push("task");
                    yield_now().await;
                    order.borrow_mut().push("task again");
                }
            });
            order.borrow_mut().push("root");
            yield_now().await;
            order.borrow_mut().push("root again");
            while order.borrow().len() < 4 {
                yield_now().await;
            }
            task.cancel().await;
            order.take()
        });
        let noted = noted.unwrap();
        assert_eq!(noted, ["root", "task", "root again", "task again"]);
    });
}

#[test]
fn sockets_carry_more_than_their_buffers_hold() {
    each(|executor| {
        let (mut client, mut server) = pair();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|byte| byte as u8).collect();
        let peer = std::thread::spawn({
            let bytes = bytes.clone();
            move || {
                client.write_all(&bytes).unwrap();
                let mut back = vec![0; bytes.len()];
                client.read_exact(&mut back).unwrap();
                assert!(back == bytes);
            }
        });
        executor
            .run(async {
                let mut seen = vec![0; bytes.len()];
                let mut have = 0;
                while have < seen.len() {
                    have += read(&mut server, &mut seen[have..]).await.unwrap();
                }
                assert!(seen == bytes);
                write(&mut server, &seen).await.unwrap();
                assert_eq!(read(&mut server, &mut seen).await.unwrap(), 0, "the end");
            })
            .unwrap();
        peer.join().unwrap();
    });
}

#[test]
fn a_dropped_socket_ends_its_watch_and_its_connection() {
    each(|executor| {
        for _ in 0..50 {
            let (mut client, mut server) = pair();
            executor
                .run(async {
                    let mut target = [0; 8];
                    {
                        let mut reading = std::pin::pin!(read(&mut server, &mut target));
                        poll_fn(|context| {
                            assert!(reading.as_mut().poll(context).is_pending());
                            Poll::Ready(())
                        })
                        .await;
                    }
                    drop(server);
                    yield_now().await;
                    Timer::after(Duration::from_micros(10)).await;
                })
                .unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed");
        }
    });
}

#[test]
fn timers_fire_in_order_and_never_early() {
    each(|executor| {
        let order = Rc::new(RefCell::new(Vec::new()));
        executor
            .run(async {
                let tasks: Vec<_> = [3000, 50, 700, 0, 20]
                    .into_iter()
                    .map(|delay_us| {
                        let order = Rc::clone(&order);
                        spawn(async move {
                            let begin = Instant::now();
                            Timer::after(Duration::from_micros(delay_us)).await;
                            assert!(begin.elapsed() >= Duration::from_micros(delay_us));
                            order.borrow_mut().push(delay_us);
                        })
                    })
                    .collect();
                while order.borrow().len() < tasks.len() {
                    Timer::after(Duration::from_micros(100)).await;
                }
            })
            .unwrap();
        let order = order.take();
        assert_eq!(order[0], 0);
        assert_eq!(order.iter().sum::<u64>(), 3770);
        assert_eq!(order[4], 3000, "by far the last");
    });
}

#[test]
fn a_cancelled_task_drops_what_it_holds_before_the_call_returns() {
    struct Noting(Rc<Cell<u32>>);
    impl Drop for Noting {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    each(|executor| {
        let dropped = Rc::new(Cell::new(0));
        executor
            .run(async {
                let held = Noting(Rc::clone(&dropped));
                let task = spawn(async move {
                    let _held = held;
                    let (_client, mut server) = pair();
                    let mut timer = Timer::after(Duration::from_secs(3600));
                    poll_fn(|context| Pin::new(&mut timer).poll(context)).await;
                    drop(read(&mut server, &mut [0]).await);
                });
                yield_now().await;
                assert_eq!(dropped.get(), 0);
                task.cancel().await;
                assert_eq!(dropped.get(), 1);
            })
            .unwrap();
    });
}

#[test]
fn other_threads_wake_tasks_and_the_root() {
    each(|executor| {
        let (requests, served) = mpsc::channel::<(Waker, mpsc::Sender<()>)>();
        let waking = std::thread::spawn(move || {
            for (waker, told) in served {
                told.send(()).unwrap();
                waker.wake();
            }
        });
        let woken = |requests: mpsc::Sender<_>| async move {
            let (told, telling) = mpsc::channel();
            let mut is_asked = false;
            poll_fn(|context| {
                if !std::mem::replace(&mut is_asked, true) {
                    let request = (context.waker().clone(), told.clone());
                    requests.send(request).unwrap();
                    return Poll::Pending;
                }
                match telling.try_recv() {
                    Ok(()) => Poll::Ready(()),
                    Err(_) => Poll::Pending,
                }
            })
            .await;
        };
        let count = Rc::new(Cell::new(0));
        executor
            .run(async {
                let tasks: Vec<_> = (0..3)
                    .map(|_| {
                        let (count, requests) = (Rc::clone(&count), requests.clone());
                        spawn(async move {
                            for _ in 0..200 {
                                woken(requests.clone()).await;
                                count.set(count.get() + 1);
                            }
                        })
                    })
                    .collect();
                for _ in 0..200 {
                    woken(requests.clone()).await;
                }
                while count.get() < 600 {
                    yield_now().await;
                }
                drop(tasks);
            })
            .unwrap();
        drop(requests);
        waking.join().unwrap();
    });
}

#[test]
fn a_task_that_is_always_ready_starves_nobody() {
    each(|executor| {
        let (mut client, mut server) = pair();
        executor
            .run(async {
                let busy = spawn(async {
                    loop {
                        yield_now().await;
                    }
                });
                for _ in 0..20 {
                    client.write_all(b"x").unwrap();
                    assert_eq!(read(&mut server, &mut [0; 8]).await.unwrap(), 1);
                    Timer::after(Duration::from_micros(30)).await;
                }
                busy.cancel().await;
            })
            .unwrap();
    });
}

/// Random tasks with sockets, timers, wakes of each other and of another thread, and
/// cancellations. Each counts what it did; the plan says what it must have done.
#[test]
fn random_tasks_do_what_they_are_to() {
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }
    async fn be_woken(wakes: &mpsc::Sender<Waker>) {
        let mut is_sent = false;
        poll_fn(|context| match std::mem::replace(&mut is_sent, true) {
            true => Poll::Ready(()),
            false => {
                wakes.send(context.waker().clone()).unwrap();
                Poll::Pending
            }
        })
        .await;
    }
    async fn steps(mut state: u64, count: u64, done: Rc<Cell<u64>>, wakes: mpsc::Sender<Waker>) {
        let (mut client, mut server) = pair();
        for _ in 0..count {
            match random(&mut state) % 5 {
                0 => yield_now().await,
                1 => Timer::after(Duration::from_micros(random(&mut state) % 300)).await,
                2 => {
                    client.write_all(b"abc").unwrap();
                    assert_eq!(read(&mut server, &mut [0; 3]).await.unwrap(), 3);
                }
                3 => {
                    // Given up half-way.
                    let mut target = [0; 3];
                    let mut reading = std::pin::pin!(read(&mut server, &mut target));
                    poll_fn(|context| {
                        assert!(reading.as_mut().poll(context).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                }
                _ => be_woken(&wakes).await,
            }
            done.set(done.get() + 1);
        }
    }
    each(|executor| {
        let (wakes, waiting) = mpsc::channel::<Waker>();
        let waking = std::thread::spawn(move || waiting.into_iter().for_each(Waker::wake));
        let mut state = 0x5EED_0001_u64;
        executor
            .run(async {
                let mut tasks = Vec::new();
                for _ in 0..200 {
                    let (count, done) = (random(&mut state) % 40, Rc::new(Cell::new(0)));
                    let task = spawn(steps(
                        random(&mut state),
                        count,
                        Rc::clone(&done),
                        wakes.clone(),
                    ));
                    tasks.push((task, count, done));
                    if random(&mut state).is_multiple_of(3) {
                        let place = random(&mut state) as usize % tasks.len();
                        let (task, count, done) = tasks.swap_remove(place);
                        task.cancel().await;
                        assert!(done.get() <= count);
                        assert_eq!(Rc::strong_count(&done), 1, "its future is gone");
                    }
                }
                for (task, count, done) in tasks {
                    while done.get() < count {
                        yield_now().await;
                    }
                    task.detach();
                }
            })
            .unwrap();
        drop(wakes);
        waking.join().unwrap();
    });
}

#[test]
fn a_descriptor_that_nobody_has_any_more_leaves_no_watch() {
    each(|executor| {
        let (client, server) = pair();
        let number = server.as_raw_fd();
        drop((client, server));
        assert!(number > 2);
        executor.run(async { yield_now().await }).unwrap();
    });
}

#[test]
fn a_long_turn_is_told_with_what_it_was_at() {
    let observed = |root: Pin<Box<dyn Future<Output = ()>>>| {
        let mut executor = LocalExecutor::new(&Options::default()).unwrap();
        let seen = Rc::<RefCell<Vec<LongTurn>>>::default();
        let told = Rc::clone(&seen);
        executor.observe_long_turns(Box::new(move |turn| told.borrow_mut().push(*turn)));
        executor.run(root).unwrap();
        drop(executor);
        let seen = Rc::into_inner(seen).expect("the observer is gone");
        seen.into_inner()
    };
    let busy = |duration: Duration| {
        let begin = Instant::now();
        while begin.elapsed() < duration {}
    };
    let mut turns = observed(Box::pin(async move {
        for stage in [1, 3] {
            spawn(async move {
                enter_stage(stage);
                if stage == 3 {
                    note_spent(5, 42);
                    busy(Duration::from_millis(3));
                }
            })
            .detach();
            // Tasks that stand between them, so that the clock is looked at.
            for _ in 0..8 {
                spawn(async {}).detach();
            }
        }
        Timer::after(Duration::from_millis(5)).await;
    }));
    // Others may have had the CPU for so long in another turn.
    turns.retain(|turn| turn.spent_ns[5] == 42);
    let [turn] = turns[..] else {
        panic!("one turn was so: {turns:?}");
    };
    assert!(turn.duration_ns >= 3_000_000, "{turn:?}");
    assert_eq!(turn.longest_part.only(), Some(3), "{turn:?}");
    // Turns in which nothing is done for long are not told, whatever the thread waits for.
    let turns = observed(Box::pin(Timer::after(Duration::from_millis(20))));
    let slept =
        |turn: &LongTurn| turn.duration_ns >= 20_000_000 && turn.usage.preemption_count == 0;
    assert!(!turns.iter().any(slept), "{turns:?}");
}
