"""The operator's page in a real browser: what it shows, light and dark, from 320 to 2,000 pixels.

With CONCH_SCREENSHOTS=DIR two pictures of it are left there, those of docs/images."""

import contextlib
import http.client
import json
import os
import pathlib
import threading
import unittest
import urllib.parse

import browser
from case import ServerCase, conch_only, needs_library
from repository import identity
from test_dashboard import FLOATS, ODD_NAME, body, models

WIDTHS = (320, 768, 1120, 1280, 2000)
needs_browser = unittest.skipUnless(browser.program(), "no browser is there: scripts/fetch-browser fetches one")


@conch_only
@needs_library("identity")
@needs_browser
class Page(ServerCase):
    flags = ("--dashboard",)

    @staticmethod
    def models(repository):
        models(repository)
        repository.model("batched", identity(FLOATS, batch=8, count=2, parameters={"execute_delay_ms": "4"},
                                             extra="dynamic_batching { max_queue_delay_microseconds: 3000 }"))

    def setUp(self):
        """Requests of several models, as long as the test lasts. Without a pause the impatient ones wait for longer than they may."""
        self.is_over = threading.Event()
        clients = [threading.Thread(target=self.ask, args=each, daemon=True)
                   for each in [("batched", 0.002)] * 6 + [("quick", 0.01), ("slow", 0.3), (ODD_NAME, 0.2), ("impatient", 0), ("impatient", 0)]]
        for client in clients:
            client.start()
        self.addCleanup(lambda: [client.join() for client in clients])
        self.addCleanup(self.is_over.set)

    def ask(self, model, pause):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.ports["http"], timeout=30)
        with contextlib.closing(connection):
            count = 0
            while not self.is_over.wait(pause):
                count += 1
                connection.request("POST", f"/v2/models/{urllib.parse.quote(model)}/infer", json.dumps(body(f"{model[:6]}-{count}")))
                connection.getresponse().read()

    def open(self, page):
        page.open(f"http://{self.server.address('metrics')}/dashboard")
        page.wait_for("typeof samples !== 'undefined' && samples.length >= 4", "four seconds of events", 60)

    def test_it_shows_what_happens(self):
        with browser.Browser() as page:
            page.resize(1280)
            self.open(page)
            names = page.evaluate("[...document.querySelectorAll('#models td:first-child')].map(cell => cell.textContent)")
            self.assertEqual(names[0], "All models")
            self.assertEqual(set(names[1:]), {"quick", "slow", "impatient", "batched", ODD_NAME})
            # The odd name is text, and has brought no element.
            self.assertEqual(page.evaluate("[document.images.length, typeof window.hacked]"), [0, "undefined"])
            for box in ("batches", "errors", "instances", "slowest", "kpis"):
                page.wait_for(f"document.getElementById('{box}').children.length > 1", f"something in {box}")
            self.assertEqual(page.evaluate("document.getElementById('link').textContent"), "live")
            # Charts have drawn something.
            for chart in ("rate", "quantiles", "heat", "queue", "strip-0"):
                colors = page.evaluate(f"""(() => {{ const it = document.getElementById('{chart}');
                    return new Set(new Uint32Array(it.getContext('2d').getImageData(0, 0, it.width, it.height).data.buffer)).size }})()""")
                self.assertGreater(colors, 1, chart)
                self.assertTrue(page.evaluate(f"document.getElementById('{chart}').ariaLabel"), chart)
            self.choose_by_keyboard(page)
            self.assertEqual(page.console, [])
            self.assertEqual({url.split("/", 3)[2] for url in page.requests if url.startswith("http")}, {self.server.address("metrics")})

    def choose_by_keyboard(self, page):
        page.evaluate("document.querySelector('#models tr:nth-child(2) button').focus()")
        name = page.evaluate("document.activeElement.textContent")
        page.press("Enter")
        page.wait_for("document.querySelector('#chosen').textContent !== 'All models'")
        self.assertIn(name, page.evaluate("document.getElementById('chosen').textContent"))
        self.assertEqual(page.evaluate("document.querySelectorAll('#models tr.chosen').length"), 1)

    def test_every_width_light_and_dark(self):
        pictures = os.environ.get("CONCH_SCREENSHOTS")
        with browser.Browser() as page:
            page.resize(1280)
            self.open(page)
            if pictures:
                page.wait_for("samples.length >= 90", "a minute and a half", 150)
            grounds = {}
            for scheme in ("light", "dark"):
                page.scheme(scheme)
                for width in WIDTHS:
                    page.resize(width)
                    with self.subTest(scheme=scheme, width=width):
                        self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), width, "nothing is beside the window")
                        self.assertEqual(page.evaluate(OVERLAPS), [], "nothing lies over anything")
                        self.assertEqual(page.evaluate(CUT), [], "no text is cut")
                grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
                if pictures:
                    page.resize(1180, 760)
                    page.photograph(pathlib.Path(pictures) / f"dashboard-{scheme}.webp", quality=80)
            self.assertEqual(len(set(grounds.values())), 2)
            self.assertEqual(page.console, [])

    def test_it_goes_on_when_the_server_is_there_again(self):
        with browser.Browser() as page:
            self.open(page)
            # As if the server were gone: its events come from nowhere.
            page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
            page.evaluate("source.dispatchEvent(new Event('error'))")
            page.wait_for("document.getElementById('link').textContent === 'server gone, trying again'")
            page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
            page.wait_for("document.getElementById('link').textContent === 'live'", "events again", 60)


# Pairs of boxes side by side that share more than a pixel.
OVERLAPS = """(() => {
  const found = [];
  const groups = [document.querySelectorAll('.kpi'), document.querySelectorAll('.grid > .card'), document.querySelectorAll('main section')];
  for (const group of groups) {
    const boxes = [...group].map(one => [one.id || one.textContent.slice(0, 20), one.getBoundingClientRect()]).filter(one => one[1].width);
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [a, b] = [boxes[i][1], boxes[j][1]];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
        found.push([boxes[i][0], boxes[j][0]]);
    }
  }
  return found;
})()"""
# Elements with text that runs out of them.
CUT = """[...document.querySelectorAll('td, th, .kpi dd, .kpi p, h1, h2, .legend, .instances span, .bars span, summary span')]
  .filter(one => one.clientWidth && one.scrollWidth > one.clientWidth + 1).map(one => one.className + ' ' + one.textContent)"""


if __name__ == "__main__":
    unittest.main()
