"""HTTP and metrics over TLS: clients of several kinds, clients that do not belong there, what the start refuses, and certificates that
change while the server runs."""

import contextlib
import http.client
import json
import pathlib
import random
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import numpy as np
import tritonclient.grpc
import tritonclient.http as client

import certificates
import server as servers
import wire
from case import KIND, ServerCase, conch_only, needs_library
from repository import Repository, identity
from test_stream import REPEAT
from waiting import until

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
IN_THE_CLEAR = b"This port speaks HTTPS, and no HTTP."


def models(repository):
    repository.model("identity", identity(batch=8)).model("repeat", REPEAT)


def tls_flags(prefix, files, certificate=None, key=None, is_mutual=False):
    mode = (f"--{prefix}-use-ssl-mutual=true", f"--{prefix}-root-cert={files.root}") if is_mutual else (f"--{prefix}-use-ssl=true",)
    return *mode, f"--{prefix}-server-cert={certificate or files.server}", f"--{prefix}-server-key={key or files.server_key}"


def binary(value):
    """The bytes of an inference with a binary tensor each way."""
    head = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": list(value.shape), "parameters": {"binary_data_size": value.nbytes}}],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
    return wire.infer_json(head, value.tobytes())


def noise(count, seed=0):
    return np.random.default_rng(seed).random((1, count), dtype=np.float32)


