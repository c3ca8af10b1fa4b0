"""Remote repositories against emulators that others wrote: moto for S3, with its checks of signatures, and Azurite for Azure."""

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse
from email.utils import formatdate

import server as servers
from case import conch_only
from repository import Repository, identity
from test_remote import EXPLICIT, NOBODY, POLL, Mount
from waiting import until

EMULATORS = servers.CACHE / "emulators"
MOTO = EMULATORS / "moto/bin/moto_server"
AZURITE = EMULATORS / "azurite/node_modules/azurite/dist/src/blob/main.js"


class EmulatorCase(unittest.TestCase):
    """Starts one emulator for the class; each test has a bucket of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="conch-emulator-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.port = servers.free_port()
        log = open(pathlib.Path(cls.folder.name) / "log", "wb")
        cls.addClassCleanup(log.close)
        cls.process = subprocess.Popen(cls.command(), stdout=log, stderr=log, cwd=cls.folder.name, env={**os.environ, **cls.variables()})
        cls.addClassCleanup(cls.stop)
        told = (pathlib.Path(cls.folder.name) / "log").read_text

        def answers():
            if cls.process.poll() is not None:
                raise AssertionError(told())
            with contextlib.suppress(OSError):
                cls.ask("GET", "/")
                return True
            return False
        until(answers, lambda: f"an answer of the emulator: {told()}", 60)

    @classmethod
    def stop(cls):
        cls.process.kill()
        cls.process.wait()

    @classmethod
    def variables(cls):
        return {}

    @classmethod
    def ask(cls, method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", cls.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def setUp(self):
        self.mount = Mount()
        self.addCleanup(self.mount.close)
        # Letters only: Google's client writes anything else as a code, which moto does not read in the name of a bucket.
        self.bucket = re.sub("[^a-z]", "", self._testMethodName)
        self.make_bucket()

    def put_models(self, prefix, *names, **files):
        with Repository() as repository:
            for name in names:
                repository.model(name, identity(batch=8), files={"1/weights": b"w" * 1000, **files})
            for path in sorted(repository.path.rglob("*")):
                if path.is_file():
                    self.put(f"{prefix}/{path.relative_to(repository.path)}", path.read_bytes())

    def start(self, uri, *flags, **environment):
        return servers.Server(uri, *flags, environment={**NOBODY, **self.mount.environment, **environment})

    def life(self, uri, **environment):
        """At the start, after a change, an addition and a removal."""
        self.put_models("models", "first", "second")
        with self.start(uri, *POLL, **environment) as server:
            def ready(name):
                return server.get(f"/v2/models/{name}/ready")[0] == 200
            self.assertTrue(ready("first") and ready("second"))
            self.assertEqual(self.mount.files("first")["1/weights"], b"w" * 1000)
            # Large enough for several ranges.
            weights = os.urandom(33 << 20)
            self.put("models/first/1/weights", weights)
            until(lambda: [path.read_bytes() for path in self.mount.path.glob("*/first/1/weights")] == [weights], lambda: server.output[-3000:], 60)
            self.put_models("models", "third")
            until(lambda: ready("third"), lambda: server.output[-3000:])
            for name in ("config.pbtxt", "1/weights"):
                self.delete(f"models/second/{name}")
            until(lambda: not ready("second") and not self.mount.copies("second"), lambda: server.output[-3000:])
            self.assertTrue(ready("first") and ready("third"))
        self.assertEqual(list(self.mount.path.iterdir()), [])


@conch_only
@unittest.skipUnless(MOTO.exists(), "moto is not installed: scripts/fetch-emulators")
class Moto(EmulatorCase):
    """S3. Tests that check signatures come last (`test_z…`): the emulator cannot forget that it is to check."""

    @classmethod
    def command(cls):
        return [str(MOTO), "-H", "127.0.0.1", "-p", str(cls.port)]

    @classmethod
    def variables(cls):
        return {"INITIAL_NO_AUTH_ACTION_COUNT": "1000000"}

    @staticmethod
    def somebody(service):
        """A signature that nobody checks yet."""
        return {"authorization": f"AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=x"}

    def write(self, method, path, contents=b"", expected=200):
        status, reply = self.ask(method, path, contents, {**self.somebody("s3"), "x-amz-acl": "public-read"})
        self.assertEqual(status, expected, reply)

    def make_bucket(self):
        self.write("PUT", f"/{self.bucket}")

    def put(self, key, contents):
        self.write("PUT", f"/{self.bucket}/{key}", contents)

    def delete(self, key):
        self.write("DELETE", f"/{self.bucket}/{key}", expected=204)

    def uri(self, path="models"):
        return f"s3://127.0.0.1:{self.port}/{self.bucket}/{path}"

    def test_life(self):
        self.life(self.uri(), AWS_ACCESS_KEY_ID="any", AWS_SECRET_ACCESS_KEY="any", AWS_DEFAULT_REGION="eu-west-1")

    def test_nobody(self):
        self.put_models("models", "m")
        with self.start(self.uri()) as server:
            self.assertEqual(server.get("/v2/models/m/ready")[0], 200)

    def test_google(self):
        """The XML interface of Google's store is that of S3, as far as readers go."""
        self.life(f"gs://http://127.0.0.1:{self.port}/{self.bucket}/models")

    def test_marked_directories_and_names(self):
        self.put("models/m/config.pbtxt", identity(batch=8).encode())
        for key in ("models/", "models/m/", "models/m/1/", "models/m/2/deep/"):
            self.put(key, b"")
        for name in ("with%20space", "gr%C3%B6%C3%9Fe", "a%2Bb", "100%25"):
            self.put(f"models/m/1/{name}", urllib.parse.unquote(name).encode())
        self.put("models/m/1/empty", b"")
        with self.start(self.uri(), EXPLICIT) as server:
            self.assertEqual(server.request("POST", "/v2/repository/models/m/load")[0], 200)
            files = self.mount.files("m")
            for name in ("with space", "größe", "a+b", "100%"):
                self.assertEqual(files[f"1/{name}"], name.encode())
            self.assertEqual(files["1/empty"], b"")
            self.assertTrue((self.mount.copies("m")[0] / "2/deep").is_dir())

    def test_z_signatures(self):
        """By the emulator's IAM: only who signs with the right key may read."""
        self.put_models("models", "m")
        headers = {**self.somebody("iam"), "content-type": "application/x-www-form-urlencoded"}

        def iam(action, **values):
            body = urllib.parse.urlencode({"Action": action, "Version": "2010-05-08", "UserName": "reader", **values})
            status, reply = self.ask("POST", "/", body.encode(), headers)
            self.assertEqual(status, 200, reply)
            return reply.decode()

        iam("CreateUser")
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam("PutUserPolicy", PolicyName="read", PolicyDocument=json.dumps(policy))
        made = iam("CreateAccessKey")
        key, secret = (re.search(f"<{name}>(.*?)</{name}>", made)[1] for name in ("AccessKeyId", "SecretAccessKey"))
        # A user that may assume the role that may read.
        iam("CreateUser", UserName="caller")
        assume = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"}]}
        iam("PutUserPolicy", UserName="caller", PolicyName="assume", PolicyDocument=json.dumps(assume))
        made = iam("CreateAccessKey", UserName="caller")
        caller_key, caller_secret = (re.search(f"<{name}>(.*?)</{name}>", made)[1] for name in ("AccessKeyId", "SecretAccessKey"))
        trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}]}
        role = re.search("<Arn>(.*?)</Arn>", iam("CreateRole", RoleName="role", AssumeRolePolicyDocument=json.dumps(trust)))[1]
        iam("PutRolePolicy", RoleName="role", PolicyName="read", PolicyDocument=json.dumps(policy))
        self.assertEqual(self.ask("POST", "/moto-api/reset-auth", b"0")[0], 200)
        try:
            with self.start(self.uri(), AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret) as server:
                self.assertEqual(server.get("/v2/models/m/ready")[0], 200)
            with self.assertRaises(servers.StartFailed) as failed:
                self.start(self.uri(), AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY="wrong")
            self.assertIn("due to exception: SignatureDoesNotMatch", failed.exception.output)
            # From the profile of a file, by name.
            profiles = pathlib.Path(self.folder.name) / "profiles"
            profiles.write_text(f"[reader]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
            with self.start(self.uri(), AWS_PROFILE="reader", AWS_SHARED_CREDENTIALS_FILE=str(profiles)) as server:
                self.assertEqual(server.get("/v2/models/m/ready")[0], 200)
            # From a role that its profile assumes: both the request for it and those by it are signed.
            emulator = f"http://127.0.0.1:{self.port}"
            for secret, is_right in ((caller_secret, True), ("wrong", False)):
                profiles.write_text(f"[caller]\naws_access_key_id = {caller_key}\naws_secret_access_key = {secret}\n"
                                    f"[role]\nrole_arn = {role}\nsource_profile = caller\n")
                environment = {"AWS_PROFILE": "role", "AWS_SHARED_CREDENTIALS_FILE": str(profiles), "AWS_ENDPOINT_URL_STS": emulator}
                if is_right:
                    with self.start(self.uri(), **environment) as server:
                        self.assertEqual(server.get("/v2/models/m/ready")[0], 200)
                else:
                    with self.assertRaises(servers.StartFailed) as failed:
                        self.start(self.uri(), **environment)
                    self.assertIn(f"the role '{role}' cannot be assumed: SignatureDoesNotMatch", failed.exception.output)
        finally:
            self.ask("POST", "/moto-api/reset-auth", b"1000000")


@conch_only
@unittest.skipUnless(AZURITE.exists() and shutil.which("node"), "Azurite is not installed: scripts/fetch-emulators")
class Azurite(EmulatorCase):
    ACCOUNT = "conch"
    KEY = base64.b64encode(b"not much of a secret").decode()

    @classmethod
    def command(cls):
        return ["node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(cls.port),
                "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]

    @classmethod
    def variables(cls):
        return {"AZURITE_ACCOUNTS": f"{cls.ACCOUNT}:{cls.KEY}"}

    def signed(self, method, path, query=None, body=b"", headers=None):
        """A request with a shared key."""
        given = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", **(headers or {})}
        canonical = "".join(f"{name}:{given[name]}\n" for name in sorted(given) if name.startswith("x-ms-"))
        resource = f"/{self.ACCOUNT}/{self.ACCOUNT}{path}" + "".join(f"\n{name}:{value}" for name, value in sorted((query or {}).items()))
        length = str(len(body)) if body else ""
        text = "\n".join([method, "", "", length, "", "", "", "", "", "", "", "", canonical + resource])
        signature = base64.b64encode(hmac.new(base64.b64decode(self.KEY), text.encode(), hashlib.sha256).digest()).decode()
        target = f"/{self.ACCOUNT}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        status, reply = self.ask(method, target, body, {**given, "authorization": f"SharedKey {self.ACCOUNT}:{signature}"})
        self.assertIn(status, (201, 202), reply)

    def make_bucket(self):
        self.signed("PUT", f"/{self.bucket}", {"restype": "container"})

    def put(self, key, contents):
        self.signed("PUT", f"/{self.bucket}/{key}", body=contents, headers={"x-ms-blob-type": "BlockBlob"})

    def delete(self, key):
        self.signed("DELETE", f"/{self.bucket}/{key}")

    def uri(self):
        return f"as://http://127.0.0.1:{self.port}/{self.ACCOUNT}/{self.bucket}/models"

    def test_life(self):
        self.life(self.uri(), AZURE_STORAGE_ACCOUNT=self.ACCOUNT, AZURE_STORAGE_KEY=self.KEY)

    def test_credential_file(self):
        self.put_models("models", "m")
        file = pathlib.Path(self.folder.name) / "credentials.json"
        for key, is_right in ((self.KEY, True), (base64.b64encode(b"wrong").decode(), False)):
            file.write_text(json.dumps({"as": {self.uri(): {"account_str": self.ACCOUNT, "account_key": key}, "": {}}}))
            if is_right:
                with self.start(self.uri(), TRITON_CLOUD_CREDENTIAL_PATH=str(file)) as server:
                    self.assertEqual(server.get("/v2/models/m/ready")[0], 200)
            else:
                with self.assertRaises(servers.StartFailed) as failed:
                    self.start(self.uri(), TRITON_CLOUD_CREDENTIAL_PATH=str(file))
                self.assertIn("AuthorizationFailure", failed.exception.output)
