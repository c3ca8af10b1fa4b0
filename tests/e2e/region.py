"""Shared memory of a test's own, and the calls that tell a server of it."""

import mmap
import os
import secrets

FLAG = "--allow-client-shm=true"


class Object:
    """A POSIX shared memory object, mapped here; gone when it is closed."""

    def __init__(self, byte_size=4096, content=b""):
        self.key = f"/conch_test_{os.getpid()}_{secrets.token_hex(4)}"
        self.path = f"/dev/shm{self.key}"
        self.file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(self.file, byte_size)
        self.memory = mmap.mmap(self.file, byte_size)
        self.memory[:len(content)] = content

    def resize(self, byte_size):
        os.ftruncate(self.file, byte_size)

    def read(self, offset, count):
        return self.memory[offset:offset + count]

    def close(self):
        self.memory.close()
        os.close(self.file)
        os.unlink(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def path(action, name=None, kind="system"):
    return f"/v2/{kind}sharedmemory" + (f"/region/{name}" if name else "") + f"/{action}"


def register(server, name, key, byte_size, offset=0):
    """Registers over HTTP: (status, body)."""
    return server.post_json(path("register", name), {"key": key, "offset": offset, "byte_size": byte_size})


def unregister(server, name=None):
    return server.post_json(path("unregister", name), b"")


def listed(server):
    """Names of the registered regions."""
    return [row["name"] for row in server.get_json(path("status"))]


def part(region, offset=0, byte_size=16):
    """The parameters of a tensor in a region, over HTTP."""
    return {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": byte_size}


def clients(server):
    """Upstream's synchronous clients with their modules."""
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient
    return [(httpclient, httpclient.InferenceServerClient(server.http)),
            (grpcclient, grpcclient.InferenceServerClient(server.grpc))]


def mapping_count(server, target):
    """How often the server has the object mapped."""
    with open(f"/proc/{server.pid}/maps") as file:
        return sum(target.path in row for row in file)


class Sharing:
    """For cases that share objects with the server: what a test registers and makes is gone after it."""

    def setUp(self):
        self.addCleanup(lambda: self.assertEqual(unregister(self.server)[0], 200))

    def object(self, byte_size=4096, content=b""):
        made = Object(byte_size, content)
        self.addCleanup(made.close)
        return made

    def registered(self, name="r", byte_size=4096, content=b""):
        made = self.object(byte_size, content)
        self.assertEqual(register(self.server, name, made.key, byte_size), (200, b""))
        return made
