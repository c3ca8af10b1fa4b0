//! The state of the driver in this process: devices, primary contexts, streams and events.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::code::{
    CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, NOT_INITIALIZED,
    OUT_OF_MEMORY, SUCCESS,
};
use crate::config::{Config, Hardware};
use crate::faults;
use crate::graph::Graph;
use crate::health::Health;
use crate::host::Pinned;
use crate::modules::Modules;
use crate::space::{Origin, Space};
use crate::stream::{Mark, Stream};
use crate::window::Window;

/// Handles are numbers, never addresses: what is destroyed or made up is found out.
const CONTEXT_BASE: usize = 0x0c0d_0000;
const HANDLE_BASE: usize = 0x0c0e_0000;
const HANDLE_STEP: u64 = 16;

static DRIVER: OnceLock<Driver> = OnceLock::new();

thread_local! {
    /// The context of this thread, as its device's ordinal.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Primary {
    retained: u32,
    default_stream: Option<Arc<Stream>>,
    peers: BTreeSet<usize>,
}

pub struct Device {
    pub ordinal: usize,
    pub hardware: Hardware,
    pub health: Arc<Health>,
    primary: Mutex<Primary>,
}

pub struct Event {
    pub device: usize,
    is_timed: bool,
    mark: Mutex<Option<Arc<Mark>>>,
}

impl Event {
    pub fn new(device: usize, is_timed: bool) -> Event {
        Event {
            device,
            is_timed,
            mark: Mutex::new(None),
        }
    }

    /// The last recording, if there was one.
    pub fn mark(&self) -> Option<Arc<Mark>> {
        lock(&self.mark).clone()
    }

    /// When its last recording was reached. One that has no times, or was never recorded, is no
    /// event to ask.
    pub fn reached_at(&self) -> Result<Instant, Code> {
        let mark = self.mark().filter(|_| self.is_timed);
        mark.ok_or(INVALID_HANDLE)?.reached_at()
    }

    pub fn set(&self, mark: Arc<Mark>) {
        *lock(&self.mark) = Some(mark);
    }
}

pub struct Driver {
    /// The process that called `cuInit`: a fork of it has no driver.
    process: u32,
    pub config: Config,
    pub devices: Vec<Device>,
    pub space: Mutex<Space>,
    pub pinned: Mutex<Pinned>,
    pub streams: Mutex<BTreeMap<usize, Arc<Stream>>>,
    pub events: Mutex<BTreeMap<usize, Arc<Event>>>,
    pub modules: Mutex<Modules>,
    /// Graphs, and what is instantiated of them.
    pub graphs: Mutex<BTreeMap<usize, Arc<Graph>>>,
    handles: AtomicU64,
    pub copy_us: AtomicU64,
    pub kernel_us: AtomicU64,
}

impl Driver {
    pub fn start() -> Result<(), Code> {
        if DRIVER.get().is_some() {
            return Driver::get().map(drop);
        }
        let config = Config::from_environment();
        let list = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let visible = config.visible(list.as_deref())?;
        let window = Window::reserve().ok_or(OUT_OF_MEMORY)?;
        let devices = visible
            .into_iter()
            .enumerate()
            .map(|(ordinal, hardware)| Device {
                ordinal,
                hardware,
                health: Arc::default(),
                primary: Mutex::default(),
            });
        let devices: Vec<Device> = devices.collect();
        let driver = Driver {
            process: std::process::id(),
            space: Mutex::new(Space::new(window, devices.len(), config.bytes)),
            devices,
            pinned: Mutex::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            modules: Mutex::default(),
            graphs: Mutex::default(),
            handles: AtomicU64::new(0),
            copy_us: AtomicU64::new(config.copy_us),
            kernel_us: AtomicU64::new(config.kernel_us),
            config,
        };
        // Another thread may have been quicker; then its driver is the one.
        let _ = DRIVER.set(driver);
        Ok(())
    }

