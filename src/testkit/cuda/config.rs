//! The devices that the environment asks for.

use crate::code::{Code, NO_DEVICE};

pub const MIB: u64 = 1 << 20;

/// One device as the machine has it, before `CUDA_VISIBLE_DEVICES` hides some.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// Place among all devices, which is the same in every process.
    pub index: usize,
    pub uuid: [u8; 16],
    pub pci: Pci,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pci {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub devices: Vec<Hardware>,
    pub bytes: u64,
    pub capability: (i32, i32),
    pub can_access_peer: bool,
    pub copy_us: u64,
    pub kernel_us: u64,
    pub version: i32,
}

impl Config {
    pub fn from_environment() -> Config {
        Config::parse(&std::env::var("CONCH_CUDA_DOUBLE").unwrap_or_default())
    }

    /// Reads `key=value;...`. A key that is absent, unknown or malformed leaves the default.
    pub fn parse(text: &str) -> Config {
        let value = |key: &str| {
            let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
            let mut values = pairs.filter(|pair| pair.0.trim() == key);
            values.next().map(|pair| pair.1.trim())
        };
        let number = |key: &str, default: u64| {
            value(key)
                .and_then(|text| text.parse().ok())
                .unwrap_or(default)
        };
        let addresses: Vec<Pci> = value("pci")
            .unwrap_or_default()
            .split(',')
            .filter_map(parse_pci)
            .collect();
        let count = number("devices", 1).min(64) as usize;
        Config {
            devices: (0..count)
                .map(|index| hardware(index, &addresses))
                .collect(),
            bytes: number("bytes", 1024 * MIB),
            capability: value("capability")
                .and_then(parse_capability)
                .unwrap_or((9, 0)),
            can_access_peer: number("peer", 1) != 0,
            copy_us: number("copy_us", 0),
            kernel_us: number("kernel_us", 0),
            version: number("driver", 12080).min(i32::MAX as u64) as i32,
        }
    }

    /// The devices that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub fn visible(&self, list: Option<&str>) -> Result<Vec<Hardware>, Code> {
        let found = match list {
            None => self.devices.clone(),
            Some(list) => select(&self.devices, list),
        };
        if found.is_empty() {
            Err(NO_DEVICE)
        } else {
            Ok(found)
        }
    }
}

fn hardware(index: usize, addresses: &[Pci]) -> Hardware {
    let default = Pci {
        domain: 0,
        bus: 1 + index as u32,
        device: 0,
    };
    let mut uuid = [0; 16];
    for (place, byte) in uuid.iter_mut().enumerate() {
        *byte = (0xa1 + 37 * index + 101 * place) as u8;
    }
    Hardware {
        index,
        uuid,
        pci: addresses.get(index).copied().unwrap_or(default),
    }
}

fn parse_capability(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Reads `domain:bus:device.function` or `bus:device.function`.
fn parse_pci(text: &str) -> Option<Pci> {
    let (address, _function) = text.trim().split_once('.')?;
    let mut parts = address
        .rsplit(':')
        .map(|part| u32::from_str_radix(part, 16));
    let device = parts.next()?.ok()?;
    let bus = parts.next()?.ok()?;
    let domain = parts.next().unwrap_or(Ok(0)).ok()?;
    Some(Pci {
        domain,
        bus,
        device,
    })
}

/// The list ends at its first invalid entry. A device named twice leaves none, as with the driver.
fn select(devices: &[Hardware], list: &str) -> Vec<Hardware> {
    let mut found: Vec<Hardware> = Vec::new();
    for entry in list.split(',') {
        let Some(device) = find(devices, entry.trim()) else {
            break;
        };
        if found.contains(device) {
            return Vec::new();
        }
        found.push(device.clone());
    }
    found
}

fn find<'a>(devices: &'a [Hardware], entry: &str) -> Option<&'a Hardware> {
    if let Ok(ordinal) = entry.parse::<usize>() {
        return devices.get(ordinal);
    }
    if !entry.starts_with("GPU-") {
        return None;
    }
    let mut named = devices
        .iter()
        .filter(|device| uuid_text(&device.uuid).starts_with(entry));
    let first = named.next();
    if named.next().is_some() { None } else { first }
}

/// The form in which `nvidia-smi -L` prints a UUID.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (place, byte) in uuid.iter().enumerate() {
        if matches!(place, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
