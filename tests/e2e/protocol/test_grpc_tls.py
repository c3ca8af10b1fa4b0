"""gRPC over TLS: upstream's client, both protocol versions, clients that do not belong there, and what the start refuses."""

import contextlib
import os
import queue
import random
import socket
import ssl
import threading
import time
import unittest

import grpc
import numpy as np
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException

import certificates
import server as servers
import wire
from case import KIND, ServerCase, conch_only
from repository import Repository, identity
from waiting import until


def models(repository):
    repository.model("identity", identity(batch=8))


class TlsCase(ServerCase):
    models = staticmethod(models)
    is_mutual = False

    @classmethod
    def setUpClass(cls):
        files = cls.files = certificates.shared()
        own = (f"--grpc-server-cert={files.server}", f"--grpc-server-key={files.server_key}")
        mutual = ("--grpc-use-ssl-mutual=true", f"--grpc-root-cert={files.root}")
        cls.flags = (*cls.flags, *(mutual if cls.is_mutual else ("--grpc-use-ssl=true",)), *own)
        super().setUpClass()

    def client(self, root=None, certificate=None, key=None):
        made = client.InferenceServerClient(
            f"localhost:{self.server.ports['grpc']}", ssl=True, root_certificates=str(root or self.files.root),
            private_key=key and str(key), certificate_chain=certificate and str(certificate),
            channel_args=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
                          ("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(made.close)
        return made

    def own_client(self):
        return self.client(certificate=self.files.client, key=self.files.client_key) if self.is_mutual else self.client()

    def echo(self, own, count, seed=0):
        value = np.random.default_rng(seed).random((1, count), dtype=np.float32)
        given = client.InferInput("INPUT0", value.shape, "FP32")
        given.set_data_from_numpy(value)
        np.testing.assert_array_equal(own.infer("identity", [given], client_timeout=60).as_numpy("OUTPUT0"), value)

    def assert_serves(self):
        self.echo(self.own_client(), 4)

    def assert_unavailable(self, made):
        with self.assertRaises(InferenceServerException) as failed:
            made.is_server_live(client_timeout=5)
        self.assertIn(failed.exception.status(), ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED"))

    def link(self):
        made = wire.connect(self.server, "grpc", 10)
        self.addCleanup(made.close)
        return made

    def secure(self, version=None, protocols=("h2",), with_certificate=True, own=None):
        """A connection after its handshake, as Python's TLS sees it."""
        context = ssl.create_default_context(cafile=self.files.root)
        # The root is not one of X.509's strictest.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if version:
            context.minimum_version = context.maximum_version = version
        if protocols:
            context.set_alpn_protocols(list(protocols))
        if self.is_mutual and with_certificate:
            context.load_cert_chain(*(own or (self.files.client, self.files.client_key)))
        made = context.wrap_socket(self.link(), server_hostname="localhost")
        self.addCleanup(made.close)
        return made

    def http2(self, **more):
        connection = wire.Http2.__new__(wire.Http2)
        connection.link, connection.held = self.secure(**more), b""
        return connection.start()

    def assert_ends(self, link, within):
        """Reads to the end: what came. The server, not the clock, must be what ends it."""
        link.settimeout(within)
        got = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while piece := link.recv(1 << 16):
                got += piece
        return got


class Served(TlsCase):
    """What holds with and without certificates of clients."""

    def test_upstreams_client(self):
        own = self.own_client()
        self.assertTrue(own.is_server_ready())
        # From less than a record to many times what is encrypted at once.
        for count in (1, 1000, 4096, 5000, 70_000, 4 << 20):
            self.echo(own, count, seed=count)

    def test_streams(self):
        own, answers = self.own_client(), queue.Queue()
        own.start_stream(lambda result, error: answers.put((result, error)))
        values = [np.full((1, size), size, np.float32) for size in (1, 100, 100_000, 3) * 5]
        for index, value in enumerate(values):
            given = client.InferInput("INPUT0", value.shape, "FP32")
            given.set_data_from_numpy(value)
            own.async_stream_infer("identity", [given], request_id=str(index))
        for index, value in enumerate(values):
            result, error = answers.get(timeout=30)
            self.assertIsNone(error)
            self.assertEqual(result.get_response().id, str(index))
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), value)
        own.stop_stream()

    def test_many_connections_at_once(self):
        failures = []

        def one(seed):
            try:
                self.echo(self.own_client(), 3000, seed)
            except Exception as error:  # shown below
                failures.append(error)

        threads = [threading.Thread(target=one, args=(seed,)) for seed in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_versions(self):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with self.subTest(version=version):
                connection = self.http2(version=version)
                self.assertEqual(connection.link.selected_alpn_protocol(), "h2")
                self.assertIsNotNone(connection.wait_for(wire.SETTINGS))

    def test_one_byte_per_segment(self):
        """The handshake and the records after it, in pieces as small as they get."""
        context = ssl.create_default_context(cafile=self.files.root)
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        context.set_alpn_protocols(["h2"])
        if self.is_mutual:
            context.load_cert_chain(self.files.client, self.files.client_key)
        received, to_send, link = ssl.MemoryBIO(), ssl.MemoryBIO(), self.link()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        own.write(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0))
        self.assertEqual(until_done(lambda: own.read(9))[3], wire.SETTINGS)


class Plain(Served):
    def test_other_roots(self):
        self.assert_unavailable(self.client(root=self.files.stranger))
        self.assert_serves()

    def test_plain_clients(self):
        with grpc.insecure_channel(self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            with self.assertRaises(grpc.RpcError) as failed:
                live(b"", timeout=3)
            self.assertIn(failed.exception.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))
        link = self.link()
        link.sendall(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0))
        # At most an alert: nothing of HTTP/2.
        self.assertLess(len(self.assert_ends(link, 5)), 9)
        self.assert_serves()

    def test_without_agreement_on_http2(self):
        link = self.secure(protocols=())
        self.assertEqual(self.assert_ends(link, 5), b"")
        self.assert_serves()

    @conch_only
    def test_other_protocols(self):
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.secure(protocols=("http/1.1",))
        self.assert_serves()

    def test_old_versions(self):
        hello = bytes.fromhex("16030100310100002d0301") + bytes(32) + bytes.fromhex("000006002f0035000a0100")
        link = self.link()
        link.sendall(hello)
        # An alert, or nothing; not a hello.
        self.assertIn(self.assert_ends(link, 5)[:1], (b"", b"\x15"))
        self.assert_serves()

    def test_bytes_of_no_meaning(self):
        source = random.Random(7)
        rows = [source.randbytes(source.randrange(6, 5000)) for _ in range(40)]
        # Records that begin well, of every kind and of any length.
        rows += [bytes([kind, 3, 3]) + size.to_bytes(2, "big") + source.randbytes(size)
                 for kind in (20, 21, 22, 23, 24, 0, 255) for size in (0, 1, 4, 100, 16384, 16640, 20000)]
        for row in rows:
            with self.link() as link:
                with contextlib.suppress(ConnectionError):
                    link.sendall(row)
                # What is refused at once may be gone already.
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_WR)
                self.assert_ends(link, 5)
        self.assert_serves()

    def test_bytes_of_no_meaning_after_the_handshake(self):
        source = random.Random(8)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for size in (1, 100, 5000):
                connection = self.http2(version=version)
                self.assertIsNotNone(connection.wait_for(wire.SETTINGS))
                with contextlib.suppress(ConnectionError), socket.socket(fileno=os.dup(connection.link.fileno())) as raw:
                    raw.settimeout(5)
                    raw.sendall(b"\x17\x03\x03" + size.to_bytes(2, "big") + source.randbytes(size))
                    self.assert_ends(raw, 5)
        self.assert_serves()

    @conch_only
    def test_who_is_slow_with_the_handshake(self):
        link, begun = self.link(), time.monotonic()
        with contextlib.suppress(ConnectionError):
            # It never ends what it begins, and is not silent either.
            link.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
            link.settimeout(0.2)
            while time.monotonic() - begun < 20:
                try:
                    self.assertEqual(link.recv(1), b"")
                    break
                except TimeoutError:
                    link.sendall(b"\x00")
        self.assertTrue(8 < time.monotonic() - begun < 19, "the time of a handshake, 10 s; the client gives up after 20")
        self.assert_serves()

    @conch_only
    def test_connections_leave_nothing(self):
        self.assert_serves()
        files = self.server.file_count()
        for _ in range(50):
            self.secure().close()
            with self.link() as link:
                link.sendall(b"\x16\x03\x01\x00")
        until(self.server.file_count, f"at most {files + 2} open files", accept=lambda count: count <= files + 2)


