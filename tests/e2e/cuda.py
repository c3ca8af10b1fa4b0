"""NVIDIA's driver as a client of the server uses it: device memory of a test's own, over the real driver or the double in src/testkit/cuda.

CONCH_CUDA=real takes the machine's libcuda.so.1; else both the server and this process use the double, told apart by their environment."""

import contextlib
import ctypes
import os
import pathlib
import tempfile
import time

import server as servers

IS_REAL = os.environ.get("CONCH_CUDA") == "real"
DOUBLE = servers.built("libconch_testkit_cuda.so")
HANDLE_BYTES = 64


def environment(**settings):
    """What makes a server find the driver: the machine's, or the double with these settings (`devices=2`, `bytes=...`)."""
    if IS_REAL:
        return {}
    directory = servers.CACHE / "cuda" / servers.PROFILE
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        servers.place(directory / name, DOUBLE)
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path, "CONCH_CUDA_DOUBLE": ";".join(f"{key}={value}" for key, value in settings.items())}


class FaultFile:
    """The file in which the double of the driver finds the faults it is to have; servers are told of it by `environment`."""

    # The double looks no more often than every 50 ms.
    SEEN_S = 0.06
    NONE = "device:0:0:1:0"

    def __init__(self, directory, name="faults"):
        self.path = pathlib.Path(directory) / name
        self.environment = {"CONCH_CUDA_DOUBLE_FAULTS": str(self.path)}

    @classmethod
    def of_class(cls, case):
        """One in a folder that goes with the class of tests."""
        directory = tempfile.TemporaryDirectory(prefix="conch-cuda-faults-")
        case.addClassCleanup(directory.cleanup)
        return cls(directory.name)

    def order(self, *faults):
        """Has the next calls of the driver fail as told, and takes back what was told before."""
        fresh = self.path.with_name("fresh")
        fresh.write_text("\n".join(faults))
        os.replace(fresh, self.path)
        time.sleep(self.SEEN_S)

    @contextlib.contextmanager
    def failing(self, *faults):
        self.order(*faults)
        try:
            yield
        finally:
            self.order(self.NONE)


class TallyFile:
    """The file in which the double of the driver counts the copies and kernels that are done; servers are told of it by `environment`."""

    def __init__(self, directory):
        self.path = pathlib.Path(directory) / "tally"
        self.environment = {"CONCH_CUDA_DOUBLE_TALLY": str(self.path)}

    @classmethod
    def of_class(cls, case):
        """One in a folder that goes with the class of tests."""
        directory = tempfile.TemporaryDirectory(prefix="conch-cuda-tally-")
        case.addClassCleanup(directory.cleanup)
        return cls(directory.name)

    def rows(self):
        """Copies and bytes by where they were read and written; launches and threads by `kernel` and its name."""
        rows = (row.split() for row in self.path.read_text().splitlines()) if self.path.exists() else ()
        return {(source, target): (int(count), int(size)) for source, target, count, size in rows}

    def during(self, work):
        """What is counted while `work` runs."""
        before = self.rows()
        work()
        counted = {}
        for key, row in self.rows().items():
            old = before.get(key, (0, 0))
            if row != old:
                counted[key] = (row[0] - old[0], row[1] - old[1])
        return counted


class Refused(Exception):
    """A call of the driver that failed, with its number."""

    def __init__(self, call, code):
        super().__init__(f"{call}: {code}")
        self.code = code


class Driver:
    """The driver in this process, with the primary context of one device at a time."""

    _loaded = None

    @classmethod
    def load(cls):
        """The one of this process; the double has as many devices as tests ask for at most."""
        if cls._loaded is None:
            os.environ.setdefault("CONCH_CUDA_DOUBLE", "devices=2")
            cls._loaded = cls(ctypes.CDLL("libcuda.so.1" if IS_REAL else str(DOUBLE)))
        return cls._loaded

    def __init__(self, library):
        self.library, self.contexts = library, {}
        self.call("cuInit", 0)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise Refused(name, code)

    def enter(self, device):
        if device not in self.contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts[device] = context
        self.call("cuCtxSetCurrent", self.contexts[device])


def device_count():
    """The devices that the driver tells this process of."""
    count = ctypes.c_int()
    Driver.load().call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


class DeviceArray:
    """Bytes in the memory of a device; freed when closed."""

    def __init__(self, byte_size, content=b"", device=0):
        self.driver, self.byte_size, self.device = Driver.load(), byte_size, device
        self.driver.enter(device)
        self.address = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(byte_size))
        if content:
            self.write(content)

    def _wait(self):
        self.driver.call("cuStreamSynchronize", None)

    def write(self, content, offset=0):
        self.driver.enter(self.device)
        self.driver.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.address.value + offset), content,
                         ctypes.c_size_t(len(content)), None)
        self._wait()

    def read(self, offset=0, count=None):
        count = self.byte_size - offset if count is None else count
        self.driver.enter(self.device)
        target = ctypes.create_string_buffer(count)
        self.driver.call("cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(self.address.value + offset), ctypes.c_size_t(count), None)
        self._wait()
        return target.raw

    def handle(self):
        """What another process maps the memory by."""
        self.driver.enter(self.device)
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self.driver.call("cuIpcGetMemHandle", handle, self.address)
        return handle.raw

    def close(self):
        self.driver.enter(self.device)
        with contextlib.suppress(Refused):
            self.driver.call("cuMemFree_v2", self.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def maps_driver(server):
    """Whether the server has the driver's library loaded."""
    return "libcuda" in pathlib.Path(f"/proc/{server.pid}/maps").read_text()
