"""The services that hand out Amazon's credentials, for tests: roles (STS), single sign-on with its tokens, containers and instances.

All are one server over loopback. It gives a new access key each time, `KEY1`, `KEY2` and so on, and may take back the ones before."""

import datetime
import http.server
import json
import threading
import urllib.parse


class IdentityService:
    """Use it as a context manager, or close it. `requests` holds what was asked for: the path, and the fields of a form or a query."""

    def __init__(self):
        self.requests = []
        self.issued = []
        # How long credentials last.
        self.lifetime_secs = 3600
        # The status and the code of the next answers to roles.
        self.refusal = None
        # The token of single sign-on that is let in.
        self.token = "TOKEN"
        # Called with each new access key.
        self.on_issue = lambda key: None
        self._lock = threading.Lock()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def _serve(self):
                length = int(self.headers.get("content-length") or 0)
                status, body = service._answer(self.command, self.path, self.headers, self.rfile.read(length))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = _serve

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def environment(self):
        return {f"AWS_ENDPOINT_URL_{name}": self.url for name in ("STS", "SSO", "SSO_OIDC")}

    def asked(self, path):
        with self._lock:
            return [fields for asked, fields in self.requests if asked == path]

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _issue(self):
        with self._lock:
            key = f"KEY{len(self.issued) + 1}"
            self.issued.append(key)
        self.on_issue(key)
        return key, datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.lifetime_secs)

    def _answer(self, method, target, headers, body):
        url = urllib.parse.urlsplit(target)
        is_form = headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        fields = dict(urllib.parse.parse_qsl(body.decode() if is_form else url.query))
        fields["authorization"] = headers.get("authorization", "")
        if url.path == "/token":
            fields.update(json.loads(body))
        with self._lock:
            self.requests.append((url.path, fields))
        if url.path == "/":
            return self._role(fields)
        if url.path == "/federation/credentials":
            if headers.get("x-amz-sso_bearer_token") != self.token:
                return 401, json.dumps({"message": "Session token not found or invalid"}).encode()
            key, expires = self._issue()
            return 200, json.dumps({"roleCredentials": {"accessKeyId": key, "secretAccessKey": "ISSUED", "sessionToken": "SESSION",
                                                        "expiration": int(expires.timestamp() * 1000)}}).encode()
        if url.path == "/token":
            return 200, json.dumps({"accessToken": self.token, "expiresIn": 3600, "refreshToken": "REFRESH2", "tokenType": "Bearer"}).encode()
        if url.path == "/latest/api/token":
            return 200, b"METADATA"
        if url.path == "/latest/meta-data/iam/security-credentials/":
            return 200, b"role"
        if url.path in ("/container", "/latest/meta-data/iam/security-credentials/role"):
            key, expires = self._issue()
            return 200, json.dumps({"AccessKeyId": key, "SecretAccessKey": "ISSUED", "Token": "SESSION", "Code": "Success",
                                    "RoleArn": "arn", "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()
        return 404, b""

    def _role(self, fields):
        if self.refusal:
            status, code = self.refusal
            return status, (f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>not you</Message></Error>"
                            "<RequestId>1</RequestId></ErrorResponse>").encode()
        key, expires = self._issue()
        action = fields["Action"]
        return 200, (f"<{action}Response xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><{action}Result><Credentials>"
                     f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>ISSUED</SecretAccessKey><SessionToken>SESSION</SessionToken>"
                     f"<Expiration>{expires.isoformat()}</Expiration></Credentials></{action}Result></{action}Response>").encode()
