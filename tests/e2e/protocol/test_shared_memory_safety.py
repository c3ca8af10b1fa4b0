"""What clients could do to a server, and to each other, by shared memory. Tests T4, T5 and T6 of the security requirements, one named test
each, and what belongs to them. Speaks of conch: upstream falls over some of it."""

import contextlib
import json
import os
import pathlib
import queue
import random
import re
import struct
import tempfile
import threading
import time
import unittest

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import server as servers
import wire
from case import ServerCase, conch_only, pack
from region import FLAG, Object, Sharing, listed, mapping_count, part, path, register, unregister
from repository import Repository, identity, tensors
from waiting import until_equal

VALUES = [1.0, 2.0, 3.0, 4.0]
GONE = "the memory of shared memory region 'r' is gone"
SCALE = ('backend: "scale"\nmax_batch_size: 0\n' + tensors("input", [("IN", "FP32", (-1,))]) + tensors("output", [("OUT", "FP32", (-1,))])
         + "instance_group [ { count: 1 kind: KIND_CPU } ]\n")
RESERVED = "triton_python_backend_shm_region_"


def models(repository):
    repository.model("identity", identity([("INPUT0", "FP32", (-1,))]))
    repository.model("strings", identity([("INPUT0", "STRING", (-1,))]))
    # Requests of the same kind wait while one executes.
    repository.model("slow", identity([("INPUT0", "FP32", (-1,))], parameters={"execute_delay_ms": "500"}))
    repository.model("cached", identity([("INPUT0", "FP32", (-1,))], extra="response_cache { enable: true }\n"))
    repository.model("controlled", identity([("INPUT0", "FP32", (-1,))], count=2, parameters={"enable_request_controls": "true"}))


class Case(Sharing, ServerCase):
    flags = (FLAG, "--cache-config=local,size=1048576")
    models = staticmethod(models)

    def ask(self, source, target=None, model="identity", count=4, **more):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [count], "parameters": source}], **more}
        if target is not None:
            body["outputs"] = [{"name": "OUTPUT0", "parameters": target}]
        status, _, reply = self.infer(body, model=model)
        return status, json.loads(reply)

    def ask_grpc(self, source, target=None, model="identity", count=4, id=""):
        """As `ask`: None, or the error's status and message."""
        def name(tensor, place):
            if place is not None:
                tensor.set_shared_memory(place["shared_memory_region"], place["shared_memory_byte_size"], place["shared_memory_offset"])
            return tensor

        inputs = [name(grpcclient.InferInput("INPUT0", [count], "FP32"), source)]
        outputs = [name(grpcclient.InferRequestedOutput("OUTPUT0"), target)]
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            try:
                client.infer(model, inputs, outputs=outputs, client_timeout=20, request_id=id)
            except InferenceServerException as error:
                return error.status(), error.message()
        return None

    def assert_alive(self):
        """It serves on: without shared memory, and with a region registered afterwards."""
        self.assert_serves(shape=(4,))
        with Object(64, pack(VALUES)) as sound:
            self.assertEqual(register(self.server, "alive", sound.key, 64)[0], 200)
            self.assertEqual(self.ask(part("alive"), part("alive", 32))[0], 200)
            self.assertEqual(sound.read(32, 16), pack(VALUES))
            self.assertEqual(unregister(self.server, "alive")[0], 200)


