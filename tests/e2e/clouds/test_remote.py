"""Repositories in object stores, against a store of ours that can be told to fail: all modes, all three protocols, broken connections."""

import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import certificates
import server as servers
from bucket import Bucket
from case import ServerCase, conch_only
from repository import Repository, identity
from test_control import Asking, configuration, parameters
from waiting import until

LIBRARY = servers.built("libtritonserver.so")
EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
# No identity of the machine or the user that runs the tests.
NOBODY = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
# Of a store that nobody listens for any more.
REFUSED = "Connection refused"


class Mount:
    """The directory that the server keeps its copies in."""

    VARIABLES = ("TRITON_AWS_MOUNT_DIRECTORY", "TRITON_GCS_MOUNT_DIRECTORY", "TRITON_AZURE_MOUNT_DIRECTORY")

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="conch-mount-")
        self.path = pathlib.Path(self._directory.name)
        self.environment = dict.fromkeys(self.VARIABLES, str(self.path))

    def copies(self, name):
        """The copies of a model that there are now."""
        return sorted(self.path.glob(f"*/{name}"))

    def files(self, name):
        (copy,) = self.copies(name)
        return {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}

    def close(self):
        self._directory.cleanup()


def environment(mount, **more):
    return {**NOBODY, **KEYS, **mount.environment, **more}


def repository(*names, **files):
    made = Repository()
    for name in names:
        made.model(name, identity(batch=8), files=files)
    return made


class RemoteCase(Asking, ServerCase):
    """A server for the models of one bucket, by S3 unless `uri` says otherwise."""

    tls = None
    more_environment = {}

    @classmethod
    def setUpClass(cls):
        cls.bucket = Bucket(cls.tls() if cls.tls else None)
        cls.addClassCleanup(cls.bucket.close)
        cls.mount = Mount()
        cls.addClassCleanup(cls.mount.close)
        cls.fill()
        cls.environment = environment(cls.mount, **cls.more_environment)
        cls.repository_path = cls.uri()
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        left = list(cls.mount.path.iterdir())
        if left:
            raise AssertionError(f"the server left {left}")

    @classmethod
    def uri(cls):
        return cls.bucket.s3("models")

    @classmethod
    def fill(cls):
        raise NotImplementedError

    def rows(self):
        status, reply = self.server.post_json("/v2/repository/index", "")
        self.assertEqual(status, 200, reply)
        return json.loads(reply)

    def wait_for(self, name, state, reason=None):
        def is_so():
            return any(row["name"] == name and row.get("state") == state and (reason is None or row.get("reason") == reason) for row in self.rows())
        until(is_so, lambda: f"{name} is not {state}: {self.rows()}\n{self.server.output[-3000:]}")

    def serves(self, name, within=20):
        until(lambda: self.is_ready(name), lambda: f"{name} is not ready: {self.rows()}\n{self.server.output[-3000:]}", within)
        self.assert_serves(name)


