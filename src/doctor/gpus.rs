//! GPUs: whether there are any, whether their driver serves, and which CPUs are next to them.

use conch_cuda::{DeviceProperties, DriverAbsent};
use conch_net::affinity;

use crate::finding::{Finding, FindingState};
use crate::host_facts::{GpuDriver, HostFacts};
use crate::system::bytes;

pub(crate) fn examine(host: &HostFacts) -> Vec<Finding> {
    let present = addresses(host);
    match &host.gpus {
        Ok(driver) => {
            let mut findings = vec![version(host, driver, &present)];
            let devices = driver.devices.as_deref().unwrap_or_default();
            findings.extend(devices.iter().map(|device| place(host, device)));
            findings
        }
        Err(absent) => vec![without_driver(absent, &present)],
    }
}

/// Vendor and classes as PCI numbers them: NVIDIA's controllers of displays and of computing.
const VENDOR: &str = "0x10de";
const CLASSES: [&str; 2] = ["0x0300", "0x0302"];

/// The PCI addresses of GPUs that the machine has, whether or not a driver serves them.
fn addresses(host: &HostFacts) -> Vec<String> {
    const DEVICES: &str = "sys/bus/pci/devices";
    let files = host.files();
    let is_gpu = |address: &String| {
        let text = |name: &str| files.text(&format!("{DEVICES}/{address}/{name}"));
        let class = text("class").unwrap_or_default();
        text("vendor").as_deref() == Some(VENDOR)
            && CLASSES.iter().any(|prefix| class.starts_with(prefix))
    };
    let mut addresses = files.names(DEVICES);
    addresses.retain(is_gpu);
    addresses
}

fn version(host: &HostFacts, driver: &GpuDriver, present: &[String]) -> Finding {
    let (major, minor) = driver.version;
    let mut seen = match module_version(host) {
        Some(version) => format!("{version}, CUDA {major}.{minor}"),
        None => format!("CUDA {major}.{minor}"),
    };
    match &driver.devices {
        Err(reason) => Finding::advise(
            FindingState::Warning,
            "GPU driver",
            seen,
            format!("it does not tell its devices: {reason}. Models on GPUs cannot be served."),
        ),
        Ok(devices) if devices.len() < present.len() => {
            seen.push_str(&format!(
                ", shows {} of {} GPUs",
                devices.len(),
                present.len()
            ));
            Finding::advise(
                FindingState::Note,
                "GPU driver",
                seen,
                "the others are hidden by CUDA_VISIBLE_DEVICES, or by the container's --gpus.",
            )
        }
        Ok(_) => Finding::ok("GPU driver", seen),
    }
}

/// Of `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ...`.
fn module_version(host: &HostFacts) -> Option<String> {
    let text = host.files().text("proc/driver/nvidia/version")?;
    let line = text.lines().next()?;
    let is_version = |word: &&str| {
        word.contains('.')
            && word
                .chars()
                .all(|character| character.is_ascii_digit() || character == '.')
    };
    line.split_whitespace().find(is_version).map(String::from)
}

fn without_driver(absent: &DriverAbsent, present: &[String]) -> Finding {
    if present.is_empty() {
        return Finding::ok(
            "GPU driver",
            format!("no GPU of NVIDIA's is there ({absent})"),
        );
    }
    let advice = match absent {
        DriverAbsent::NoLibrary => {
            "Install NVIDIA's driver; in a container give --gpus=all, with the NVIDIA Container \
             Toolkit on the host."
        }
        DriverAbsent::TooOld(_) => "Install a driver of CUDA 12 or later.",
        DriverAbsent::Refused(_) => {
            "See nvidia-smi, and whether this user may open /dev/nvidia0 and /dev/nvidiactl."
        }
    };
    Finding::advise(
        FindingState::Warning,
        "GPU driver",
        format!("{absent}, and there are GPUs at {}", present.join(", ")),
        format!("models on GPUs cannot be served. {advice}"),
    )
}