@conch_only
class Safety(Case):
    def test_t4_no_error_tells_of_names_paths_or_addresses(self):
        """Every way to be refused: the reply may repeat what the client sent, and nothing else of this host."""
        secret = self.object(100)
        foreign = f"{RESERVED}{os.getpid()}_secret"
        stranger = f"/dev/shm/conch_stranger_{os.getpid()}"
        with open(stranger, "wb") as file:
            file.write(bytes(100))
        self.addCleanup(os.unlink, stranger)
        own = self.registered("own", 4096, pack(VALUES))
        replies = []
        for body in (b"", b"{", b"[]", b"{}", b'{"key":1}', b'{"key":"/x"}',
                     *(json.dumps({"key": key, "offset": offset, "byte_size": byte_size}).encode()
                       for key in ("/", "/nobody", f"/{foreign}", "/../etc/passwd", "/.", "x\0y", "k" * 5000, own.key)
                       for offset in (0, 5, 2**64 - 32) for byte_size in (0, 32, 2**63, 2**64 - 1))):
            replies.append((body, self.server.post_json(path("register", "r"), body)[1]))
        for action, name, kind in (("status", "nobody", "system"), ("status", "nobody", "cuda"), ("register", "r", "cuda")):
            replies.append((name.encode(), self.server.request("POST" if action == "register" else "GET", path(action, name, kind), b"")[2]))
        for source in (part("nobody"), part("own", 4096), part("own", 0, 12), part("own", 4090), part("own", 1, 2**64 - 1),
                       {"shared_memory_region": 7}):
            for target in (None, part("nobody"), part("own", 64, 3), part("own", 4090)):
                status, reply = self.ask(source, target)
                if status != 200:
                    replies.append((json.dumps([source, target]).encode(), json.dumps(reply).encode()))
        self.assertGreater(len(replies), 100)
        for sent, reply in replies:
            text = reply.decode()
            for word in (secret.key[1:], os.path.basename(stranger), "/dev/shm", "/proc", "/tmp", str(servers.ROOT)):
                self.assertNotIn(word, text, sent)
            self.assertIsNone(re.search(r"0x[0-9a-f]{6,}|\b7f[0-9a-f]{10}\b", text), text)
            self.assertIsNone(re.search(rf"\b{self.server.pid}\b", text), text)
            if own.key in text:
                self.assertIn(own.key.encode(), sent)
            if foreign in text:
                self.assertIn(foreign.encode(), sent, "a key that the client sent may come back")

    def test_t5_registration_of_what_is_not_the_clients(self):
        """Reserved keys, other users' objects, bounds that overflow or lie outside: 400, and nothing is mapped."""
        target = self.object(8192)
        reserved = Object(4096)
        os.rename(reserved.path, f"/dev/shm/{RESERVED}conch_test")
        self.addCleanup(os.unlink, f"/dev/shm/{RESERVED}conch_test")
        bare = f"{RESERVED}conch_test"
        for key in (bare, f"/{bare}", f"///{bare}"):
            status, reply = register(self.server, "r", key, 4096)
            self.assertEqual((status, json.loads(reply)["error"]),
                             (400, f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix"
                              f" '{RESERVED}'"))
        for offset, byte_size in [(0, 8193), (8192, 1), (2**64 - 32, 64), (2**64 - 32, 32), (4096, 2**64 - 4096), (2**64 - 4096, 4096),
                                  (0, 2**64 - 1), (0, 2**63), (2**63, 2**63)]:
            status, reply = register(self.server, "r", target.key, byte_size, offset)
            self.assertEqual((status, json.loads(reply)["error"]), (400, "failed to register shared memory region 'r': invalid args"),
                             (offset, byte_size))
            with grpcclient.InferenceServerClient(self.server.grpc) as client, self.assertRaises(InferenceServerException) as raised:
                client.register_system_shared_memory("r", target.key, byte_size, offset)
            self.assertEqual(raised.exception.status(), "StatusCode.INVALID_ARGUMENT")
        for key in ("/../tmp/x", "/a/../b", "/.", "/..", "a/b", "/" + "k" * 300, "/x\0y"):
            self.assertIn(register(self.server, "r", key, 1)[0], (400, 500), key)
        fifo = f"/dev/shm/conch_fifo_{os.getpid()}"
        os.mkfifo(fifo)
        self.addCleanup(os.unlink, fifo)
        link = f"/dev/shm/conch_link_{os.getpid()}"
        os.symlink(target.path, link)
        self.addCleanup(os.unlink, link)
        for place in (fifo, link):
            self.assertEqual(register(self.server, "r", place.removeprefix("/dev/shm"), 1)[0], 500, place)
        self.assertEqual(listed(self.server), [])
        self.assertEqual(mapping_count(self.server, target), 0)
        self.assert_alive()

    @unittest.skipUnless(os.geteuid() == 0, "only root can make another user's object")
    def test_root_takes_objects_of_all_users(self):
        """As upstream, unless --shm-allowed-uids says otherwise."""
        target = self.object(4096)
        os.chown(target.path, 1234, 1234)
        self.assertEqual(register(self.server, "r", target.key, 4096)[0], 200)
        self.assertEqual(unregister(self.server, "r")[0], 200)

    def check_truncation(self, ask, size, what):
        """Truncates to `size` while a request executes that uses `what` part of the region."""
        target = self.registered("r", 1 << 20, pack(VALUES))
        outside = part("r", (1 << 20) - 64)
        places = {"input": (outside, None), "output": (part("r"), outside), "both": (part("r"), part("r", 64))}
        outcome = []
        name = f"{what}-{ask.__name__}"
        asker = threading.Thread(target=lambda: outcome.append(ask(*places[what], model="slow", id=name)))
        with self.server.telling_states():
            asker.start()
            self.server.wait_for_state(name, "EXECUTING")
        target.resize(size)
        asker.join()
        # At once for whoever comes later.
        later = self.ask(part("r"))
        self.assertEqual(later[0], 400, later)
        self.assertIn(GONE, later[1]["error"])
        self.assertEqual(listed(self.server), ["r"])
        self.assertEqual(unregister(self.server, "r")[0], 200)
        self.assert_alive()
        return outcome[0]

    def test_t5_truncated_during_execution_over_http(self):
        for what, size in (("input", 4096), ("output", 4096), ("both", 0)):
            with self.subTest(what):
                status, reply = self.check_truncation(self.ask, size, what)
                self.assertEqual(status, 400, reply)
                self.assertIn(GONE, reply["error"])

    def test_t5_truncated_during_execution_over_grpc(self):
        for what, size in (("input", 4096), ("output", 4096), ("both", 0)):
            with self.subTest(what):
                status, message = self.check_truncation(self.ask_grpc, size, what)
                self.assertEqual(status, "StatusCode.INVALID_ARGUMENT")
                self.assertIn(GONE, message)

    def test_t5_truncated_during_execution_in_a_stream(self):
        target = self.registered("r", 1 << 16, pack(VALUES))
        sound = self.registered("sound", 4096, pack(VALUES))
        results = queue.Queue()
        with grpcclient.InferenceServerClient(self.server.grpc) as client, self.server.telling_states():
            client.start_stream(lambda result, error: results.put((result, error)))
            for region in ("r", "sound"):
                source = grpcclient.InferInput("INPUT0", [4], "FP32")
                source.set_shared_memory(region, 16)
                wanted = grpcclient.InferRequestedOutput("OUTPUT0")
                wanted.set_shared_memory(region, 16, offset=2048)
                client.async_stream_infer("slow", [source], outputs=[wanted], request_id=region)
            self.server.wait_for_state("r", "EXECUTING")
            self.server.wait_for_state("sound", "PENDING")
            target.resize(0)
            (_, error), (result, other) = results.get(timeout=10), results.get(timeout=10)
            client.stop_stream()
        self.assertIn(GONE, error.message())
        self.assertIsNone(other)
        self.assertEqual(result.get_response().id, "sound")
        self.assertEqual(sound.read(2048, 16), pack(VALUES))
        self.assert_alive()

    def test_t5_truncated_before_a_request(self):
        """The server itself stumbles: over strings that it checks, and over parts that it copies."""
        for model, datatype, place in (("strings", "BYTES", part("r", 8192, 16)), ("identity", "FP32", part("r", 8193)),
                                       ("identity", "FP32", part("r", 8192))):
            for ask in ("http", "grpc"):
                with self.subTest(f"{model} {ask}"):
                    target = self.registered("r", 1 << 16)
                    target.resize(4096)
                    if ask == "http":
                        body = {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": [4], "parameters": place}]}
                        status, _, reply = self.infer(body, model=model)
                        self.assertEqual((status, json.loads(reply)["error"][:len(GONE)]), (400, GONE))
                    else:
                        tensor = grpcclient.InferInput("INPUT0", [4], datatype)
                        tensor.set_shared_memory("r", 16, offset=place["shared_memory_offset"])
                        with grpcclient.InferenceServerClient(self.server.grpc) as client, \
                                self.assertRaises(InferenceServerException) as raised:
                            client.infer(model, [tensor], client_timeout=20)
                        self.assertEqual(raised.exception.message()[:len(GONE)], GONE)
                    unregister(self.server, "r")
        self.assert_alive()

    def test_t6_memory_that_is_changed_all_the_time(self):
        """Strings whose lengths change between check and use: each answer is whole, or a refusal. Nobody reads beyond."""
        target = self.registered("r", 4096)
        is_over = threading.Event()
        forms = [struct.pack("<I", 12) + b"a" * 12, struct.pack("<I", 4) + b"b" * 4 + struct.pack("<I", 4) + b"b" * 4,
                 struct.pack("<I", 2**32 - 1) + b"c" * 12]

        def change():
            while not is_over.is_set():
                for form in forms:
                    target.memory[:16] = form

        changer = threading.Thread(target=change)
        changer.start()
        seen = set()
        try:
            for _ in range(1500):
                body = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "parameters": part("r", 0, 16)}]}
                status, _, reply = self.infer(body, model="strings")
                seen.add(status)
                if status == 200:
                    text, = json.loads(reply)["outputs"][0]["data"]
                    self.assertEqual(len(text), 12)
        finally:
            is_over.set()
            changer.join()
        self.assertEqual(seen, {200, 400})

    def test_t6_races_of_registration_use_and_unregistration(self):
        """Over both protocols, with truncation and cancellation in between; at the end nothing is registered, mapped or in flight."""
        target = self.object(8192, pack(VALUES))
        maps_before = mapping_count(self.server, target)
        deadline, failures, counts = time.monotonic() + 6, [], {"ok": 0, "refused": 0, "register": 0}

        def use(ask):
            while time.monotonic() < deadline and not failures:
                got = ask(part("r"), part("r", 4096), model="identity")
                is_ok = got is None or got[0] == 200
                text = "" if is_ok else str(got)
                if not is_ok and "Unable to find shared memory region" not in text:
                    failures.append(text)
                counts["ok" if is_ok else "refused"] += 1

        def leave():
            """Connections that close while their request is in flight."""
            body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": part("r")}],
                    "outputs": [{"name": "OUTPUT0", "parameters": part("r", 4096)}], "parameters": {"delay_us": 2000}}
            text = json.dumps(body).encode()
            while time.monotonic() < deadline and not failures:
                with wire.connect(self.server) as link:
                    link.sendall(wire.post("/v2/models/controlled/infer", text))
                    time.sleep(random.random() * 0.003)  # a client that leaves at any time

        def register_all():
            while time.monotonic() < deadline and not failures:
                status, reply = register(self.server, "r", target.key, 8192)
                if status != 200 and b"already in manager" not in reply:
                    failures.append(reply)
                counts["register"] += status == 200
                if unregister(self.server, "r" if counts["register"] % 2 else None)[0] != 200:
                    failures.append("unregister")

        tasks = [threading.Thread(target=use, args=(ask,)) for ask in (self.ask, self.ask, self.ask_grpc)]
        tasks += [threading.Thread(target=work) for work in (leave, register_all)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        self.assertEqual(failures, [])
        self.assertGreater(counts["ok"], 20, counts)
        self.assertGreater(counts["register"], 50, counts)
        unregister(self.server)
        until_equal(lambda: (listed(self.server), mapping_count(self.server, target)), ([], maps_before), "regions and mappings")
        self.assert_alive()

    def test_t6_clients_that_leave_let_go_of_their_regions(self):
        """Queued, executing, over both protocols: whoever is gone holds nothing."""
        target = self.registered("r", 4096, pack(VALUES))
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": part("r")}],
                           "outputs": [{"name": "OUTPUT0", "parameters": part("r", 64)}]}).encode()
        with contextlib.ExitStack() as links:
            for _ in range(4):
                links.enter_context(wire.connect(self.server)).sendall(wire.post("/v2/models/slow/infer", body))
            self.server.wait_for_pending("slow", 3)
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            tensor = grpcclient.InferInput("INPUT0", [4], "FP32")
            tensor.set_shared_memory("r", 16)
            with self.assertRaises(InferenceServerException):
                client.infer("slow", [tensor], client_timeout=0.1)
        self.assertEqual(unregister(self.server, "r")[0], 200)
        until_equal(lambda: listed(self.server), [], "regions")
        # The request that executes has it until it ends.
        until_equal(lambda: mapping_count(self.server, target), 0, "the number of mappings")

    def test_the_response_cache_keeps_nothing_of_shared_memory(self):
        """The bytes could be others when the answer is kept than when it was asked for."""
        self.registered("r", 4096, pack(VALUES))
        for _ in range(3):
            self.assertEqual(self.ask(part("r"), part("r", 64), model="cached")[0], 200)
        before = self.server.statistics("cached")["inference_stats"]
        self.assertEqual((before["cache_hit"]["count"], before["cache_miss"]["count"]), (0, 0))
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": VALUES}]}
        for _ in range(3):
            self.assertEqual(self.infer(body, model="cached")[0], 200)
        after = self.server.statistics("cached")["inference_stats"]
        self.assertEqual((after["cache_hit"]["count"], after["cache_miss"]["count"]), (2, 1))

    def test_large_strings_are_copied_in_slices(self):
        """Eight megabytes of strings: nobody else waits long."""
        word = struct.pack("<I", 1020) + b"w" * 1020
        count = 8192
        target = self.registered("r", count * len(word), word * count)
        latencies, is_over = [], threading.Event()

        def look():
            while not is_over.is_set():
                begun = time.monotonic()
                self.server.get("/v2/health/live")
                latencies.append(time.monotonic() - begun)

        looker = threading.Thread(target=look)
        looker.start()
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            for _ in range(3):
                tensor = grpcclient.InferInput("INPUT0", [count], "BYTES")
                tensor.set_shared_memory("r", count * len(word))
                wanted = grpcclient.InferRequestedOutput("OUTPUT0")
                wanted.set_shared_memory("r", count * len(word))
                client.infer("strings", [tensor], outputs=[wanted])
        is_over.set()
        looker.join()
        self.assertEqual(target.read(len(word) * (count - 1), len(word)), word)
        self.assertLess(sorted(latencies)[len(latencies) // 2], 0.05)


@conch_only
class Owners(Case):
    flags = (*Case.flags, "--shm-allowed-uids=0,4321")

    @unittest.skipUnless(os.geteuid() == 0, "only root can make another user's object")
    def test_t5_objects_of_other_users(self):
        """The server may open them, the client perhaps not: it must not act for it. The refusal says what to look at, the log whose it is."""
        target = self.object(4096)
        os.chown(target.path, 1234, 1234)
        os.chmod(target.path, 0o666)
        why = (f"failed to register shared memory region 'r': '{target.key}' belongs to a user whose memory the server does not take "
               "(see --shm-allowed-uids)")
        status, reply = register(self.server, "r", target.key, 4096)
        self.assertEqual((status, json.loads(reply)["error"]), (400, why))
        with grpcclient.InferenceServerClient(self.server.grpc) as client, self.assertRaises(InferenceServerException) as raised:
            client.register_system_shared_memory("r", target.key, 4096)
        self.assertEqual((raised.exception.status(), raised.exception.message()), ("StatusCode.INVALID_ARGUMENT", why))
        self.server.wait_for_line(rf"'{target.key}' belongs to user 1234, and --shm-allowed-uids does not have that one")
        self.assertEqual(listed(self.server), [])
        for user in (4321, 0):
            os.chown(target.path, user, user)
            self.assertEqual(register(self.server, "r", target.key, 4096)[0], 200)
            self.assertEqual(unregister(self.server, "r")[0], 200)
        self.assert_alive()


@conch_only
class ForeignBackend(unittest.TestCase):
    """A backend in C, built from docs/examples, stumbles over memory that is gone."""

    def test_t5_a_region_that_shrank_under_a_backend_in_c(self):
        from test_authors import BUILDS, build
        with tempfile.TemporaryDirectory(prefix="conch-backend-") as directory, Repository() as repository:
            build("c_backend", pathlib.Path(directory) / "scale", *BUILDS["c_backend"][0])
            repository.model("scale", SCALE, files={"1/factor.txt": b"3\n"})
            with servers.Server(repository, FLAG, backends=directory) as server, Object(1 << 16, pack(VALUES)) as target:
                self.assertEqual(register(server, "r", target.key, 1 << 16)[0], 200)

                def ask(source, wanted):
                    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "parameters": source}],
                            "outputs": [{"name": "OUT", "parameters": wanted}]}
                    status, reply = server.post_json("/v2/models/scale/infer", body)
                    return status, json.loads(reply)

                self.assertEqual(ask(part("r"), part("r", 64))[0], 200)
                self.assertEqual(target.read(64, 16), pack([3 * value for value in VALUES]))
                target.resize(4096)
                self.assertEqual(ask(part("r"), part("r", 64))[0], 200, "what they use is still there")
                for source, wanted in ((part("r", 8192), part("r", 64)), (part("r"), part("r", 8192))):
                    status, reply = ask(source, wanted)
                    self.assertEqual((status, reply["error"][:len(GONE)]), (400, GONE))
                    self.assertEqual(unregister(server, "r")[0], 200)
                    self.assertEqual(register(server, "r", target.key, 4096)[0], 200)
                    target.resize(1 << 16)
                    unregister(server, "r")
                    self.assertEqual(register(server, "r", target.key, 1 << 16)[0], 200)
                    target.resize(4096)