    pub fn get() -> Result<&'static Driver, Code> {
        let driver = DRIVER
            .get()
            .filter(|driver| driver.process == std::process::id());
        driver.ok_or(NOT_INITIALIZED)
    }

    /// The device of an ordinal, unless it is lost.
    pub fn device(&self, ordinal: i32) -> Result<&Device, Code> {
        let index = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        let device = self.devices.get(index).ok_or(INVALID_DEVICE)?;
        device.health.check_present()?;
        Ok(device)
    }

    /// The device whose context is current, if nothing is wrong with either.
    pub fn current(&self) -> Result<&Device, Code> {
        let device = self.bound().ok_or(INVALID_CONTEXT)?;
        device.health.check_present()?;
        if lock(&device.primary).retained == 0 {
            return Err(CONTEXT_IS_DESTROYED);
        }
        device.health.check()?;
        Ok(device)
    }

    /// The device whose context is bound to this thread, whatever is wrong with it.
    pub fn bound(&self) -> Option<&Device> {
        self.devices.get(CURRENT.get()?)
    }

    pub fn bind(&self, context: usize) -> Result<(), Code> {
        if context == 0 {
            CURRENT.set(None);
            return Ok(());
        }
        let device = self.context(context)?;
        device.health.check()?;
        CURRENT.set(Some(device.ordinal));
        Ok(())
    }

    /// The device of a context that exists.
    pub fn context(&self, context: usize) -> Result<&Device, Code> {
        let device = self
            .devices
            .iter()
            .find(|device| device.context() == context);
        let device = device.ok_or(INVALID_CONTEXT)?;
        device.health.check_present()?;
        match lock(&device.primary).retained {
            0 => Err(INVALID_CONTEXT),
            _ => Ok(device),
        }
    }

    pub fn next_handle(&self) -> usize {
        HANDLE_BASE + (self.handles.fetch_add(1, Ordering::Relaxed) * HANDLE_STEP) as usize
    }

    /// The stream of a handle, which must be of the current context.
    pub fn stream(&self, handle: usize) -> Result<Arc<Stream>, Code> {
        let device = self.current()?;
        // 0 is the default stream, 1 and 2 are its explicit names.
        if handle <= 2 {
            return device.default_stream();
        }
        let stream = lock(&self.streams)
            .get(&handle)
            .cloned()
            .ok_or(INVALID_HANDLE)?;
        if stream.device == device.ordinal {
            Ok(stream)
        } else {
            Err(INVALID_HANDLE)
        }
    }

    /// The event of a handle, of whatever context.
    pub fn event(&self, handle: usize) -> Result<Arc<Event>, Code> {
        let event = lock(&self.events)
            .get(&handle)
            .cloned()
            .ok_or(INVALID_HANDLE)?;
        if let Some(device) = self.devices.get(event.device) {
            device.health.check()?;
        }
        Ok(event)
    }

    pub fn release(&self, device: &Device) -> Result<(), Code> {
        let mut primary = lock(&device.primary);
        primary.retained = primary.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if primary.retained > 0 {
            return Ok(());
        }
        let default = std::mem::take(&mut *primary).default_stream;
        drop(primary);
        self.reset(device, default);
        Ok(())
    }

    /// Ends everything that the context of a device holds.
    fn reset(&self, device: &Device, default: Option<Arc<Stream>>) {
        let mut streams: Vec<Arc<Stream>> = default.into_iter().collect();
        lock(&self.streams).retain(|_, stream| {
            let is_other = stream.device != device.ordinal;
            if !is_other {
                streams.push(Arc::clone(stream));
            }
            is_other
        });
        for stream in streams {
            stream.drain();
            stream.close();
        }
        lock(&self.events).retain(|_, event| event.device != device.ordinal);
        lock(&self.modules).unload_all(device.ordinal);
        lock(&self.pinned)
            .ranges
            .retain(|_, range| range.device != device.ordinal);
        let mut space = lock(&self.space);
        let held = space.allocations.iter().filter(|(_, found)| {
            found.device == device.ordinal && !matches!(found.origin, Origin::Mapped(_))
        });
        let held: Vec<u64> = held.map(|(start, _)| *start).collect();
        for start in held {
            space.remove(start);
        }
        device.health.reset();
    }

    /// Carries out the orders of tests that concern whole devices.
    pub fn follow_orders(&self) {
        for (ordinal, code) in faults::take_device_orders() {
            match self.devices.get(ordinal) {
                Some(device) if code == SUCCESS => device.health.heal(),
                Some(device) => device.health.note(code),
                None => {}
            }
        }
    }

    /// How many of a kind exist now; `None` for a name that is no kind.
    pub fn live(&self, name: &str) -> Option<u64> {
        let count = match name {
            "live_pinned" => lock(&self.pinned).ranges.len(),
            "live_streams" => lock(&self.streams).len(),
            "live_graphs" => lock(&self.graphs).len(),
            "live_events" => lock(&self.events).len(),
            "live_modules" => lock(&self.modules).modules.len(),
            "live_reservations" => lock(&self.space).reservations.len(),
            "live_contexts" => {
                let is_active = |device: &&Device| lock(&device.primary).retained > 0;
                self.devices.iter().filter(is_active).count()
            }
            _ => {
                let space = lock(&self.space);
                let origins = space.allocations.values().map(|found| &found.origin);
                match name {
                    "live_allocations" => {
                        let allocated =
                            origins.filter(|origin| matches!(origin, Origin::Allocated));
                        allocated.count() + space.physicals.len()
                    }
                    "live_ipc" => origins
                        .filter(|origin| matches!(origin, Origin::Imported { .. }))
                        .count(),
                    "live_mappings" => origins
                        .filter(|origin| matches!(origin, Origin::Mapped(_)))
                        .count(),
                    _ => return None,
                }
            }
        };
        Some(count as u64)
    }
}

impl Device {
    /// The handle of the primary context, which stays the same when it is reset.
    pub fn context(&self) -> usize {
        CONTEXT_BASE + (self.ordinal + 1) * HANDLE_STEP as usize
    }

    pub fn retain(&self) -> Result<usize, Code> {
        self.health.check()?;
        lock(&self.primary).retained += 1;
        Ok(self.context())
    }

    /// False if the access was enabled before.
    pub fn enable_peer(&self, peer: usize) -> bool {
        lock(&self.primary).peers.insert(peer)
    }

    fn default_stream(&self) -> Result<Arc<Stream>, Code> {
        let mut primary = lock(&self.primary);
        if let Some(stream) = &primary.default_stream {
            return Ok(Arc::clone(stream));
        }
        let stream = Stream::start(self.ordinal, Arc::clone(&self.health))?;
        primary.default_stream = Some(Arc::clone(&stream));
        Ok(stream)
    }

    pub fn started_default_stream(&self) -> Option<Arc<Stream>> {
        lock(&self.primary).default_stream.clone()
    }
}
