"""A real browser without a window, driven over its debugging pipe (the DevTools protocol): pages are opened, looked at and photographed.

Debian's chromium-headless-shell or chromium, or what CONCH_BROWSER names. Nothing else is needed: no driver, no package of Python."""

import base64
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from waiting import until

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chrome-headless-shell")


def program():
    """The browser's path, or None."""
    given = os.environ.get("CONCH_BROWSER")
    return given or next((found for found in map(shutil.which, NAMES) if found), None)


class Browser:
    """One browser with one page. Use it as a context manager."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="conch-browser-")
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        arguments = [program(), "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server", "--hide-scrollbars",
                     f"--user-data-dir={self._profile}", "about:blank"]
        # The pipe is at 3 and 4 by convention; a shell puts it there.
        script = f'exec 3<&{requests} 4>&{replies}; exec "$@"'
        self.process = subprocess.Popen(["bash", "-c", script, "bash", *arguments], pass_fds=(requests, replies), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(requests)
        os.close(replies)
        os.set_blocking(self._replies, False)
        self._input, self._next, self._session = b"", 1, None
        self.console, self.requests = [], []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for end in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                os.close(end)
        shutil.rmtree(self._profile, ignore_errors=True)

    # The protocol: messages of JSON, each ended by a zero byte.

    def call(self, method, **parameters):
        """Calls a method and returns its result."""
        number, self._next = self._next, self._next + 1
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._requests, data):]
        reply = until(lambda: next((each for each in self._messages() if each.get("id") == number), None), f"an answer to {method}", 60)
        if "error" in reply:
            raise AssertionError(f"{method}: {reply['error']}")
        return reply["result"]

    def _messages(self):
        """Complete messages that have come."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._replies, 1 << 20):
                self._input += data
        *complete, self._input = self._input.split(b"\0")
        messages = [json.loads(each) for each in complete]
        for message in messages:
            self._note(message)
        return messages

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(each.get("value", each.get("description"))) for each in parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    # A page

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        """The value of an expression in the page."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise AssertionError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def wait_for(self, expression, what=None, within=30):
        """Waits until the expression is true in the page."""
        until(lambda: self.evaluate(expression), what or expression, within)

    def resize(self, width, height=900, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        self.settle()

    def scheme(self, name):
        """Has the page believe that the user prefers that: `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        self.settle()

    def settle(self):
        """Waits until what has changed is drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, text="\r" if key == "Enter" and kind == "keyDown" else "",
                      windowsVirtualKeyCode={"Tab": 9, "Enter": 13, " ": 32}.get(key, 0))

    def photograph(self, path, whole=False, quality=None):
        """Writes what is seen as PNG, or with a `quality` as WebP; `whole` is the page beyond the window, too."""
        options = {"captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        if quality:
            options |= {"format": "webp", "quality": quality}
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))