class AllModes:
    """What holds for each kind of store, from the start to the end."""

    flags = POLL

    @classmethod
    def fill(cls):
        models = repository("first", "second", **{"1/data": b"x" * 100, "assets/deep/er": b"", "labels.txt": b"a\n"})
        models.model("empty", identity(batch=8), versions=("3",))
        cls.bucket.put("models", models)
        models.close()
        cls.bucket["models/readme.txt"] = b"no model"
        cls.bucket["other/ignored/config.pbtxt"] = b""

    def test_life(self):
        # Loaded at the start, from a complete copy that nobody else may look into.
        for name in ("first", "second", "empty"):
            self.assert_serves(name)
        files = self.mount.files("first")
        self.assertEqual(sorted(files), ["1/data", "assets/deep/er", "config.pbtxt", "labels.txt"])
        self.assertEqual(files["1/data"], b"x" * 100)
        (copy,) = self.mount.copies("first")
        self.assertEqual(copy.parent.stat().st_mode & 0o777, 0o700)
        self.assertTrue((self.mount.copies("empty")[0] / "3").is_dir(), "directories without files are there, too")
        self.assertEqual(sorted(row["name"] for row in self.rows()), ["empty", "first", "second"])
        # Polls that find nothing new download nothing.
        self.bucket.forget()
        until(lambda: self.bucket.requests.count((None, "models/first/")) >= 3, "no polls")
        self.assertEqual(self.bucket.downloads(), [])
        # A new one, from one poll to the next.
        added = repository("third")
        self.bucket.put("models", added)
        added.close()
        self.serves("third")
        # The same size and another tag: one that changed, and that one only.
        before = self.server.statistics("first")
        self.bucket.forget()
        self.bucket["models/first/1/data"] = b"y" * 100
        until(lambda: [path.read_bytes() for path in self.mount.path.glob("*/first/1/data")] == [b"y" * 100], "the change does not arrive")
        self.assertEqual({key.split("/")[1] for key, _ in self.bucket.downloads()}, {"first"})
        self.serves("first")
        self.assertGreaterEqual(self.server.statistics("first")["inference_count"], before["inference_count"])
        # A broken one leaves what serves, and is downloaded once.
        config = self.bucket.objects["models/second/config.pbtxt"][0]
        self.bucket.forget()
        self.bucket["models/second/config.pbtxt"] = b"no_such_field: 1"
        self.server.wait_for_line("Poll failed for model directory 'second'")
        self.assert_serves("second")
        asked = len(self.bucket.requests)
        until(lambda: self.bucket.requests[asked:].count((None, "models/second/")) >= 3, "no polls")
        self.assertEqual(len(self.bucket.downloads("second/config.pbtxt")), 1)
        self.bucket["models/second/config.pbtxt"] = config
        until(lambda: len(self.bucket.downloads("second/config.pbtxt")) == 2, "the repaired one is not read")
        self.serves("second")
        # Gone there, gone here.
        self.bucket.remove("models/first/")
        until(lambda: not self.is_ready("first") and not self.mount.copies("first"), lambda: f"{self.rows()} {self.mount.copies('first')}")
        self.assertNotIn("first", [row["name"] for row in self.rows()])
        self.assert_serves("second")


@conch_only
class S3(AllModes, RemoteCase):
    """s3://http://host:port/bucket/path, signed with the keys of the environment."""

    def setUp(self):
        self.bucket.keys = {"key"}


@conch_only
class S3OverTls(AllModes, RemoteCase):
    """s3://https://host:port/bucket/path, with an authority of our own."""

    @classmethod
    def tls(cls):
        made = certificates.shared()
        cls.more_environment = {"SSL_CERT_FILE": str(made.root)}
        return made.server, made.server_key


@conch_only
class Gcs(AllModes, RemoteCase):
    """gs://, as nobody."""

    @classmethod
    def uri(cls):
        return cls.bucket.gs("models")


@conch_only
class GcsByVariable(RemoteCase):
    """gs://bucket with the emulator's variable of Google's own libraries; the whole bucket is the repository."""

    @classmethod
    def fill(cls):
        models = repository("m")
        cls.bucket.put("", models)
        models.close()
        cls.more_environment = {"CLOUD_STORAGE_EMULATOR_ENDPOINT": f"http://127.0.0.1:{cls.bucket.port}"}

    @classmethod
    def uri(cls):
        return f"gs://{cls.bucket.NAME}"

    def test_serves(self):
        self.assert_serves("m")


@conch_only
class Azure(AllModes, RemoteCase):
    """as://, as nobody."""

    @classmethod
    def uri(cls):
        return cls.bucket.az("models")