class Mutual(Served):
    is_mutual = True

    def test_without_a_certificate(self):
        self.assert_unavailable(self.client())
        self.assert_serves()

    def test_a_certificate_of_others(self):
        self.assert_unavailable(self.client(certificate=self.files.impostor, key=self.files.impostor_key))
        self.assert_serves()

    def test_certificates_of_version_one(self):
        """As openssl makes them without extensions: the root must have signed them itself, and they vouch for nobody."""
        files = self.files
        known = files.version_one("old", files.client_key, files.root, files.root_key)
        rsa = files.version_one("old-rsa", files.server_key, files.root, files.root_key)
        expired = files.version_one("expired", files.client_key, files.root, files.root_key, days=-1)
        stranger = files.version_one("old-impostor", files.impostor_key, files.stranger, files.stranger_key)
        # By somebody who calls himself as the root.
        false_root = files.path / "false-root.pem"
        files.openssl("req", "-x509", "-key", files.stranger_key, "-subj", "/CN=root", "-days", 2, "-out", false_root)
        forged = files.version_one("forged", files.client_key, false_root, files.stranger_key)
        below = files.version_one("below", files.impostor_key, known, files.client_key)
        chain = files.write("below-chain.pem", below.read_bytes() + known.read_bytes())
        good = ((known, files.client_key), (rsa, files.server_key))
        bad = ((expired, files.client_key), (stranger, files.impostor_key), (forged, files.client_key), (chain, files.impostor_key))
        for certificate, key in good:
            with self.subTest(certificate.name):
                self.echo(self.client(certificate=certificate, key=key), 4)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for own in good:
                with self.subTest(own[0].name, version=version):
                    self.assertIsNotNone(self.http2(version=version, own=own).wait_for(wire.SETTINGS))
            for own in bad:
                with self.subTest(own[0].name, version=version), contextlib.suppress(ssl.SSLError, ConnectionError):
                    link = self.secure(version=version, own=own)
                    link.sendall(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0))
                    self.assertEqual(self.assert_ends(link, 5), b"")
        self.assert_serves()

    def test_versions_without_a_certificate(self):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with self.subTest(version=version), contextlib.suppress(ssl.SSLError, ConnectionError):
                link = self.secure(version=version, with_certificate=False)
                link.sendall(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0))
                self.assertEqual(self.assert_ends(link, 5), b"")
        self.assert_serves()


