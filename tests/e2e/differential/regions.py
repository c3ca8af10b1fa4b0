"""Shared memory: registered regions, tensors in them, and what is wrong with either. Both servers use the same objects, one after the
other; every entry registers under names of its own and gives them back."""

import json
import mmap
import os
import pathlib

from tritonclient.grpc import service_pb2 as pb

from .entry import call, entry, get, infer_message, post
from .sound import BYTES, infer

ENTRIES = []
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
KEY = f"conch_differential_{os.getpid()}"


def add(name, rows, *steps, world="sharing"):
    ENTRIES.append(entry(world, name, rows, *steps))


def make(size=8192, content=BYTES):
    """Makes the object afresh; says nothing."""
    def step(_):
        path = pathlib.Path("/dev/shm") / KEY
        path.write_bytes(content + bytes(size - len(content)))
        return {}
    return step


def held(start, size):
    """What is in the object."""
    def step(_):
        with open(pathlib.Path("/dev/shm") / KEY, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            return {"held": memory[start:start + size]}
    return step


def remove(_):
    (pathlib.Path("/dev/shm") / KEY).unlink(missing_ok=True)
    return {}


def register(name, kind=SYSTEM, **fields):
    return post(f"{kind}/region/{name}/register", json.dumps(fields).encode())


def unregister(name=None, kind=SYSTEM):
    return post(f"{kind}/region/{name}/unregister" if name else f"{kind}/unregister")


def region(name, size, offset=None):
    return {"shared_memory_region": name, "shared_memory_byte_size": size, **({} if offset is None else {"shared_memory_offset": offset})}


def there(place, out=None, **more):
    output = [{"name": "OUTPUT0", "parameters": out}] if out is not None else []
    return infer({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": place}], **({"outputs": output} if output else {}), **more})


def message(place=None, out=None, shape=(1, 4)):
    made = pb.ModelInferRequest(model_name="identity")
    tensor = made.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
    targets = [(tensor, place)]
    if out is not None:
        targets.append((made.outputs.add(name="OUTPUT0"), out))
    for target, parameters in targets:
        for name, value in (parameters or {}).items():
            setattr(target.parameters[name], "string_param" if isinstance(value, str) else "int64_param", value)
    return made


A = dict(key=f"/{KEY}", offset=0, byte_size=8192)
add("life", "http-sysshm", make(), get(f"{SYSTEM}/status"), register("a", **A), get(f"{SYSTEM}/status"), get(f"{SYSTEM}/region/a/status"), register("a", **A), unregister("a"), unregister("a"),
    register("b", **A), unregister(), get(f"{SYSTEM}/status"), remove)
add("tensors", "http-shm-in/out", make(), register("t", **A), there(region("t", 16)), there(region("t", 16, 0), region("t", 16, 4096)), held(4096, 16),
    there(region("t", 16), {"binary_data": True}), unregister("t"), remove)
add("g_tensors", "grpc-shm", make(), call("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="g", **A)), call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
    call("ModelInfer", message(region("g", 16))), call("ModelInfer", message(region("g", 16), region("g", 16, 4096))), held(4096, 16),
    call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name="g")), remove)
add("pages", "shm-page", make(16384), register("p", key=f"/{KEY}", offset=4096, byte_size=4096), register("q", key=f"/{KEY}", offset=5, byte_size=64), unregister(), remove)
add("unknown_objects", "shm/no-such-object shm/key-of-slashes shm/reserved-prefix", register("x", key="/conch_none", offset=0, byte_size=64), register("x", key="///", offset=0, byte_size=64),
    register("x", key="", offset=0, byte_size=64), register("x", key="triton_python_backend_shm_region_1", offset=0, byte_size=64), register("x", key="/triton_python_backend_shm_region_1", offset=0, byte_size=64))
add("fields", "shm/body-fields shm/no-name", register("x", offset=0, byte_size=64), register("x", key="/a", offset=0), register("x", key="/a", byte_size=64), register("x", key=7, byte_size=64),
    register("x", key="/a", byte_size=-1), register("x", key="/a", byte_size="64"), post(f"{SYSTEM}/register", b'{"key":"/a","byte_size":64}'), post(f"{SYSTEM}/region/x/register", b"{"),
    post(f"{CUDA}/region/x/register", b'{"device_id":0,"byte_size":64}'), post(f"{CUDA}/register", b"{}"))
add("beyond", "shm/beyond-the-object", make(), register("x", key=f"/{KEY}", offset=0, byte_size=8193), register("x", key=f"/{KEY}", offset=8192, byte_size=1),
    register("x", key=f"/{KEY}", offset=4096, byte_size=2**64 - 4096), remove)
add("duplicate", "shm/duplicate", make(), register("d", **A), call("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="d", **A)), unregister("d"), remove)
add("unknown_region", "shm/unknown-region shm/status-of-unknown shm/unregister-unknown", there(region("nowhere", 16)), call("ModelInfer", message(region("nowhere", 16))), get(f"{SYSTEM}/region/nowhere/status"),
    get(f"{CUDA}/region/nowhere/status"), unregister("nowhere"), unregister("nowhere", CUDA), call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="nowhere")),
    call("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="nowhere")), call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name="nowhere")))
add("ranges", "shm/range", make(), register("r", **A), there(region("r", 16, 8192)), there(region("r", 16, 8185)), there(region("r", 8193)), there(region("r", 2**64 - 1, 4096)), there(region("r", 12)),
    there({"shared_memory_region": "r"}), there({"shared_memory_region": "r", "shared_memory_byte_size": "x"}), there({"shared_memory_region": 7}), unregister("r"), remove)
add("output_too_small", "shm/output-too-small", make(), register("o", **A), there(region("o", 16), region("o", 8, 4096)), call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="o")),
    call("ModelInfer", message(region("o", 16), region("o", 8, 4096))), unregister("o"), remove)
add("output_and_more", "http-infer/output-in-shared-memory-and-more", make(), register("m", **A), there(region("m", 16), {**region("m", 16), "classification": 1}),
    there(region("m", 16), {**region("m", 16), "binary_data": True}), unregister("m"), remove)
add("g_kinds", "grpc-infer/shared-memory-parameter-kinds", call("ModelInfer", message({"shared_memory_region": 7})), call("ModelInfer", message({"shared_memory_region": "x", "shared_memory_offset": "x"})),
    call("ModelInfer", message({"shared_memory_region": "x", "shared_memory_byte_size": "x"})))
add("g_combinations", "grpc-infer/shared-memory-combinations", call("ModelInfer", message({"shared_memory_offset": 0})), call("ModelInfer", message({"shared_memory_byte_size": 16})),
    call("ModelInfer", message({"shared_memory_region": "x"})))
both = infer_message(raw=BYTES)
both.inputs[0].parameters["shared_memory_region"].string_param = "x"
both.inputs[0].parameters["shared_memory_byte_size"].int64_param = 16
typed = message(region("x", 16))
typed.inputs[0].contents.fp32_contents.extend([1.0] * 4)
add("g_contents_too", "grpc-infer/contents-and-shared-memory", call("ModelInfer", typed), call("ModelInfer", both))
add("g_classes_too", "grpc-infer/shared-memory-and-classification", make(), register("c", **A),
    call("ModelInfer", message(region("c", 16), {**region("c", 16), "classification": 1})), unregister("c"), remove)
add("cuda", "http-cudashm shm/cuda-handle", get(f"{CUDA}/status"), register("x", CUDA, raw_handle={"b64": "AAAA"}, device_id=0, byte_size=64),
    register("x", CUDA, raw_handle={"b64": "A" * 86 + "=="}, device_id=0, byte_size=64), unregister(None, CUDA), call("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
    call("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=bytes(64), device_id=0, byte_size=64)), call("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest()))
add("not_allowed", "shm/disabled shm-optin", register("x", key="/a", offset=0, byte_size=64), unregister(), get(f"{SYSTEM}/status"), register("x", CUDA, raw_handle={"b64": "AAAA"}, device_id=0, byte_size=64),
    call("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="x", key="/a", byte_size=64)), call("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()), world="plain")
