//! Launches: what they refuse at once, and what a stream then does.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::execute::{Shape, run};
use super::memory::GlobalMemory;
use super::program::Kernel;
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, LAUNCH_FAILED};
use crate::copy::pause;
use crate::driver::Driver;
use crate::faults;
use crate::tally;

/// What a device of compute capability 5.0 and later has at most.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const BLOCK_THREADS_MAX: u64 = 1024;

pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub parameters: Vec<u8>,
}

/// Enqueues a kernel of a module of the device `owner` on a stream of the current context.
pub fn launch(
    driver: &'static Driver,
    owner: usize,
    kernel: Arc<Kernel>,
    launch: Launch,
    stream: usize,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    if owner != stream.device {
        return Err(INVALID_HANDLE);
    }
    let Launch {
        grid,
        block,
        parameters,
    } = launch;
    let fits = |sizes: [u32; 3], most: [u32; 3]| {
        let mut sizes = sizes.iter().zip(most);
        sizes.all(|(size, most)| (1..=most).contains(size))
    };
    let threads = block.iter().map(|size| u64::from(*size)).product::<u64>();
    let most = kernel.block_max.map_or(BLOCK_THREADS_MAX, u64::from);
    if !fits(grid, GRID_MAX) || !fits(block, BLOCK_MAX) || threads > most.min(BLOCK_THREADS_MAX) {
        return Err(INVALID_VALUE);
    }
    let blocks = grid.iter().map(|size| u64::from(*size));
    let count = blocks.fold(threads, u64::saturating_mul);
    let delay: Arc<AtomicU64> = Arc::clone(&driver.kernel_us);
    stream.enqueue(Box::new(move || {
        pause(&delay);
        faults::pass("kernel").map_or(Ok(()), Err)?;
        let health = &driver.devices.get(owner).ok_or(INVALID_HANDLE)?.health;
        let breaks = health.breaks();
        let is_over = || {
            driver.follow_orders();
            match health.breaks() == breaks {
                true => Ok(()),
                false => Err(LAUNCH_FAILED),
            }
        };
        hang(&is_over)?;
        let mut memory = GlobalMemory::new(driver, owner);
        let shape = Shape { grid, block };
        let ended = run(&kernel, &parameters, &shape, &mut memory, &is_over);
        // What ended because the device broke breaks it no second time.
        if health.breaks() == breaks {
            ended?;
        }
        tally::add("kernel", &kernel.name, count as usize);
        Ok(())
    }));
    Ok(())
}

/// A kernel that never ends, if one is ordered: until the order is taken back, or the device
/// breaks.
fn hang(is_over: &dyn Fn() -> Result<(), Code>) -> Result<(), Code> {
    let Some(order) = faults::hold("hang") else {
        return Ok(());
    };
    while faults::is_standing(order) {
        std::thread::sleep(Duration::from_millis(1));
        if is_over().is_err() {
            break;
        }
    }
    Ok(())
}