@conch_only
class Explicit(RemoteCase):
    flags = (EXPLICIT, "--load-model=start", "--model-load-thread-count=2")

    @classmethod
    def fill(cls):
        models = repository("start", "m", "gated", "evil", "both", "vanishing", "restless")
        models.model("weights", identity(batch=8), files={"1/weights": cls.weights()})
        cls.bucket.put("models", models)
        models.close()
        cls.bucket["models/both/1/x"] = b"file"
        cls.bucket["models/both/1/x/y"] = b"below"

    @staticmethod
    def weights():
        return random.Random(1).randbytes(40 << 20)

    def setUp(self):
        self.bucket.forget()
        self.addCleanup(self.restore)

    def restore(self):
        self.bucket.breaks.clear()
        self.bucket.always_breaks_at = self.bucket.before_object = None
        self.bucket.claimed_sizes.clear()
        self.bucket.padding = 0
        self.bucket.gate.set()

    def failed(self, name, *words):
        """A load that fails leaves no directory, and says why in the log."""
        start = len(self.server.lines)
        status, message = self.load(name)
        self.assertEqual((status, message), (500, f"failed to load '{name}', failed to poll from model repository"))
        def said():
            return "\n".join(self.server.lines[start:])
        until(lambda: all(word in said() for word in words), lambda: f"{words} are not in {said()!r}")
        self.assertEqual(self.mount.copies(name), [])
        self.assertFalse(self.is_ready(name))

    def test_loads_and_unloads(self):
        self.assert_serves("start")
        self.assertEqual(self.bucket.downloads("models/m/config.pbtxt"), [])
        self.assertEqual(self.load("m"), (200, ""))
        self.assert_serves("m")
        self.assertEqual(len(self.mount.copies("m")), 1)
        self.bucket.forget()
        self.assertEqual(self.load("m"), (200, ""))
        # Another configuration for the same files.
        self.assertEqual(self.load("m", parameters(config=configuration("m", max_batch_size=3))), (200, ""))
        self.assertEqual(self.server.get_json("/v2/models/m/config")["max_batch_size"], 3)
        self.assertEqual(self.bucket.downloads(), [], "nothing has changed there")
        self.assertEqual(self.load("m"), (200, ""))
        self.assertEqual(self.server.get_json("/v2/models/m/config")["max_batch_size"], 3, "it stays until the files change")
        self.assertEqual(self.load("m", parameters(config=configuration("m", max_batch_size=8))), (200, ""))
        self.assertEqual(self.server.get_json("/v2/models/m/config")["max_batch_size"], 8)
        self.assertEqual(self.unload("m"), (200, ""))
        self.wait_for("m", "UNAVAILABLE", "unloaded")
        until(lambda: not self.mount.copies("m"), "the copy stays")
        self.assertEqual(self.load("absent"), (500, "failed to load 'absent', failed to poll from model repository"))

    def test_broken_connections_are_resumed(self):
        # Three parts; each of the first connections breaks somewhere.
        self.bucket.breaks = [1, 1000, 5 << 20, 0, 15 << 20, 7, 1 << 20]
        self.assertEqual(self.load("weights"), (200, ""))
        digest = hashlib.sha256(self.mount.files("weights")["1/weights"]).hexdigest()
        self.assertEqual(digest, hashlib.sha256(self.weights()).hexdigest())
        spans = [span for _, span in self.bucket.downloads("1/weights")]
        starts = sorted(int(re.fullmatch(r"bytes=(\d+)-\d+", span)[1]) for span in spans)
        self.assertGreater(len(starts), 3)
        self.assertTrue(any(start % (16 << 20) for start in starts), f"nothing was resumed: {starts}")
        self.assertEqual(self.unload("weights"), (200, ""))

    def test_what_never_works_is_given_up(self):
        self.bucket.always_breaks_at = 1
        self.failed("gated", "Failed to get object at", "due to exception: RequestFailed")
        # One byte each time, and still bounded.
        self.assertLess(len(self.bucket.downloads("gated/config.pbtxt")), 30)

    def test_progress_shows(self):
        self.bucket.gate.clear()
        loading = threading.Thread(target=self.load, args=("gated",))
        loading.start()
        try:
            def is_shown():
                rows = [row for row in self.rows() if row["name"] == "gated"]
                return len(rows) == 1 and rows[0].get("state") == "LOADING" and re.fullmatch(
                    r"downloading: \d of 2 files, [1-9]\d* of \d+ bytes", rows[0].get("reason", ""))
            until(is_shown, lambda: str(self.rows()))
            self.assertEqual(self.server.get("/v2/health/ready")[0], 400)
            # Others go on meanwhile.
            self.assert_serves("start")
            self.assertEqual(self.mount.copies("gated"), [], "nothing has its name before it is complete")
        finally:
            self.bucket.gate.set()
            loading.join()
        self.wait_for("gated", "READY")
        self.assertEqual(self.server.get("/v2/health/ready")[0], 200)
        # A successor shows beside what serves.
        self.bucket["models/gated/labels.txt"] = b"new"
        self.bucket.gate.clear()
        loading = threading.Thread(target=self.load, args=("gated",))
        loading.start()
        try:
            until(lambda: any(row.get("reason", "").startswith("successor is downloading: ") and row["state"] == "READY"
                                   for row in self.rows()), lambda: str(self.rows()))
            self.assert_serves("gated")
        finally:
            self.bucket.gate.set()
            loading.join()
        until(lambda: not any("successor" in row.get("reason", "") for row in self.rows()), lambda: str(self.rows()))
        self.assertEqual(self.unload("gated"), (200, ""))

    def test_names_that_lead_elsewhere(self):
        outside = self.mount.path.parent / "conch-was-here"
        for name in (f"../../{outside.name}", "..", "a/../../b", f"/{outside}", "a//b"):
            with self.subTest(name=name):
                key = f"models/evil/{name}"
                self.bucket[key] = b"x"
                try:
                    self.failed("evil", "evil")
                finally:
                    del self.bucket[key]
                self.assertFalse(outside.exists())
        self.failed("both", "is the name of an object and of a directory")
        # Only such models are spoilt.
        self.assertEqual(self.load("evil"), (200, ""))
        self.assertEqual(self.unload("evil"), (200, ""))

    def test_a_disk_that_is_too_small(self):
        self.bucket.claimed_sizes["restless/config.pbtxt"] = 1 << 50
        self.failed("restless", "there is not enough space for", f"it has {1 << 50} bytes")
        self.assertEqual(self.bucket.downloads(), [])

    def test_a_disk_that_fills_up_meanwhile(self):
        """Stood in for by the largest size that the process's files may have."""
        pid, kind = self.server.process.pid, resource.RLIMIT_FSIZE
        soft, hard = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (10 << 20, hard))
        try:
            self.failed("weights", "failed to write", "/1/weights': File too large")
            self.assertEqual(list(self.mount.path.glob("*/.incoming")), [])
            self.assert_serves("start")
            self.assertEqual(self.load("m"), (200, ""))
        finally:
            resource.prlimit(pid, kind, (soft, hard))
        self.assertEqual(self.load("weights"), (200, ""))
        self.assertEqual(self.mount.files("weights")["1/weights"], self.weights())
        for name in ("weights", "m"):
            self.assertEqual(self.unload(name), (200, ""))

    def test_a_listing_that_is_too_large(self):
        self.bucket.padding = 65 << 20
        self.failed("m", "a reply of more than 67108864 bytes")
        self.bucket.padding = 0
        self.assertEqual(self.load("m"), (200, ""))
        self.assertEqual(self.unload("m"), (200, ""))

    def test_another_size_than_was_said(self):
        for size in (1, 100_000):
            with self.subTest(size=size):
                self.bucket.claimed_sizes["restless/config.pbtxt"] = size
                self.failed("restless", "'config.pbtxt' changed while it was downloaded")

    def test_what_changes_meanwhile(self):
        key = "models/vanishing/config.pbtxt"
        kept = self.bucket.objects[key][0]

        def change(_):
            self.bucket[key] = kept

        def remove(_):
            self.bucket.before_object = None
            del self.bucket[key]

        for happening in (change, remove):
            self.bucket.before_object = happening
            self.failed("vanishing", "'config.pbtxt' changed while it was downloaded")
            self.bucket.before_object = None
        self.bucket[key] = kept
        self.assertEqual(self.load("vanishing"), (200, ""))
        self.assertEqual(self.unload("vanishing"), (200, ""))


