"""`--dashboard`: the events that the operator's page and `conch top` show, and what they cost."""

import concurrent.futures
import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import socket
import struct
import subprocess
import termios
import unittest

import server as servers
from case import ServerCase, conch_only, needs_library
from repository import Repository, identity
from waiting import until

FLOATS = [("INPUT0", "FP32", (-1,))]
DELAY_MS = 150
# Names come from those who may put models into a repository.
ODD_NAME = "a<img src=x onerror=window.hacked=1>"
CLIENTS_MAX = 64


def body(request_id=""):
    return {"id": request_id, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def models(repository):
    delay = {"execute_delay_ms": str(DELAY_MS)}
    repository.model("quick", identity(FLOATS, batch=4))
    repository.model("slow", identity(FLOATS, batch=4, parameters=delay))
    repository.model("impatient", identity(FLOATS, batch=4, parameters=delay, extra="""dynamic_batching {
        default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 110000 } }"""))
    repository.model(ODD_NAME, identity(FLOATS, batch=4))


class Events:
    """One client of the stream of events. Use it as a context manager."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.ports["metrics"], timeout=30)
        self.connection.request("GET", "/dashboard/events", headers={"Accept": "text/event-stream"})
        self.reply = self.connection.getresponse()
        self.status = self.reply.status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def raw(self):
        """The next event: {field: text}."""
        fields = {}
        while line := self.reply.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields

    def next(self):
        """The document of the next event, which has to be a sample."""
        fields = self.raw()
        if fields.get("event") != "sample":
            raise AssertionError(f"not a sample: {fields}")
        return json.loads(fields["data"])

    def layout(self):
        fields = self.raw()
        if fields.get("event") != "layout" or "id" in fields:
            raise AssertionError(f"not a layout: {fields}")
        return json.loads(fields["data"])

    def until(self, accept, what):
        """Reads samples until `accept` of all so far is true, and returns those."""
        found = []
        for _ in range(20):
            found.append(self.next())
            if accept(found):
                return found
        raise AssertionError(f"{what}: {found[-1]}")


def of(samples, model, field):
    """A field of that model's rows, one after the other."""
    return [row[field] for sample in samples for row in sample["models"] if row["name"] == model]


@conch_only
@needs_library("identity")
class Stream(ServerCase):
    flags = ("--dashboard",)
    models = staticmethod(models)

    def infer_many(self, model, ids):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return [status for status, *_ in pool.map(lambda each: self.infer(body(each), model=model), ids)]

    def test_a_sample_tells_what_was_asked_since_the_one_before(self):
        with Events(self.server) as events:
            layout = events.layout()
            self.assertEqual((layout["server"], layout["bounds_us"][0], layout["has_histograms"]), ("triton", 10, True))
            first = events.next()
            self.assertEqual(first["state"], "ready")
            self.assertEqual({row["name"] for row in first["models"]}, {"quick", "slow", "impatient", ODD_NAME})
            self.assertEqual(self.infer_many("quick", ["q"] * 9), [200] * 9)
            samples = events.until(lambda found: sum(of(found, "quick", "success")) >= 9, "nine requests")
        self.assertEqual(sum(of(samples, "quick", "success")), 9)
        self.assertEqual(sum(of(samples, "quick", "inferences")), 9)
        self.assertEqual(sum(count for pairs in of(samples, "quick", "latency") for _, count in pairs), 9)
        self.assertEqual(sum(size * count for pairs in of(samples, "quick", "batches") for size, count in pairs), 9)
        self.assertEqual(sum(of(samples, "slow", "success")), 0)
        last = samples[-1]
        self.assertEqual(last["models"][0]["name"], "quick", "the busiest is first")
        self.assertGreater(last["process"]["resident_bytes"], 1 << 20)
        self.assertGreater(last["memory"]["limit_bytes"], last["memory"]["held_bytes"])
        self.assertGreaterEqual(dict(last["network"]["connections"])["metrics"], 1)
        self.assertTrue(500 <= last["interval_ms"], last["interval_ms"])

    def test_errors_have_their_reason(self):
        with Events(self.server) as events:
            events.layout()
            events.next()
            # One executes, and who comes with it waits too long; on a busy machine it may come too late for that.
            until(lambda: 503 in self.infer_many("impatient", ["e"] * 4), "a refusal")
            samples = events.until(lambda found: any(of(found, "impatient", "errors")), "an error")
        [errors] = [errors for errors in of(samples, "impatient", "errors") if errors]
        self.assertEqual(list(errors), ["timeout"])

    def test_the_slowest_requests_tell_their_stages(self):
        with Events(self.server) as events:
            events.layout()
            events.next()
            self.assertEqual(self.infer(body("s1"), model="slow")[0], 200)

            def about(samples):
                return [each for each in samples[-1]["network"]["slowest"] if each.get("id") == "s1"]
            [found] = about(events.until(about, "the slow request"))
            # It stays for a minute.
            self.assertEqual(about([events.next()]), [found])
        self.assertEqual((found["model"], found["version"], found["outcome"], found["instance"]), ("slow", 1, "ok", "slow_0_0"))
        stages = dict(found["stages"])
        self.assertEqual(list(stages), ["read", "decode", "check", "inbox", "batch_wait", "execute", "input", "infer", "output",
                                        "return", "encode", "write"])
        self.assertGreaterEqual(stages["execute"], DELAY_MS * 1000)
        self.assertGreaterEqual(found["total_us"], stages["execute"])

    def test_instances_show_when_they_executed(self):
        with Events(self.server) as events:
            events.layout()
            # From here on they are watched.
            [[idle]] = of([events.next()], "slow", "timelines")
            self.assertEqual((idle["name"], set(idle["cells"])), ("slow_0_0", {"0"}))
            self.assertEqual(len(idle["cells"]), 100)
            self.assertEqual(self.infer(body("t1"), model="slow")[0], 200)

            def full(samples):
                """Cells of 10 ms in which the instance executed throughout: 13 of 150 ms at least. Two samples may share them."""
                return sum(row["cells"].count("9") for [row] in of(samples, "slow", "timelines"))
            samples = events.until(lambda found: full(found) >= 10, "an execution")
            self.assertLess(full(samples), 90)

    def test_names_are_data(self):
        with Events(self.server) as events:
            events.layout()
            self.assertIn(ODD_NAME, [row["name"] for row in events.next()["models"]])

    def test_one_event_for_all_clients_whose_number_is_bounded(self):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Events(self.server)) for _ in range(CLIENTS_MAX)]
            self.assertEqual({client.status for client in clients}, {200})
            with Events(self.server) as refused:
                self.assertEqual(refused.status, 503)
            for client in clients:
                client.layout()
            seen = {}
            for client in clients:
                for _ in range(2):
                    event = client.raw()
                    seen.setdefault(event["id"], []).append(event["data"])
            self.assertTrue(all(len(set(texts)) == 1 for texts in seen.values()), "each is made once")
            self.assertLess(len(seen), CLIENTS_MAX, "not one for each client")
        # Who left makes room.
        def has_room():
            with Events(self.server) as client:
                return client.status == 200
        until(has_room, "room for a client")

    def test_clients_that_do_not_read_hold_nobody_up(self):
        with contextlib.ExitStack() as stack:
            for _ in range(CLIENTS_MAX - 1):
                silent = stack.enter_context(socket.socket())
                silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                silent.connect(("127.0.0.1", self.server.ports["metrics"]))
                silent.sendall(b"GET /dashboard/events HTTP/1.1\r\nHost: a\r\n\r\n")
            accepted = []

            def is_accepted():
                """Not while clients of other tests, which have gone, are still counted."""
                events = Events(self.server)
                if events.status != 200:
                    events.connection.close()
                    return False
                accepted.append(stack.enter_context(events))
                return True

            until(is_accepted, "room for one more client")
            events, = accepted
            events.layout()
            numbers = [int(events.raw()["id"]) for _ in range(4)]
            self.assertEqual(numbers, list(range(numbers[0], numbers[0] + 4)))
            self.assertEqual(self.infer(body(), model="quick")[0], 200)

    def test_the_page(self):
        status, headers, page = self.server.request("GET", "/dashboard", port="metrics")
        self.assertEqual((status, headers["content-type"]), (200, "text/html; charset=utf-8"))
        policy = headers["content-security-policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotRegex(policy, r"https?:|\*")
        self.assertNotRegex(page.decode(), r"https?://|innerHTML|insertAdjacentHTML|document\.write|\beval\(")
        self.assertEqual(self.server.request("GET", "/dashboard/", port="metrics")[2], page)
        for path in ("/dashboard", "/dashboard/events"):
            self.assertEqual(self.server.request("HEAD", path, port="metrics")[0], 200)
            self.assertEqual(self.server.request("POST", path, port="metrics", body=b"")[0], 405)
        # Only on the port of the metrics.
        self.assertEqual(self.server.request("GET", "/dashboard")[0], 404)

    def test_metrics_are_as_before(self):
        self.assertIn('conch_connections{protocol="metrics"}', self.server.metrics())


@conch_only
@needs_library("identity")
class Top(ServerCase):
    flags = ("--dashboard",)
    models = staticmethod(models)

    def run_top(self, *words):
        return subprocess.run([self.server.command[0], "top", *words], capture_output=True, text=True, timeout=60, check=False)

    def test_once(self):
        self.assertEqual(self.infer(body("o1"), model="quick")[0], 200)
        done = self.run_top("--once", self.server.address("metrics"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for expected in ("triton (conch ", "  ready", "\nMODEL ", "\nquick ", "\nslow ", "slow_0_0", "Slowest requests of the last minute"):
            self.assertIn(expected, done.stdout)
        self.assertNotIn("\x1b", done.stdout)

    def test_failures_are_told(self):
        done = self.run_top("--once", "ftp://a")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, "'ftp://a' is not http://")
        for words, expected in ((["--once", "127.0.0.1:1"], "no server listens there"),
                                (["--once", self.server.http], "no dashboard is served there; it is on the metrics port")):
            done = self.run_top(*words)
            self.assertEqual((done.returncode, done.stdout), (1, ""), words)
            self.assertRegex(done.stderr, expected)
        self.assertRegex(self.run_top(self.server.address("metrics")).stderr, "no terminal: .*--once")

    def test_in_a_terminal(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(self.server.command[0], ["conch", "top", self.server.address("metrics")])
        text = b""

        def shows(pattern):
            nonlocal text
            with contextlib.suppress(BlockingIOError):
                text += os.read(terminal, 65536)
            return re.search(pattern, text)
        try:
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
            os.set_blocking(terminal, False)
            until(lambda: shows(rb"\x1b\[\?1049h"), "another screen")
            until(lambda: shows(rb"quick .*All models"), "the table", 30)
            text = b""
            os.write(terminal, b"\x1b[B")
            until(lambda: shows(rb"version 1"), "a chosen model")
            text = b""
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
            until(lambda: shows(rb"\x1b\[2J"), "a new size")
            os.write(terminal, b"q")
            ended = until(lambda: os.waitpid(pid, os.WNOHANG), "its end", accept=lambda value: value[0] == pid)
            pid = None
            self.assertEqual(ended[1], 0)
            with contextlib.suppress(OSError):
                while more := os.read(terminal, 65536):
                    text += more
            self.assertIn(b"\x1b[?1049l", text)
        finally:
            if pid:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            os.close(terminal)


@conch_only
@needs_library("identity")
class Settings(unittest.TestCase):
    def server(self, *flags):
        repository = Repository()
        self.addCleanup(repository.close)
        repository.model("quick", identity(FLOATS, batch=4))
        return servers.Server(repository.path, *flags)

    def test_off_by_default(self):
        with self.server() as server:
            for path in ("/dashboard", "/dashboard/events"):
                status, _, text = server.request("GET", path, port="metrics")
                self.assertEqual((status, json.loads(text)), (404, {"error": "the dashboard is off: --dashboard has it served"}))
            # As upstream has it.
            self.assertEqual(server.request("GET", "/other", port="metrics")[0], 200)

    def test_a_server_ends_while_clients_look_on(self):
        with self.server("--dashboard") as server, Events(server) as events:
            events.layout()
            events.next()
            self.assertEqual(server.terminate(), 0)

    def test_without_histograms(self):
        with self.server("--dashboard", "--metrics-config=conch_histograms=false") as server, Events(server) as events:
            self.assertFalse(events.layout()["has_histograms"])
            self.assertEqual(server.post_json("/v2/models/quick/infer", body())[0], 200)
            samples = [events.next(), events.next()]
        self.assertEqual(of(samples, "quick", "latency"), [[], []])


if __name__ == "__main__":
    unittest.main()