class Strikes(TlsCase):
    flags = ("--grpc-http2-max-ping-strikes=1",)

    def test_pings_are_counted_in_what_is_said(self):
        connection = self.http2()
        self.assertIsNotNone(connection.wait_for(wire.SETTINGS))
        for _ in range(6):
            with contextlib.suppress(OSError):
                connection.send(wire.frame(wire.PING, 0, 0, bytes(8)))
        with contextlib.suppress(ssl.SSLError):
            while (got := connection.next()) is not None:
                if got[0] == wire.GOAWAY and b"too_many_pings" in got[3]:
                    return
        self.fail("not told")


@conch_only
class Bounds(TlsCase):
    """What connections cost; none is ended for its pings."""

    flags = ("--grpc-http2-max-ping-strikes=0",)

    def test_who_does_not_read(self):
        connections = [self.http2() for _ in range(4)]
        before = self.server.resident_bytes()
        # Each ping is answered, into a socket that nobody empties, until the server takes no more of them.
        pings = wire.frame(wire.PING, 0, 0, bytes(8)) * 5000
        for connection in connections:
            connection.link.settimeout(0.5)
            # Then it waits, or ends the connection for the flood.
            with self.assertRaises((TimeoutError, ConnectionError, ssl.SSLError)):
                for _ in range(2000):
                    connection.link.sendall(pings)
        self.assertLess(self.server.resident_bytes() - before, 4 << 20)
        self.assert_serves()

    def test_idle_connections(self):
        self.assert_serves()
        connections = [self.http2() for _ in range(20)]
        before = self.server.resident_bytes()
        connections += [self.http2() for _ in range(400)]
        for connection in connections:
            self.assertIsNotNone(connection.wait_for(wire.SETTINGS))
            # The answer to a ping says that what was sent before it has been read.
            connection.send(wire.frame(wire.SETTINGS, 1, 0), wire.frame(wire.PING, 0, 0, bytes(8)))
        for connection in connections:
            self.assertIsNotNone(connection.wait_for(wire.PING))
        each = (self.server.resident_bytes() - before) / 400
        # Some 8 KB more than without TLS.
        self.assertLess(each, 24_000, "bytes per connection")
        self.assert_serves()


