"""Profiles of `~/.aws` that have no keys: roles, single sign-on, programs, tokens; and what is told of those that give none."""

import hashlib
import json
import pathlib
import re
import shlex
import tempfile
import unittest

import server as servers
from bucket import Bucket
from case import conch_only
from identity_service import IdentityService
from repository import identity
from test_remote import EXPLICIT, NOBODY, POLL, Mount, repository
from waiting import until

SECRETS = ("SECRET", "ISSUED", "SESSION", "TOKEN", "REFRESH")


@conch_only
class Profiles(unittest.TestCase):
    def setUp(self):
        self.bucket = Bucket()
        self.addCleanup(self.bucket.close)
        self.models = repository("m")
        self.addCleanup(self.models.close)
        self.bucket.put("models", self.models)
        # Of the keys that were issued, the last one alone is good.
        self.service = IdentityService()
        self.addCleanup(self.service.close)
        self.bucket.keys = set()
        self.service.on_issue = lambda key: setattr(self.bucket, "keys", {key})
        self.mount = Mount()
        self.addCleanup(self.mount.close)
        home = tempfile.TemporaryDirectory(prefix="conch-home-")
        self.addCleanup(home.cleanup)
        self.home = pathlib.Path(home.name)
        (self.home / ".aws/sso/cache").mkdir(parents=True)
        self.write("credentials", "[base]\naws_access_key_id = BASE\naws_secret_access_key = SECRET\n")

    def write(self, name, contents):
        path = self.home / ".aws" / name
        path.write_text(contents)
        return path

    def start(self, *flags, profile="p", **more):
        return servers.Server(self.bucket.s3("models"), *flags, environment={
            **NOBODY, **self.mount.environment, **self.service.environment, "HOME": str(self.home), "AWS_PROFILE": profile, **more})

    def serves(self, **more):
        with self.start("--log-verbose=1", **more) as server:
            self.assertEqual(server.get("/v2/models/m/ready")[0], 200)
            self.assert_no_secret(server.output)

    def fails(self, *words, **more):
        with self.assertRaises(servers.StartFailed) as failed:
            self.start("--log-verbose=1", **more)
        for word in words:
            self.assertIn(word, failed.exception.output)
        self.assert_no_secret(failed.exception.output)

    def assert_no_secret(self, text):
        for secret in SECRETS:
            self.assertNotIn(secret, text)

    def test_a_role(self):
        self.write("config", "[profile p]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\nexternal_id = a b\n"
                             "role_session_name = me\nduration_seconds = 900\nregion = eu-west-1\n")
        self.serves()
        (asked,) = self.service.asked("/")
        self.assertRegex(asked.pop("authorization"), "Credential=BASE/[0-9]+/eu-west-1/sts/aws4_request")
        self.assertEqual(asked, {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": "arn:aws:iam::1:role/r", "ExternalId": "a b",
                                 "RoleSessionName": "me", "DurationSeconds": "900"})

    def test_a_role_by_a_role_by_the_credential_file(self):
        """The keys are those of the environment, and the profile is that of an entry."""
        self.write("config", "[profile p]\nrole_arn = second\nsource_profile = q\n[profile q]\nrole_arn = first\ncredential_source = Environment\n")
        file = self.write("cloud.json", json.dumps({"s3": {"": {"profile": "p"}}}))
        self.serves(profile="", TRITON_CLOUD_CREDENTIAL_PATH=str(file), AWS_ACCESS_KEY_ID="OUTER", AWS_SECRET_ACCESS_KEY="SECRET")
        asked = self.service.asked("/")
        self.assertEqual([fields["RoleArn"] for fields in asked], ["first", "second"])
        for fields, key in zip(asked, ("OUTER", "KEY1")):
            self.assertIn(f"Credential={key}/", fields["authorization"])

    def test_roles_of_the_machine(self):
        token = self.write("container-token", "SECRET")
        for source, more in (
                ("EcsContainer", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.service.url}/container",
                                  "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)}),
                ("Ec2InstanceMetadata", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.service.url})):
            with self.subTest(source=source):
                self.service.issued.clear()
                self.service.requests.clear()
                self.write("config", f"[profile p]\nrole_arn = r\ncredential_source = {source}\n")
                self.serves(**more)
                (asked,) = self.service.asked("/")
                self.assertIn("Credential=KEY1/", asked["authorization"])
        self.write("config", "[profile p]\nrole_arn = r\ncredential_source = EcsContainer\n")
        self.fails("the AWS profile 'p' gives no credentials: this is no container with a role")

    def test_the_token_of_an_identity_provider(self):
        token = self.write("token", "TOKEN\n")
        self.write("config", f"[profile p]\nrole_arn = r\nweb_identity_token_file = {token}\nrole_session_name = me\n")
        self.serves()
        (asked,) = self.service.asked("/")
        self.assertEqual(asked, {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": "r", "RoleSessionName": "me",
                                 "WebIdentityToken": "TOKEN", "authorization": ""})
        token.unlink()
        self.fails("the AWS profile 'p' gives no credentials: web_identity_token_file")

    def test_renewal(self):
        """Under a server that polls, no key lives long."""
        self.service.lifetime_secs = 2
        self.write("config", "[profile p]\nrole_arn = r\nsource_profile = base\n")
        with self.start(*POLL) as server:
            until(lambda: len(self.service.issued) >= 3, lambda: server.output[-3000:])
            self.bucket.put("models", self.models.model("n", identity(batch=8)))
            until(lambda: server.get("/v2/models/n/ready")[0] == 200, lambda: server.output[-3000:])
            self.assertNotIn("failed to poll", server.output)

    def test_one_request_for_all(self):
        """What is valid for long is not asked for again."""
        self.write("config", "[profile p]\nrole_arn = r\nsource_profile = base\n")
        with self.start(EXPLICIT) as server:
            self.assertEqual(server.request("POST", "/v2/repository/models/m/load")[0], 200)
            self.service.refusal = (403, "AccessDenied")
            self.bucket.put("models", self.models.model("n", identity(batch=8)))
            self.assertEqual(server.request("POST", "/v2/repository/models/n/load")[0], 200)
        self.assertEqual(len(self.service.asked("/")), 1)

    def test_a_refused_role(self):
        """Told once asked, and mended without a restart."""
        self.write("config", "[profile p]\nrole_arn = r\nsource_profile = base\n")
        self.service.refusal = (403, "AccessDenied")
        why = "the AWS profile 'p' gives no credentials: the role 'r' cannot be assumed: AccessDenied: not you"
        self.fails("due to exception: NoCredentials, error message: " + why)
        with self.start(EXPLICIT) as server:
            status, _, reply = server.request("POST", "/v2/repository/models/m/load")
            self.assertEqual(status, 500, reply)
            server.wait_for_line(re.escape(why))
            self.service.refusal = None
            until(lambda: server.request("POST", "/v2/repository/models/m/load")[0] == 200, lambda: server.output[-3000:])

    def sign_on(self, name, expires, **more):
        """Leaves a token as `aws sso login` does."""
        file = hashlib.sha1(name.encode()).hexdigest() + ".json"
        return self.write(f"sso/cache/{file}", json.dumps({"startUrl": "https://s", "region": "eu-west-1", "expiresAt": expires, **more}))

    SESSION = "[profile p]\nsso_session = corp\nsso_account_id = 12\nsso_role_name = reader\n[sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://s\n"
    RENEWABLE = {"refreshToken": "REFRESH", "clientId": "id", "clientSecret": "SECRET", "registrationExpiresAt": "2999-01-01T00:00:00Z"}

    def test_single_sign_on(self):
        url = "[profile p]\nsso_start_url = https://s\nsso_region = eu-west-1\nsso_account_id = 12\nsso_role_name = reader\n"
        for name, config in (("corp", self.SESSION), ("https://s", url)):
            with self.subTest(name=name):
                self.service.requests.clear()
                self.write("config", config)
                self.sign_on(name, "2999-01-01T00:00:00Z", accessToken="TOKEN")
                self.serves()
                self.assertEqual(self.service.asked("/federation/credentials"), [{"role_name": "reader", "account_id": "12", "authorization": ""}])
        self.assertEqual(self.service.asked("/token"), [])

    def test_single_sign_on_renewed(self):
        self.write("config", self.SESSION)
        file = self.sign_on("corp", "2020-01-01T00:00:00Z", accessToken="TOKEN of yesterday", more=1, **self.RENEWABLE)
        self.serves()
        (asked,) = self.service.asked("/token")
        self.assertEqual((asked["grantType"], asked["refreshToken"], asked["clientId"]), ("refresh_token", "REFRESH", "id"))
        left = json.loads(file.read_text())
        self.assertEqual((left["accessToken"], left["refreshToken"], left["more"]), ("TOKEN", "REFRESH2", 1))
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.serves()
        self.assertEqual(len(self.service.asked("/token")), 1, "the one in the file is good for an hour")

    def test_single_sign_on_that_ended(self):
        self.write("config", self.SESSION)
        why = "the AWS profile 'p' gives no credentials: nobody is signed on: run 'aws sso login --profile p' as the server's user"
        self.fails(why)
        self.sign_on("corp", "2020-01-01T00:00:00Z", accessToken="TOKEN")
        self.fails(why)
        self.sign_on("corp", "2999-01-01T00:00:00Z", accessToken="TOKEN of yesterday")
        self.fails(why)

    def test_a_program(self):
        answer = {"Version": 1, "AccessKeyId": "PRINTED", "SecretAccessKey": "SECRET", "SessionToken": "TOKEN", "Expiration": "2999-01-01T00:00:00Z"}
        command = f"echo SECRET >&2; test ! -t 0 && printf %s {shlex.quote(json.dumps(answer))}"
        self.bucket.keys = {"PRINTED"}
        self.write("config", f"[profile p]\ncredential_process = {command}\n")
        self.serves()
        for command, words in (
                ("echo SECRET; echo SECRET >&2; exit 3", "its credential_process ended with exit status: 3: run it by hand as the server's user"),
                ("echo SECRET", "its credential_process does not write JSON with"),
                ("cat /dev/zero", "its credential_process writes more than 65536 bytes")):
            with self.subTest(command=command):
                self.write("config", f"[profile p]\ncredential_process = {command}\n")
                self.fails(f"the AWS profile 'p' gives no credentials: {words}")

    def test_the_default_profile(self):
        self.write("config", "[default]\nrole_arn = r\nsource_profile = base\n")
        self.serves(profile="")
        # One that leads nowhere is as none, unless it is asked for.
        self.write("config", "[default]\nrole_arn = r\n")
        self.bucket.keys = None
        with self.start(profile="") as server:
            server.wait_for_line("the AWS profile 'default' is ignored: its role_arn needs a source_profile")
        self.fails("the AWS profile 'default' cannot be used: its role_arn needs a source_profile", profile="default")

    def test_keys_go_first(self):
        self.write("config", "[profile p]\nrole_arn = r\nsource_profile = base\n[profile base]\nrole_arn = r\nsource_profile = p\n")
        self.bucket.keys = {"BASE", "OUTER"}
        self.serves(profile="base")
        self.serves(AWS_ACCESS_KEY_ID="OUTER", AWS_SECRET_ACCESS_KEY="SECRET")
        self.assertEqual(self.service.requests, [])

    def test_profiles_that_cannot_be_followed(self):
        for config, why in (
                ("[profile p]\nrole_arn = r\nsource_profile = q\n", "its source_profile 'q' is in none of the profile files"),
                ("[profile p]\nrole_arn = r\nsource_profile = p\n", "its source_profile leads back to 'p'"),
                ("[profile p]\nrole_arn = r\nsource_profile = base\nmfa_serial = m\n", "its mfa_serial asks for a code")):
            with self.subTest(why=why):
                self.write("config", config)
                self.fails(f"the AWS profile 'p' cannot be used: {why}")
