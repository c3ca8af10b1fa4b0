"""An object store for tests: the part of the protocols of S3, Google Cloud Storage (XML) and Azure Blob Storage that readers use, over
loopback, with faults on demand. What real stores and their emulators accept is tried against those, in test_remote_emulators.

One server has one name space: the first part of the path is the bucket, or account and container for Azure.
"""

import contextlib
import datetime
import hashlib
import http.server
import ssl
import sys
import threading
import urllib.parse
from xml.sax.saxutils import escape


class Bucket:
    """A running store. Use it as a context manager. Objects are set and removed like items of a dict: `bucket["models/m/1/x"] = b"…"`."""

    NAME, ACCOUNT = "bucket", "account"

    def __init__(self, tls=None):
        self.objects, self.requests = {}, []
        self._lock = threading.Lock()
        self._clock = 1_700_000_000
        # Bytes of a body after which the next connections break, one after the other.
        self.breaks = []
        # Every body breaks there.
        self.always_breaks_at = None
        # Bodies of objects wait here after their first half.
        self.gate = threading.Event()
        self.gate.set()
        # Listings tell this size of an object whose name ends so.
        self.claimed_sizes = {}
        # Called before an object is sent.
        self.before_object = None
        # Access keys that are let in; all if none.
        self.keys = None
        self.page = 1000
        # Bytes of nothing in each listing.
        self.padding = 0
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                with contextlib.suppress(ConnectionError):
                    store._answer(self)

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request, address):
                """A client that went, or that does not trust us, is no error of the store."""
                if not isinstance(sys.exc_info()[1], OSError):
                    super().handle_error(request, address)

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "https" if tls else "http"
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    # Contents

    def __setitem__(self, key, contents):
        with self._lock:
            self._clock += 1
            # A tag that is no checksum, as those of large or encrypted objects.
            tag = hashlib.sha1(contents + str(self._clock).encode()).hexdigest()
            self.objects[key] = (contents, tag, self._clock)

    def __delitem__(self, key):
        with self._lock:
            del self.objects[key]

    def remove(self, prefix):
        for key in [key for key in self.objects if key.startswith(prefix)]:
            del self[key]

    def put(self, prefix, repository):
        """Puts the files of a local repository below `prefix`; empty directories as consoles do, by an object with a slash at its end."""
        for path in sorted(repository.path.rglob("*")):
            name = f"{prefix}/{path.relative_to(repository.path)}".lstrip("/")
            if path.is_file():
                self[name] = path.read_bytes()
            elif not any(path.iterdir()):
                self[name + "/"] = b""

    # Addresses

    def s3(self, path=""):
        protocol = "https://" if self.scheme == "https" else "http://"
        return f"s3://{protocol}localhost:{self.port}/{self.NAME}/{path}".rstrip("/")

    def gs(self, path=""):
        return f"gs://{self.scheme}://localhost:{self.port}/{self.NAME}/{path}".rstrip("/")

    def az(self, path=""):
        return f"as://{self.scheme}://localhost:{self.port}/{self.ACCOUNT}/{self.NAME}/{path}".rstrip("/")

    # What was asked for

    def downloads(self, ending=""):
        """The objects that were asked for, by name and range, in order."""
        with self._lock:
            return [(key, span) for key, span in self.requests if key is not None and key.endswith(ending)]

    def forget(self):
        with self._lock:
            self.requests.clear()

    # Serving

    def _answer(self, request):
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        parts = urllib.parse.unquote(url.path).lstrip("/").split("/")
        is_azure = parts[0] == self.ACCOUNT
        if is_azure:
            parts = parts[1:]
        bucket, key = parts[0], "/".join(parts[1:])
        if not self._is_let_in(request):
            return self._error(request, 403, "AccessDenied", "Access Denied")
        if bucket != self.NAME:
            return self._error(request, 404, "ContainerNotFound" if is_azure else "NoSuchBucket", "The specified bucket does not exist")
        if not key:
            return self._list(request, query, is_azure)
        return self._send_object(request, key)

    def _is_let_in(self, request):
        if self.keys is None:
            return True
        header = request.headers.get("authorization", "")
        return any(f"Credential={key}/" in header or header == f"Bearer {key}" for key in self.keys)

    def _error(self, request, status, code, message):
        self._reply(request, status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def _reply(self, request, status, body, headers=()):
        request.send_response(status)
        for name, value in headers:
            request.send_header(name, value)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _list(self, request, query, is_azure):
        with self._lock:
            self.requests.append((None, query.get("prefix", "")))
            objects = dict(self.objects)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("marker" if is_azure else "continuation-token", "")
        rows, prefixes = [], []
        truncated = False
        for key in sorted(objects):
            if not key.startswith(prefix) or key <= after:
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                if key[:end + 1] not in prefixes:
                    prefixes.append(key[:end + 1])
                continue
            if len(rows) == self.page:
                truncated = True
                break
            rows.append(key)
        following = rows[-1] if truncated else ""
        body = (self._azure_page if is_azure else self._s3_page)(objects, rows, prefixes, following)
        self._reply(request, 200, body.encode() + b" " * self.padding, [("content-type", "application/xml")])

    def _size(self, key, contents):
        return next((size for ending, size in self.claimed_sizes.items() if key.endswith(ending)), len(contents))

    def _s3_page(self, objects, rows, prefixes, following):
        text = "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>"
        for key in rows:
            contents, tag, changed = objects[key]
            date = datetime.datetime.fromtimestamp(changed, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            text += (f"<Contents><Key>{escape(key)}</Key><LastModified>{date}</LastModified><ETag>&quot;{tag}&quot;</ETag>"
                     f"<Size>{self._size(key, contents)}</Size></Contents>")
        text += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in prefixes)
        text += f"<IsTruncated>{'true' if following else 'false'}</IsTruncated>"
        if following:
            text += f"<NextContinuationToken>{escape(following)}</NextContinuationToken>"
        return text + "</ListBucketResult>"

    def _azure_page(self, objects, rows, prefixes, following):
        text = "<?xml version='1.0' encoding='UTF-8'?><EnumerationResults><Blobs>"
        for key in rows:
            contents, tag, changed = objects[key]
            date = datetime.datetime.fromtimestamp(changed, datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
            text += (f"<Blob><Name>{escape(key)}</Name><Properties><Creation-Time>{date}</Creation-Time>"
                     f"<Last-Modified>{date}</Last-Modified><Etag>0x{tag}</Etag>"
                     f"<Content-Length>{self._size(key, contents)}</Content-Length>"
                     "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>")
        text += "".join(f"<BlobPrefix><Name>{escape(one)}</Name></BlobPrefix>" for one in prefixes)
        return text + f"</Blobs><NextMarker>{escape(following)}</NextMarker></EnumerationResults>"

    def _send_object(self, request, key):
        span = request.headers.get("range")
        with self._lock:
            self.requests.append((key, span))
        if self.before_object:
            self.before_object(key)
        with self._lock:
            found = self.objects.get(key)
            cut = self.breaks.pop(0) if self.breaks else self.always_breaks_at
        if found is None:
            return self._error(request, 404, "NoSuchKey", "The specified key does not exist.")
        contents, tag, changed = found
        date = datetime.datetime.fromtimestamp(changed, datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        azure = "/account/" in request.path
        headers = [("last-modified", date), ("etag", f'"0x{tag}"' if azure else f'"{tag}"')]
        body, status = contents, 200
        if span:
            first, last = (int(part) for part in span.removeprefix("bytes=").split("-"))
            body, status = contents[first:last + 1], 206
            headers.append(("content-range", f"bytes {first}-{first + len(body) - 1}/{len(contents)}"))
        request.send_response(status)
        for name, value in headers:
            request.send_header(name, value)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        if cut is not None and cut < len(body):
            request.wfile.write(body[:cut])
            request.wfile.flush()
            request.close_connection = True
            return None
        half = len(body) // 2
        request.wfile.write(body[:half])
        request.wfile.flush()
        self.gate.wait(60)
        request.wfile.write(body[half:])
        return None

    def close(self):
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
