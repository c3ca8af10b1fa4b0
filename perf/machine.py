"""What a measurement or a test ran on, and how programs are bound to CPUs there."""

import ctypes
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time


def text_of(path):
    """A small file's text; empty where it cannot be read."""
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def cpus():
    """The CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))


def gpus():
    """The GPUs as nvidia-smi tells them, each with its driver; empty without it."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = ("name", "uuid", "driver_version", "memory.total", "pci.bus_id", "compute_cap")
    done = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader"],
                          capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return []
    return [dict(zip(asked, map(str.strip, line.split(",")))) for line in done.stdout.splitlines() if line.strip()]


def has_io_uring():
    """Whether the kernel lets this process make a ring (system call 425); the server's network threads need it."""
    parameters = ctypes.create_string_buffer(120)
    ring = ctypes.CDLL(None, use_errno=True).syscall(425, 8, parameters)
    if ring >= 0:
        os.close(ring)
    return ring >= 0


def facts():
    """The machine, for people and for results files."""
    model = next((line.split(":", 1)[1].strip() for line in text_of("/proc/cpuinfo").splitlines() if line.startswith("model name")), "?")
    memory = next((int(line.split()[1]) // 1024 for line in text_of("/proc/meminfo").splitlines() if line.startswith("MemTotal")), 0)
    nodes = sorted(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"))
    return {
        "kernel": platform.release(), "system": platform.platform(), "glibc": platform.libc_ver()[1], "python": platform.python_version(),
        "cpu": model, "cpus": len(cpus()), "memory_mib": memory,
        "numa_nodes": {node.name: text_of(node / "cpulist") for node in nodes},
        "io_uring": has_io_uring(), "gpus": gpus(), "driver": text_of("/proc/driver/nvidia/version").splitlines()[:1],
    }


def described(found):
    """The facts in a few lines."""
    lines = [f"kernel {found['kernel']}, glibc {found['glibc']}, python {found['python']}, {found['cpus']} CPUs ({found['cpu']}),"
             f" {found['memory_mib']} MiB, {len(found['numa_nodes'])} NUMA nodes, io_uring: {'yes' if found['io_uring'] else 'no'}"]
    lines += [f"GPU {gpu['name']}, driver {gpu['driver_version']}, {gpu['memory.total']}, {gpu['uuid']}" for gpu in found["gpus"]]
    return lines if found["gpus"] else [*lines, "no GPU that nvidia-smi tells of"]


def bound_to(numbers):
    """What a command line begins with so that the program runs on these CPUs alone."""
    program = "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execvp(sys.argv[2], sys.argv[2:])"
    return [sys.executable, "-c", program, ",".join(map(str, numbers))]


def urgent():
    """What a command begins with so that the program is not kept waiting for its CPU; nothing where that is not allowed."""
    program = "import os, sys; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); os.execvp(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", program]
    is_allowed = not subprocess.run([*command, "true"], stderr=subprocess.DEVNULL, check=False).returncode
    return command if is_allowed else []


def halves():
    """(CPUs of the server, CPUs of its clients): half each, or the same one where there is one."""
    own = cpus()
    return (own[:len(own) // 2], own[len(own) // 2:]) if len(own) > 1 else (own, own)


def shards_on(numbers):
    """The flag by which the server's network threads leave half of these CPUs to the threads of its models, where there are enough."""
    return [f"--shards={len(numbers) // 2}"] if len(numbers) >= 4 else []


def cpu_ns(pid):
    """Nanoseconds of CPU that all threads of a process have taken, those that ended among them."""
    # The kernel's number for the clock of another process: clock_getcpuclockid(3).
    return time.clock_gettime_ns(~pid << 3 | 2)