/// Where a GPU is, and whether the CPUs next to it may be used.
fn place(host: &HostFacts, device: &DeviceProperties) -> Finding {
    let near = host.machine().pci_locality(&device.pci_address).cpus;
    let mut seen = format!(
        "{}: {} of {} at {}",
        device.ordinal,
        device.name,
        bytes(device.memory_bytes),
        device.pci_address
    );
    if near.is_empty() {
        return Finding::ok("GPU", seen);
    }
    seen.push_str(&format!(", next to CPUs {}", affinity::list_text(&near)));
    let usable = &host.topology.cpus;
    match near.iter().any(|cpu| usable.contains(cpu)) {
        true => Finding::ok("GPU", seen),
        false => Finding::advise(
            FindingState::Warning,
            "GPU",
            seen,
            "none of these CPUs may be used by this process, so launches and copies cross to \
             another node. Allow some of them: CPUAffinity= of systemd, taskset, --cpuset-cpus of \
             a container.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RecordedHost, about};
    use conch_cuda::ComputeCapability;

    const GPU: &str = "sys/bus/pci/devices/0000:3b:00.0/vendor: 0x10de\n\
                       sys/bus/pci/devices/0000:3b:00.0/class: 0x030200\n\
                       sys/bus/pci/devices/0000:3b:00.0/local_cpulist: 4-7\n\
                       sys/bus/pci/devices/0000:3b:00.1/vendor: 0x10de\n\
                       sys/bus/pci/devices/0000:3b:00.1/class: 0x040300\n\
                       proc/driver/nvidia/version: NVRM version: NVIDIA UNIX Open Kernel Module \
                       for x86_64  550.54.15  Release Build\n";

    fn device() -> DeviceProperties {
        DeviceProperties {
            ordinal: 0,
            name: String::from("NVIDIA H200"),
            uuid: String::from("GPU-0"),
            capability: ComputeCapability { major: 9, minor: 0 },
            memory_bytes: 139 << 30,
            pci_address: String::from("0000:3b:00.0"),
            maps_memory: true,
        }
    }

    #[test]
    fn a_gpu_without_its_driver_is_told() {
        let recorded = RecordedHost::new(GPU, 8);
        let mut host = recorded.host();
        for (absent, word) in [
            (DriverAbsent::NoLibrary, "--gpus=all"),
            (DriverAbsent::TooOld("cuX"), "CUDA 12"),
        ] {
            host.gpus = Err(absent);
            let findings = examine(&host);
            let finding = about(&findings, "GPU driver");
            assert_eq!(finding.state, FindingState::Warning);
            assert!(
                finding.seen.ends_with("there are GPUs at 0000:3b:00.0"),
                "{finding:?}"
            );
            assert!(
                finding.advice.as_ref().unwrap().contains(word),
                "{finding:?}"
            );
        }
        let findings = examine(&RecordedHost::new("", 8).host());
        assert_eq!(about(&findings, "GPU driver").state, FindingState::Ok);
    }

    #[test]
    fn a_gpu_wants_a_cpu_next_to_it() {
        let recorded = RecordedHost::new(GPU, 8);
        let mut host = recorded.host();
        let driver = |devices| {
            Ok(GpuDriver {
                version: (12, 8),
                devices,
            })
        };
        host.gpus = driver(Ok(vec![device()]));
        let findings = examine(&host);
        assert_eq!(about(&findings, "GPU driver").seen, "550.54.15, CUDA 12.8");
        let expected = "0: NVIDIA H200 of 139 GiB at 0000:3b:00.0, next to CPUs 4-7";
        assert_eq!(about(&findings, "GPU").seen, expected);
        assert_eq!(about(&findings, "GPU").state, FindingState::Ok);
        host.topology.cpus = vec![0, 1];
        assert_eq!(about(&examine(&host), "GPU").state, FindingState::Warning);
        host.gpus = driver(Ok(Vec::new()));
        let findings = examine(&host);
        assert_eq!(about(&findings, "GPU driver").state, FindingState::Note);
        assert!(
            about(&findings, "GPU driver")
                .seen
                .ends_with("shows 0 of 1 GPUs")
        );
        host.gpus = driver(Err(String::from("lost")));
        assert_eq!(
            about(&examine(&host), "GPU driver").state,
            FindingState::Warning
        );
    }
}