@conch_only
class ManyObjects(RemoteCase):
    """Listings of several pages, names of all kinds."""

    flags = (EXPLICIT,)
    NAMES = ("plain", "with space", "größe", "a+b", "100%", "a&b<c>", "quote'\"", "q?x=1#y", "[x]~!*()", "%2e%2e", ".hidden", "_%20_")

    @classmethod
    def fill(cls):
        cls.bucket.page = 7
        files = {f"1/{name}": name.encode() for name in cls.NAMES} | {f"many/{index}": str(index).encode() for index in range(60)}
        models = repository("m", **files)
        for index in range(20):
            models.model(f"other-{index}", identity())
        cls.bucket.put("models", models)
        models.close()

    def test_all_arrive(self):
        self.assertEqual(len(self.rows()), 21)
        self.assertEqual(self.load("m"), (200, ""))
        files = self.mount.files("m")
        for name in self.NAMES:
            self.assertEqual(files[f"1/{name}"], name.encode())
        self.assertEqual(len([name for name in files if name.startswith("many/")]), 60)


@conch_only
class Credentials(unittest.TestCase):
    """The credential file: by the longest name, and read again when access fails."""

    def setUp(self):
        self.bucket = Bucket()
        self.addCleanup(self.bucket.close)
        self.mount = Mount()
        self.addCleanup(self.mount.close)
        models = repository("m", "n")
        self.bucket.put("models", models)
        self.bucket.put("more", models)
        models.close()
        self.file = self.mount.path.parent / f"{self.mount.path.name}.json"
        self.addCleanup(self.file.unlink, missing_ok=True)

    def write(self, **entries):
        self.file.write_text(json.dumps({"s3": {name: {"key_id": key, "secret_key": "s"} for name, key in entries.items()}}))

    def start(self, *flags, **more):
        return servers.Server(self.bucket.s3("models"), *flags, environment=environment(
            self.mount, TRITON_CLOUD_CREDENTIAL_PATH=str(self.file)), **more)

    def test_the_longest_name(self):
        self.bucket.keys = {"right"}
        self.write(**{"": "wrong", self.bucket.s3(): "wrong", self.bucket.s3("models"): "right", self.bucket.s3("modelsuite"): "wrong"})
        with self.start() as server:
            self.assertEqual(server.get("/v2/models/m/ready")[0], 200)

    def test_a_new_key(self):
        self.bucket.keys = {"old"}
        self.write(**{"": "old"})
        with self.start(EXPLICIT) as server:
            self.assertEqual(server.request("POST", "/v2/repository/models/m/load")[0], 200)
            self.bucket.keys = {"new"}
            status, _, _ = server.request("POST", "/v2/repository/models/n/load")
            self.assertEqual(status, 500)
            server.wait_for_text("AccessDenied, error message: Access Denied")
            self.write(**{"": "new"})
            self.assertEqual(server.request("POST", "/v2/repository/models/n/load")[0], 200)
            server.wait_for_line("cloud credentials have changed")

    def test_no_name(self):
        self.write(**{"s3://elsewhere": "key"})
        with self.assertRaises(servers.StartFailed) as failed:
            self.start()
        self.assertIn(f"Cannot match credential for path  {self.bucket.s3('models')}", failed.exception.output)
        self.assertEqual(failed.exception.code, 1)

    def test_no_file(self):
        for contents, words in ((None, "failed to open text file for read"), ("{", "failed to read cloud credentials: EOF")):
            self.file.write_text(contents) if contents else self.file.unlink(missing_ok=True)
            with self.assertRaises(servers.StartFailed) as failed:
                self.start()
            self.assertIn(words, failed.exception.output)


