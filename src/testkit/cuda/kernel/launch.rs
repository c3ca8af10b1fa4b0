//! Launches: what they refuse at once, and what a stream then does.

use std::time::Duration;

use super::execute::{Launch, run};
use super::memory::GlobalMemory;
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE};
use crate::copy::pause;
use crate::driver::Driver;
use crate::faults;
use crate::tally;

/// What a device of compute capability 5.0 and later has at most.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const BLOCK_THREADS_MAX: u64 = 1024;

/// Enqueues a kernel on a stream of the current context.
pub fn launch(driver: &'static Driver, launch: Launch, stream: usize) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    if launch.device != stream.device {
        return Err(INVALID_HANDLE);
    }
    let threads = thread_count(&launch).ok_or(INVALID_VALUE)?;
    if stream.capture.take(|| repeat(driver, launch.clone())) {
        return Ok(());
    }
    let device = driver.devices.get(launch.device).ok_or(INVALID_HANDLE)?;
    // Counted here: the device may break before the kernel begins.
    let breaks = device.health.breaks();
    stream.enqueue(Box::new(move || {
        pause(&driver.kernel_us);
        faults::pass("kernel").map_or(Ok(()), Err)?;
        let is_broken = || {
            driver.follow_orders();
            device.health.breaks() != breaks
        };
        hang(&is_broken);
        let mut memory = GlobalMemory::new(driver, device.ordinal);
        run(&launch, &mut memory, &is_broken)?;
        tally::add("kernel", &launch.kernel.name, threads as usize);
        Ok(())
    }));
    Ok(())
}

fn repeat(
    driver: &'static Driver,
    captured: Launch,
) -> impl Fn(usize) -> Result<(), Code> + Send + Sync {
    move |stream| launch(driver, captured.clone(), stream)
}

/// The threads of a launch; `None` if the device has not as many, or there are none.
fn thread_count(launch: &Launch) -> Option<u64> {
    let fits = |sizes: [u32; 3], most: [u32; 3]| {
        let mut sizes = sizes.iter().zip(most);
        sizes.all(|(size, most)| (1..=most).contains(size))
    };
    let product = |sizes: [u32; 3]| sizes.iter().map(|size| u64::from(*size)).product::<u64>();
    let in_block = product(launch.block);
    let most = launch.kernel.block_max.map_or(BLOCK_THREADS_MAX, u64::from);
    let is_valid = fits(launch.grid, GRID_MAX)
        && fits(launch.block, BLOCK_MAX)
        && in_block <= most.min(BLOCK_THREADS_MAX);
    is_valid.then(|| product(launch.grid).saturating_mul(in_block))
}

/// Holds a kernel for which a hang is ordered, until the order is taken back or the device breaks.
fn hang(is_broken: &dyn Fn() -> bool) {
    let Some(order) = faults::hold("hang") else {
        return;
    };
    while faults::is_standing(order) && !is_broken() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