class HttpsCase(ServerCase):
    """A server with TLS for HTTP and metrics; `other` serves the same without."""

    is_mutual = False

    @classmethod
    def setUpClass(cls):
        files = cls.files = certificates.shared()
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        models(cls.repository)
        cls.own = (files.client, files.client_key) if cls.is_mutual else ()
        context = files.context(*cls.own)
        flags = [flag for prefix in ("http", "metrics") for flag in tls_flags(prefix, files, is_mutual=cls.is_mutual)]
        cls.server = servers.Server(cls.repository.path, *flags, *cls.flags, kind=KIND, tls={"http": context, "metrics": context})
        cls.addClassCleanup(cls.server.kill)

    def link(self, port="http"):
        made = wire.connect(self.server, port, 10)
        self.addCleanup(made.close)
        return made

    def secure(self, version=None, protocols=("http/1.1",), own=None, root=None, port="http"):
        """A connection after its handshake, as Python's TLS sees it. It minds an end that TLS does not announce."""
        context = self.files.context(*(self.own if own is None else own), root=root, version=version)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        made = context.wrap_socket(self.link(port), server_hostname="localhost", suppress_ragged_eofs=False)
        self.addCleanup(made.close)
        return made

    def assert_serves(self, **more):
        """On a connection of its own."""
        value = noise(100)
        link = self.secure(**more)
        link.sendall(binary(value))
        status, _, body = wire.Replies(link).next()
        self.assertEqual((status, body[-value.nbytes:]), (200, value.tobytes()))

    def assert_ends(self, link, within=5):
        """Reads to the end: what came."""
        link.settimeout(within)
        got = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while piece := link.recv(1 << 16):
                got += piece
        return got

    def assert_refused(self, **more):
        """By the handshake, or, as of TLS 1.3, by what follows it."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            link = self.secure(**more)
            link.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(self.assert_ends(link), b"")


@needs_library("identity")
@needs_library("repeat")
class Served(HttpsCase):
    """What holds with and without certificates of clients."""

    def test_pythons_client(self):
        connection = http.client.HTTPSConnection("localhost", self.server.ports["http"], timeout=30, context=self.files.context(*self.own))
        self.addCleanup(connection.close)
        # On one connection, from less than a record to many times what is encrypted at once.
        for count in (1, 1000, 4096, 5000, 70_000, 8 << 20):
            value = noise(count, count)
            head, body = binary(value).split(b"\r\n\r\n", 1)
            headers = dict(row.split(": ", 1) for row in head.decode().split("\r\n")[1:])
            connection.request("POST", "/v2/models/identity/infer", body, headers)
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertTrue(answer.read().endswith(value.tobytes()), count)

    def test_upstreams_client(self):
        own = client.InferenceServerClient(f"localhost:{self.server.ports['http']}", ssl=True, concurrency=4,
                                           ssl_context_factory=lambda: self.files.context(*self.own))
        self.addCleanup(own.close)
        self.assertTrue(own.is_server_ready())
        pending = []
        for seed, count in enumerate((1, 5000, 300_000) * 4):
            value = noise(count, seed)
            given = client.InferInput("INPUT0", value.shape, "FP32")
            given.set_data_from_numpy(value)
            pending.append((value, own.async_infer("identity", [given], request_compression_algorithm="gzip" if seed % 2 else None)))
        for value, answer in pending:
            np.testing.assert_array_equal(answer.get_result(timeout=60).as_numpy("OUTPUT0"), value)

    def test_curl(self):
        own = ("--cert", self.files.client, "--key", self.files.client_key) if self.is_mutual else ()
        for port, path, expected in (("http", "v2/models/identity", '"name":"identity"'), ("metrics", "metrics", "nv_inference_count")):
            for version in ("--tlsv1.2", "--tlsv1.3"):
                url = f"https://localhost:{self.server.ports[port]}/{path}"
                # curl asks for HTTP/2 as well, and offers HTTP/1.1.
                done = subprocess.run(["curl", "-sS", "--fail", version, "--cacert", self.files.root, *own, url], capture_output=True, text=True,
                                      timeout=30, check=True)
                self.assertIn(expected, done.stdout)

    def test_metrics(self):
        status, body = self.server.get("/metrics", port="metrics")
        self.assertEqual(status, 200)
        self.assertIn(b"nv_inference_request_success", body)

    def test_the_log_says_https(self):
        ports = self.server.ports
        self.server.wait_for_match(rf"serving: HTTP https://\S*:{ports['http']}, .*metrics https://\S*:{ports['metrics']}/metrics")

    def test_versions(self):
        for version in VERSIONS:
            with self.subTest(version=version):
                self.assert_serves(version=version)

    def test_agreement(self):
        for offered, expected in ((("http/1.1",), "http/1.1"), (("h2", "http/1.1"), "http/1.1"), (("http/1.0",), "http/1.0"), ((), None)):
            self.assertEqual(self.secure(protocols=offered).selected_alpn_protocol(), expected)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.secure(protocols=("h2",))
        self.assert_serves()

    def test_answers_are_those_without_tls(self):
        """Byte by byte, of requests of all kinds that a connection sees."""
        value = noise(30_000)
        whole = binary(value)
        head, body = whole.split(b"\r\n\r\n", 1)
        bare = [row for row in head.split(b"\r\n") if not row.startswith(b"Content-Length")]
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[start:start + 7000] for start in range(0, len(body), 7000)))
        chunked = b"\r\n".join([*bare, b"Transfer-Encoding: chunked"]) + b"\r\n\r\n" + pieces + b"0\r\n\r\n"
        stream = wire.post("/v2/models/repeat/generate_stream", json.dumps({"IN": [4, 2, 7], "DELAY": [0, 1, 0], "WAIT": 0}).encode())
        closing = b"GET /v2/models/identity/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        rows = {
            "one": whole, "many at once": whole * 20, "chunked": chunked, "stream": stream, "nothing there": b"GET /nowhere HTTP/1.1\r\n\r\n",
            "waits to continue": head + b"\r\nExpect: 100-continue\r\n\r\n" + body}
        # Behind each a request that ends the connection, but where that ends by itself.
        rows = {name: raw + closing for name, raw in rows.items()} | {
            "closing": closing, "stream of 1.0": stream.replace(b"HTTP/1.1", b"HTTP/1.0"), "wrong": b"\x01\x02 / HTTP/1.1\r\n\r\n",
            "too long": b"GET /" + b"x" * (70 << 10) + b" HTTP/1.1\r\n\r\n"}
        with servers.Server(self.repository.path, kind=KIND) as other:
            for name, raw in rows.items():
                got = []
                for link in (wire.connect(other), self.secure()):
                    with link:
                        link.settimeout(30)
                        link.sendall(raw)
                        got.append(self.read(link))
                self.assertEqual(got[0], got[1], name)
                self.assertTrue(got[0].startswith(b"HTTP/1."), name)

    def read(self, link):
        """All that comes. Raises SSLEOFError where the socket of TLS ends without a word of its own."""
        got = b""
        while piece := link.recv(1 << 16):
            got += piece
        return got

    def test_an_end_that_is_meant_is_announced(self):
        for raw in (b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"GET /v2/health/live HTTP/1.0\r\n\r\n",
                    b"POST / HTTP/1.1\r\nTransfer-Encoding: nonsense\r\n\r\n"):
            link = self.secure()
            link.sendall(raw)
            self.assertTrue(self.read(link).startswith(b"HTTP/1."), raw)

    def test_one_byte_per_segment(self):
        """The handshake and the records after it, in pieces as small as they get."""
        context = self.files.context(*self.own)
        received, to_send, link = ssl.MemoryBIO(), ssl.MemoryBIO(), self.link()
        own = context.wrap_bio(received, to_send, server_hostname="localhost")

        def until_done(step):
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    for byte in to_send.read():
                        link.sendall(bytes([byte]))
                    piece = link.recv(1 << 14)
                    self.assertTrue(piece, "the server ended the connection")
                    received.write(piece)

        until_done(own.do_handshake)
        own.write(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(until_done(lambda: own.read(12)), b"HTTP/1.1 200")

    def test_many_connections_at_once(self):
        failures = []

        def one(seed):
            try:
                for _ in range(4):
                    self.assertEqual(self.server.get("/v2/models/identity")[0], 200)
            except Exception as error:  # shown below
                failures.append((seed, error))

        threads = [threading.Thread(target=one, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_requests_in_the_clear(self):
        for port in ("http", "metrics"):
            for raw in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", wire.infer_json(b"{" * 100_000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
                link = self.link(port)
                link.sendall(raw)
                replies = wire.Replies(link)
                status, headers, body = replies.next()
                self.assertEqual((status, headers["connection"], body), (400, "close", IN_THE_CLEAR))
                self.assertTrue(replies.is_closed())
        self.assert_serves()

    def test_bytes_of_no_meaning(self):
        source = random.Random(7)
        rows = [source.randbytes(source.randrange(6, 5000)) for _ in range(20)]
        rows += [bytes([kind, 3, 3]) + size.to_bytes(2, "big") + source.randbytes(size)
                 for kind in (20, 21, 22, 23, 24, 0, 255) for size in (0, 1, 100, 16384, 20000)]
        for row in rows:
            with self.link() as link:
                with contextlib.suppress(OSError):
                    link.sendall(row)
                    link.shutdown(socket.SHUT_WR)
                self.assert_ends(link)
        for version in VERSIONS:
            link = self.secure(version=version)
            with socket.socket(fileno=link.detach()) as raw:
                raw.settimeout(5)
                raw.sendall(b"\x17\x03\x03" + struct.pack(">H", 100) + source.randbytes(100))
                self.assertNotIn(b"HTTP", self.assert_ends(raw))
        self.assert_serves()

    def test_connections_leave_nothing(self):
        self.assert_serves()
        files = self.server.file_count()
        for _ in range(30):
            self.secure().close()
            with self.link() as link:
                link.sendall(b"\x16\x03\x01\x00")
            with self.link() as link:
                link.sendall(b"GET /")
        until(self.server.file_count, f"at most {files + 2} open files", accept=lambda count: count <= files + 2)


@conch_only
class Plain(Served):
    def test_other_roots(self):
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.secure(root=self.files.stranger)
        self.assert_serves()

    def test_who_is_slow_with_the_handshake(self):
        """Those wait for nobody and are waited for by nobody; each is left after the time of a handshake, 10 s."""
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
        begun, links = time.monotonic(), [self.link() for _ in range(40)]
        for link in links:
            link.sendall(hello)
        count = 0
        with contextlib.suppress(ConnectionError):
            links[0].settimeout(0.2)
            while time.monotonic() - begun < 20:
                self.assert_serves()
                count += 1
                try:
                    self.assertEqual(links[0].recv(1), b"")
                    break
                except TimeoutError:
                    links[0].sendall(b"\x00")
        self.assertTrue(8 < time.monotonic() - begun < 19, "the time of a handshake, 10 s; the client gives up after 20")
        self.assertGreater(count, 5)
        for link in links[1:]:
            self.assertEqual(self.assert_ends(link), b"")

    def test_other_listeners_are_as_before(self):
        own = tritonclient.grpc.InferenceServerClient(self.server.grpc)
        self.addCleanup(own.close)
        self.assertTrue(own.is_server_ready())


@conch_only
class Mutual(Served):
    is_mutual = True

    def test_without_a_certificate(self):
        for port in ("http", "metrics"):
            for version in VERSIONS:
                self.assert_refused(own=(), version=version, port=port)
        self.assert_serves()

    def test_certificates_that_will_not_do(self):
        files = self.files
        expired = files.version_one("expired-https", files.client_key, files.root, files.root_key, days=-1)
        for own in ((files.impostor, files.impostor_key), (expired, files.client_key)):
            for version in VERSIONS:
                self.assert_refused(own=own, version=version)
        self.assert_serves()


@conch_only
@needs_library("identity")
@needs_library("repeat")
class Bounds(HttpsCase):
    flags = ("--grpc-handshakes-max=8",)

    def test_a_flood_of_handshakes_displaces_itself(self):
        links = [self.link() for _ in range(30)]
        for link in links:
            link.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
        self.server.wait_for_text("8 handshakes are under way (--grpc-handshakes-max)")
        # Those that stall go first.
        until(lambda: self.serves(), "a handshake that comes through")

    def serves(self):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            self.assert_serves()
            return True
        return False

    def test_who_does_not_read(self):
        """What is encrypted ahead of the socket is bounded."""
        value = noise(4 << 20)
        raw = binary(value)
        link = self.secure()
        link.sendall(raw)
        self.assertEqual(wire.Replies(link).next()[0], 200)
        before = self.server.resident_bytes()
        links = [self.secure() for _ in range(4)]
        for link in links:
            link.sendall(b"GET /v2/models/identity/config HTTP/1.1\r\nHost: x\r\n\r\n" * 3000)
        self.assert_serves()
        self.assertLess(self.server.resident_bytes() - before, 8 << 20)


@conch_only
@needs_library("identity")
class Resting(HttpsCase):
    """Connections that had an answer and are idle keep neither buffers nor room for a request."""

    COUNT, BYTES_MAX = 500, 8 << 10

    def rest(self, count):
        """That many connections, each with an answer. They have been idle for longer than a second in the end, as the server wants it."""
        raw, links = binary(noise(4)), []
        for _ in range(count):
            links.append(self.secure())
            links[-1].sendall(raw)
            self.assertEqual(wire.Replies(links[-1]).next()[0], 200)
        return links

    def test_memory(self):
        first = self.rest(100)  # what the first few need is not theirs
        before = self.server.resident_bytes()
        links = self.rest(self.COUNT)
        # The server gives memory back about a second after the last request.
        until(lambda: self.server.resident_bytes() - before <= self.COUNT * self.BYTES_MAX, f"{self.BYTES_MAX} bytes per connection", 30)
        for link in (first[0], links[0], links[-1]):
            link.sendall(binary(noise(4)))
            self.assertEqual(wire.Replies(link).next()[0], 200)


@conch_only
class UnixSockets(unittest.TestCase):
    def test_https(self):
        files = certificates.shared()
        with Repository() as repository, tempfile.TemporaryDirectory() as folder:
            models(repository)
            path = f"{folder}/conch.sock"
            with servers.Server(repository.path, f"--http-address=unix:{path}", *tls_flags("http", files), kind=KIND):
                with socket.socket(socket.AF_UNIX) as link:
                    link.settimeout(10)
                    link.connect(path)
                    with files.context().wrap_socket(link, server_hostname="localhost") as own:
                        own.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                        self.assertEqual(wire.Replies(own).next()[0], 200)
                done = subprocess.run(["curl", "-sS", "--fail", "--unix-socket", path, "--cacert", files.root, "https://localhost/v2/models/identity"],
                                      capture_output=True, text=True, timeout=30, check=True)
                self.assertEqual(json.loads(done.stdout)["name"], "identity")


@conch_only
class Reload(unittest.TestCase):
    """New connections get what the files say, open ones go on, and what is of no use changes nothing."""

    PORTS = ("http", "grpc", "metrics")

    def setUp(self):
        self.files = certificates.Certificates()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.certificate, self.key = pathlib.Path(folder.name) / "own.pem", pathlib.Path(folder.name) / "own.key"
        self.repository = Repository()
        self.addCleanup(self.repository.close)
        models(self.repository)

    def start(self, *flags):
        self.put(self.files.server, self.files.server_key)
        given = [flag for prefix in self.PORTS for flag in tls_flags(prefix, self.files, self.certificate, self.key)]
        context = self.files.context()
        server = servers.Server(self.repository.path, *given, *flags, kind=KIND, tls={"http": context, "metrics": context})
        self.addCleanup(server.kill)
        return server

    def put(self, certificate, key):
        """One after the other, as those do who know no better."""
        shutil.copy(certificate, self.certificate)
        shutil.copy(key, self.key)

    def presented(self, server, port):
        return ssl.get_server_certificate(("127.0.0.1", server.ports[port])).strip()

    def wait_for(self, server, certificate):
        for port in self.PORTS:
            until(lambda: self.presented(server, port) == certificate.read_text().strip(), f"the new certificate on {port}", 20)

    def test_files_that_change_under_load(self):
        server = self.start("--file-reload-secs=1")
        stop, counts, failures = threading.Event(), [0, 0], []

        def ask(index):
            """The first on one connection, the others on a new one each."""
            kept = http.client.HTTPSConnection("localhost", server.ports["http"], timeout=30, context=self.files.context())
            try:
                while not stop.is_set():
                    if index == 0:
                        kept.request("GET", "/v2/models/identity")
                        answer = kept.getresponse()
                        answer.read()
                        status = answer.status
                    else:
                        status, _ = server.get("/v2/models/identity")
                    counts[min(index, 1)] += 1
                    if status != 200:
                        failures.append(status)
            except Exception as error:  # shown below
                failures.append(error)
            finally:
                kept.close()

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(3):
                fresh = self.files.make(f"fresh-{number}", "ec", issuer="root")
                before = list(counts)
                self.put(*fresh)
                self.wait_for(server, fresh[0])
                until(lambda: all(now > then for now, then in zip(counts, before)), "requests on old and new connections")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(server.output.count("new connections use the certificates as they are now (HTTP)"), 3)
        self.assertEqual(server.terminate(), 0)

    def test_what_is_of_no_use(self):
        server = self.start("--file-reload-secs=1")
        kept = self.files.context().wrap_socket(wire.connect(server), server_hostname="localhost")
        self.addCleanup(kept.close)
        self.certificate.write_text("nonsense")
        refused = "certificates stay as they were: {} cannot be served over TLS with '"
        for service in ("HTTP", "gRPC", "metrics"):
            server.wait_for_text(refused.format(service))
        self.assertEqual(self.presented(server, "http"), self.files.server.read_text().strip())
        # Looked at once more, as nothing has changed since, it is not told again.
        time.sleep(2.5)
        self.assertEqual(server.output.count(refused.format("HTTP")), 1)
        self.certificate.unlink()
        until(lambda: server.output.count(refused.format("HTTP")) == 2, "a file that is gone is told")
        kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(wire.Replies(kept).next()[0], 200)
        # A link that leads elsewhere from now on, as Kubernetes changes secrets.
        fresh, fresh_key = self.files.make("fresh", "rsa", issuer="root")
        for path, target in ((self.certificate, fresh), (self.key, fresh_key)):
            new = path.with_suffix(".new")
            new.symlink_to(target)
            new.rename(path)
        self.wait_for(server, fresh)
        self.assertEqual(server.terminate(), 0)

    def test_certificates_of_hosts(self):
        exact = self.files.make("exact", "ec", issuer="root", names="DNS:a.example")
        wild = self.files.make("wild", "rsa", issuer="root", names="DNS:*.lab.example")
        folder = self.certificate.parent
        own = [folder / "host.pem", folder / "host.key"]
        for source, target in zip(exact, own):
            shutil.copy(source, target)
        server = self.start("--file-reload-secs=1", f"--tls-host-cert=A.example:{own[0]}:{own[1]}", f"--tls-host-cert=*.lab.example:{wild[0]}:{wild[1]}")

        def shown(port, host):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2" if port == "grpc" else "http/1.1"])
            with wire.connect(server, port) as link, context.wrap_socket(link, server_hostname=host) as secure:
                return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True)).strip()

        default = self.files.server
        for port in self.PORTS:
            for host, expected in (("a.example", exact[0]), ("A.EXAMPLE", exact[0]), ("x.lab.example", wild[0]), ("lab.example", default),
                                   ("x.y.lab.example", default), ("b.a.example", default), ("localhost", default), (None, default),
                                   ("127.0.0.1", default)):
                with self.subTest(port, host=host):
                    self.assertEqual(shown(port, host), expected.read_text().strip())
        fresh = self.files.make("fresh-host", "ec", issuer="root", names="DNS:a.example,DNS:other")
        for source, target in zip(fresh, own):
            shutil.copy(source, target)
        for port in self.PORTS:
            until(lambda: shown(port, "a.example") == fresh[0].read_text().strip(), f"the host's new certificate on {port}", 20)
        self.assertEqual(server.terminate(), 0)

    def test_on_a_signal_only(self):
        server = self.start("--file-reload-secs=0")
        fresh = self.files.make("fresh", "ec", issuer="root")
        self.put(*fresh)
        # The thread sleeps until it is asked: its wait has no timeout.
        tasks = pathlib.Path(f"/proc/{server.pid}/task").iterdir()
        [task] = [task for task in tasks if (task / "comm").read_text() == "files\n"]
        until(lambda: (task / "syscall").read_text().split()[4:5] == ["0x0"], "a wait without a timeout")
        self.assertEqual(self.presented(server, "metrics"), self.files.server.read_text().strip())
        server.process.send_signal(signal.SIGHUP)
        self.wait_for(server, fresh[0])
        self.assertEqual(server.terminate(), 0)


@conch_only
class Start(unittest.TestCase):
    """Every file that will not do is named, with its flag, before anything is served."""

    @classmethod
    def setUpClass(cls):
        cls.files = certificates.shared()
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        models(cls.repository)

    def test_files_that_will_not_do(self):
        files = self.files
        text = files.write("text-https.pem", b"no PEM at all\n")
        for prefix, service in (("http", "HTTP"), ("metrics", "metrics")):
            for flags, culprit, words in (
                    (("use-ssl=true",), "server-cert", "is not given"),
                    (("use-ssl-mutual=true",), "server-cert", "is not given"),
                    (("use-ssl=true", f"server-cert={files.server}", "server-key=/no/such"), "server-key", "No such file"),
                    (("use-ssl=true", f"server-cert={text}", f"server-key={files.server_key}"), "server-cert", "no certificate in PEM"),
                    (("use-ssl=true", f"server-cert={files.server}", f"server-key={files.client_key}"), "server-key", "not the key of"),
                    (("use-ssl-mutual=true", f"server-cert={files.server}", f"server-key={files.server_key}"), "root-cert", "is not given")):
                with self.subTest(prefix=prefix, culprit=culprit, words=words), self.assertRaises(servers.StartFailed) as failed:
                    servers.Server(self.repository.path, *(f"--{prefix}-{flag}" for flag in flags), kind=KIND)
                self.assertEqual(failed.exception.code, 1)
                self.assertRegex(failed.exception.output, rf"error: .*{service} cannot be served over TLS.*--{prefix}-{culprit}")
                self.assertIn(words, failed.exception.output)

    def test_certificates_of_hosts_that_will_not_do(self):
        files = self.files
        own = f"{files.server}:{files.server_key}"
        for flags, words in (((f"--tls-host-cert=a.example:{own}",), "its subject alternative names do not include 'a.example'"),
                             ((f"--tls-host-cert=localhost:{own}", f"--tls-host-cert=Localhost:{own}"), "'localhost' has another certificate already"),
                             (("--tls-host-cert=localhost:/no/such:/no/such",), "No such file")):
            with self.subTest(words), self.assertRaises(servers.StartFailed) as failed:
                servers.Server(self.repository.path, *tls_flags("http", files), *flags, kind=KIND)
            self.assertRegex(failed.exception.output, r"error: .*HTTP cannot be served over TLS with '.*' \(--tls-host-cert\)")
            self.assertIn(words, failed.exception.output)

    def test_files_without_tls(self):
        flags = ("--http-server-cert=/no/such", "--metrics-use-ssl-mutual=false", "--tls-host-cert=a:/no/such:/no/such")
        with servers.Server(self.repository.path, *flags, kind=KIND) as server:
            server.wait_for_text("--tls-host-cert has no effect: no listener has TLS")
            self.assertEqual(server.get("/v2/health/live")[0], 200)
            self.assertEqual(server.get("/metrics", port="metrics")[0], 200)
            server.wait_for_text("the files of TLS for http have no effect without --http-use-ssl=true")
            self.assertNotIn("--metrics-use-ssl=true", server.output)


del Served, HttpsCase

if __name__ == "__main__":
    unittest.main()