@conch_only
class Trouble(unittest.TestCase):
    """Stores that are not there, or do not answer."""

    def setUp(self):
        self.mount = Mount()
        self.addCleanup(self.mount.close)

    def failed_start(self, uri, *words, **more):
        with self.assertRaises(servers.StartFailed) as failed:
            servers.Server(uri, environment=environment(self.mount), ready_within=90, **more)
        self.assertEqual(failed.exception.code, 1)
        for word in words:
            self.assertIn(word, failed.exception.output)

    def test_nobody_listens(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            host = f"127.0.0.1:{closed.getsockname()[1]}"
            for uri in (f"s3://{host}/bucket/models", f"gs://http://{host}/bucket", f"as://http://{host}/account/bucket"):
                with self.subTest(uri=uri):
                    self.failed_start(uri, f"failed to poll model repository '{uri}'", REFUSED, "failed to load all models")

    def test_nobody_answers(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(64)
            uri = f"s3://127.0.0.1:{silent.getsockname()[1]}/bucket/models"
            self.failed_start(uri, f"failed to poll model repository '{uri}'", "no answer for 10 s")

    def test_no_such_host_or_bucket(self):
        self.failed_start("s3://no-such-host.invalid:80/bucket", "failed to poll model repository")
        with Bucket() as bucket:
            self.failed_start(f"s3://127.0.0.1:{bucket.port}/absent", "NoSuchBucket, error message: The specified bucket does not exist")
        for uri in ("s3://", "as://account"):
            self.failed_start(uri, "Invalid")

    def test_a_store_that_goes_and_comes_back(self):
        bucket = Bucket()
        self.addCleanup(bucket.close)
        models = repository("m")
        self.addCleanup(models.close)
        bucket.put("models", models)
        with servers.Server(bucket.s3("models"), *POLL, environment=environment(self.mount)) as server:
            bucket.keys = {"other"}
            server.wait_for_line("failed to poll model repository .*AccessDenied")
            self.assertEqual(server.get("/v2/models/m/ready")[0], 200)
            bucket.put("models", models.model("n", identity(batch=8)))
            bucket.keys = None
            until(lambda: server.get("/v2/models/n/ready")[0] == 200, lambda: server.output[-2000:])

    def test_an_end_during_a_download(self):
        bucket = Bucket()
        self.addCleanup(bucket.close)
        models = repository("m")
        self.addCleanup(models.close)
        bucket.put("models", models)
        with servers.Server(bucket.s3("models"), EXPLICIT, environment=environment(self.mount)) as server:
            bucket.gate.clear()
            connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=30)
            connection.request("POST", "/v2/repository/models/m/load")
            until(lambda: bucket.downloads(), "no download")
            began = time.monotonic()
            self.assertEqual(server.terminate(), 0)
            self.assertLess(time.monotonic() - began, 9, "shorter than any patience with the store")
            connection.close()
        self.assertEqual(list(self.mount.path.iterdir()), [])

    def test_two_kinds_of_repositories(self):
        """One that is local, one that is not, and namespaces to tell their models apart."""
        bucket = Bucket()
        self.addCleanup(bucket.close)
        models = repository("m", "remote")
        self.addCleanup(models.close)
        bucket.put("models", models)
        local = repository("m", "local")
        self.addCleanup(local.close)
        with servers.Server([local, bucket.s3("models")], "--model-namespacing=true", environment=environment(self.mount)) as server:
            status, reply = server.post_json("/v2/repository/index", "")
            self.assertEqual(status, 200)
            ready = [row["name"] for row in json.loads(reply) if row["state"] == "READY"]
            self.assertEqual(len(ready), 4, reply)
            for name in ("local", "remote"):
                self.assertEqual(server.get(f"/v2/models/{name}/ready")[0], 200)
        with self.assertRaises(servers.StartFailed) as failed:
            servers.Server([local, bucket.s3("models")], environment=environment(self.mount))
        self.assertIn("not unique across all model repositories", failed.exception.output)


@conch_only
@unittest.skipUnless(LIBRARY.exists(), f"{LIBRARY.name} is not built in profile {servers.PROFILE}")
@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
class Embedded(unittest.TestCase):
    """The C API takes URIs, at the start and by registration."""

    def test_repositories_by_uri(self):
        with Bucket() as bucket, repository("identity") as first, repository("second") as second, tempfile.TemporaryDirectory() as folder:
            bucket.put("first", first)
            bucket.put("other", second)
            mount = Mount()
            self.addCleanup(mount.close)
            program = pathlib.Path(folder) / "remote"
            subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I", str(servers.ROOT / "src/abi/include"),
                            str(servers.ROOT / "tests/capi/remote.c"), "-o", str(program), "-ldl"], check=True, timeout=60)
            done = subprocess.run([program, LIBRARY, bucket.s3("first"), servers.backend_directory(), bucket.gs("other"), bucket.s3("empty")],
                                  capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment(mount)})
            self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr[-3000:])
            self.assertEqual(list(mount.path.iterdir()), [])