@conch_only
class Start(unittest.TestCase):
    """Every file that will not do is named, with its flag, before anything is served."""

    @classmethod
    def setUpClass(cls):
        cls.files = certificates.shared()
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        models(cls.repository)

    def refusal(self, *flags):
        with self.assertRaises(servers.StartFailed) as failed:
            servers.Server(self.repository.path, *flags, kind=KIND)
        self.assertEqual(failed.exception.code, 1)
        return failed.exception.output

    def test_files_that_will_not_do(self):
        files = self.files
        text, encrypted = files.write("text.pem", b"no PEM at all\n"), files.path / "encrypted.key"
        files.openssl("pkcs8", "-topk8", "-in", files.server_key, "-out", encrypted, "-passout", "pass:1234")
        broken = files.write("broken.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        missing, good, key = files.path / "missing.pem", files.server, files.server_key
        for certificate, own, root, culprit, words in (
                (None, key, None, "--grpc-server-cert", "is not given"),
                (good, None, None, "--grpc-server-key", "is not given"),
                (missing, key, None, "--grpc-server-cert", "No such file"),
                (good, missing, None, "--grpc-server-key", "No such file"),
                (files.path, key, None, "--grpc-server-cert", "Is a directory"),
                (text, key, None, "--grpc-server-cert", "no certificate in PEM"),
                (broken, key, None, "--grpc-server-cert", "broken.pem"),
                (good, text, None, "--grpc-server-key", "no private key in PEM"),
                (good, encrypted, None, "--grpc-server-key", "encrypted"),
                (good, good, None, "--grpc-server-key", "no private key in PEM"),
                (good, files.client_key, None, "--grpc-server-key", "not the key of the certificate"),
                (good, key, "", "--grpc-root-cert", "is not given"),
                (good, key, missing, "--grpc-root-cert", "No such file"),
                (good, key, text, "--grpc-root-cert", "no certificate in PEM"),
                (good, key, broken, "--grpc-root-cert", "broken.pem")):
            with self.subTest(culprit=culprit, words=words):
                flags = [f"--grpc-server-cert={certificate}"] if certificate else []
                flags += [f"--grpc-server-key={own}"] if own else []
                flags += ["--grpc-use-ssl=true"] if root is None else ["--grpc-use-ssl-mutual=true"]
                flags += [f"--grpc-root-cert={root}"] if root else []
                output = self.refusal(*flags)
                self.assertRegex(output, rf"error: .*gRPC cannot be served over TLS.*{culprit}.*")
                self.assertIn(words, output)

    def test_mutual_switches_tls_on_even_as_false(self):
        self.assertIn("--grpc-server-cert", self.refusal("--grpc-use-ssl-mutual=false"))

    def test_kinds_of_keys(self):
        files = self.files
        rsa, ec = files.path / "rsa.key", files.path / "ec.key"
        files.openssl("rsa", "-in", files.server_key, "-traditional", "-out", rsa)
        files.openssl("ec", "-in", files.client_key, "-out", ec)
        self.assertIn("BEGIN RSA PRIVATE KEY", rsa.read_text())
        self.assertIn("BEGIN EC PRIVATE KEY", ec.read_text())
        # Of version 1, as openssl makes them unless told otherwise, and with the root behind it.
        request, old = files.path / "old.csr", files.path / "old.pem"
        files.openssl("req", "-new", "-key", rsa, "-subj", "/CN=localhost", "-out", request)
        files.openssl("x509", "-req", "-in", request, "-CA", files.root, "-CAkey", files.root_key, "-set_serial", 1, "-days", 2,
                      "-out", old)
        chain = files.write("chain.pem", files.client.read_bytes() + files.root.read_bytes())
        for certificate, key in ((files.server, rsa), (chain, ec), (old, rsa)):
            with self.subTest(key=key, certificate=certificate), servers.Server(
                    self.repository.path, "--grpc-use-ssl=true", f"--grpc-server-cert={certificate}",
                    f"--grpc-server-key={key}", kind=KIND) as server:
                credentials = grpc.ssl_channel_credentials(files.root.read_bytes())
                with grpc.secure_channel(f"localhost:{server.ports['grpc']}", credentials) as channel:
                    live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                    self.assertEqual(live(b"", timeout=10), b"\x08\x01")

    def test_files_are_not_read_without_tls(self):
        with servers.Server(self.repository.path, "--grpc-use-ssl=false", "--grpc-server-cert=/no/such", kind=KIND) as server:
            self.assertEqual(server.get("/v2/health/live")[0], 200)


del Served
