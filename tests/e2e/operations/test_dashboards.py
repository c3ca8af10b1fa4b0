"""Dashboards and alerts of docs/examples: what they ask for is on the page of a server, and Prometheus and Grafana's schema take them."""

import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import cuda
import server as servers
from case import IS_TRITON, ServerCase, conch_only
from exposition import families, needs_promtool
from repository import identity
from waiting import until

GRAFANA = servers.ROOT / "docs/examples/grafana"
PROMETHEUS = servers.ROOT / "docs/examples/prometheus"
SHARED = ("triton.json",)
CACHES = servers.PEERS / "abi/caches"
SELECTOR = re.compile(r"\b((?:conch|nv)_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
# Prometheus adds these to what a page has.
OF_THE_COLLECTOR = {"job", "instance"}
# Not on a page until something is given up; their names are looked for where the server makes the page.
RARE = {"conch_log_lines_dropped_total", "conch_connections_dropped_total"}


def dashboards():
    return {file.name: json.loads(file.read_text()) for file in sorted(GRAFANA.glob("*.json"))}


def expressions(dashboard):
    """(title of the panel, expression) of every query, and of every variable that asks for labels."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])[1]


def with_values(expression, interval="10s"):
    """The expression with what Grafana puts in place of its variables when all is chosen."""
    text = expression.replace("$__rate_interval", interval)
    return re.sub(r"\$\w+", ".*", text)


def alerts():
    return re.sub(r"#.*", "", (PROMETHEUS / "alerts.yaml").read_text())


class Files(unittest.TestCase):
    """What can be said of the files without any server."""

    def test_they_are_as_they_are_made(self):
        done = subprocess.run([sys.executable, str(GRAFANA / "make-dashboards"), "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_identities(self):
        found = dashboards()
        self.assertEqual(sorted(found), ["model.json", "server.json", "triton.json"])
        self.assertEqual(len({dashboard["uid"] for dashboard in found.values()}), len(found))
        for name, dashboard in found.items():
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(set(ids)), len(ids), name)
            titles = [panel["title"] for panel in dashboard["panels"] if panel["type"] != "row"]
            self.assertEqual(len(set(titles)), len(titles), name)

    def test_no_panel_hides_another(self):
        for name, dashboard in dashboards().items():
            places = [(panel["title"], panel["gridPos"]) for panel in dashboard["panels"]]
            for title, place in places:
                self.assertTrue(place["x"] >= 0 and place["w"] > 0 and place["x"] + place["w"] <= 24, (name, title, place))
            for (left, a), (right, b) in itertools.combinations(places, 2):
                apart = (a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])
                self.assertTrue(apart, f"{name}: {left} and {right} overlap")

    def test_panels_are_whole(self):
        for name, dashboard in dashboards().items():
            for panel in dashboard["panels"]:
                if panel["type"] == "row":
                    continue
                where = (name, panel["title"])
                self.assertTrue(panel["description"] and panel["targets"], where)
                self.assertNotIn(panel["fieldConfig"]["defaults"]["unit"], ("", "none"), where)
                for part in (panel, *panel["targets"]):
                    self.assertEqual(part["datasource"], {"type": "prometheus", "uid": "${datasource}"}, where)
                self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]), where)
                for target in panel["targets"]:
                    self.assert_legend_has_labels(where, target)

    def assert_legend_has_labels(self, where, target):
        """A legend names labels that its expression keeps."""
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        grouping = GROUPING.search(target["expr"])
        if named and grouping:
            self.assertLessEqual(named, {label.strip() for label in grouping[1].split(",")}, where)

    def test_variables(self):
        for name, dashboard in dashboards().items():
            known = {variable["name"] for variable in dashboard["templating"]["list"]}
            used = {"datasource"}
            for _, expression in expressions(dashboard):
                used |= set(re.findall(r"\$(?!__)(\w+)", expression))
            self.assertEqual(used, known, name)
            for panel in dashboard["panels"]:
                for target in panel.get("targets", ()):
                    for selected, labels in SELECTOR.findall(target["expr"]):
                        self.assertTrue(labels.startswith('job=~"$job",instance=~"$instance"'), (name, panel["title"], selected))

    def test_grafanas_schema(self):
        """Whatever Grafana's generated types do not know is lost on the way through them."""
        try:
            from grafana_foundation_sdk.cog.encoder import JSONEncoder
            from grafana_foundation_sdk.models.dashboard import Dashboard
        except ImportError:
            self.skipTest("there is no grafana-foundation-sdk")
        for name, dashboard in dashboards().items():
            read = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
            self.assert_kept(name, dashboard, read)

    def assert_kept(self, where, given, read):
        if isinstance(given, dict):
            self.assertIsInstance(read, dict, where)
            for key, value in given.items():
                self.assertIn(key, read, where)
                self.assert_kept(f"{where}.{key}", value, read[key])
        elif isinstance(given, list):
            self.assertEqual(len(given), len(read), where)
            for index, (left, right) in enumerate(zip(given, read)):
                self.assert_kept(f"{where}[{index}]", left, right)
        else:
            self.assertEqual(given, read, where)

    @needs_promtool
    def test_expressions_parse(self):
        """As the expression of a rule each: promtool has no other way in."""
        rows = [(name, title, with_values(expression)) for name, dashboard in dashboards().items() for title, expression in expressions(dashboard)]
        rules = "".join(f"      - record: query_{index}\n        expr: {json.dumps(expression)}\n" for index, (_, _, expression) in enumerate(rows))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("groups:\n  - name: queries\n    rules:\n" + rules)
            file.flush()
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{len(rows)} rules found", done.stdout)

    @needs_promtool
    def test_alerts(self):
        for command in (["check", "config", "prometheus.yaml"], ["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]):
            done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(done.returncode, 0, (command, done.stdout, done.stderr))

    def test_each_alert_is_shown_to_fire_and_not_to(self):
        cases = (PROMETHEUS / "alerts-test.yaml").read_text()
        for name in re.findall(r"- alert: (\w+)", alerts()):
            self.assertRegex(cases, rf"alertname: {name}, eval_time: \d+m, exp_alerts: \[\]", name)
            self.assertRegex(cases, rf"alertname: {name}\n +eval_time: \d+m\n +exp_alerts:\n +- exp_labels", name)


class BusyCase(ServerCase):
    """A server that has done some of everything, on two GPUs: the driver's double, or those of the machine."""

    flags = ("--cache-config=local,size=1048576", f"--cache-directory={CACHES if IS_TRITON else '/nonexistent'}", "--metrics-interval-ms=50")

    @staticmethod
    def models(repository):
        repository.model("plain", identity(batch=8, extra="dynamic_batching { }\n"))
        repository.model("cached", identity(batch=8, extra="response_cache { enable: true }\n"))
        if not IS_TRITON:
            repository.model("sequences", identity(batch=4, extra="sequence_batching { }\n"))
            repository.model("gpu", identity(batch=8).replace("KIND_CPU", "KIND_GPU"))

    @classmethod
    def setUpClass(cls):
        if not IS_TRITON:
            if not cuda.IS_REAL and not cuda.DOUBLE.exists():
                raise unittest.SkipTest(f"{cuda.DOUBLE} is not built")
            cls.environment = cuda.environment(devices=2)
        super().setUpClass()

    def ask(self, model, **more):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}], **more}
        status, _, reply = self.infer(body, model=model)
        self.assertEqual(status, 200, reply)

    def ask_all(self):
        for model in ("plain", "cached", "cached"):
            self.ask(model)
        if not IS_TRITON:
            self.ask("gpu")
            self.ask("sequences", parameters={"sequence_id": 7, "sequence_start": True})
            self.ask("sequences", parameters={"sequence_id": 7, "sequence_end": True})

    def page(self):
        status, body = self.server.get("/metrics", port="metrics")
        self.assertEqual(status, 200)
        return body.decode()

    def stop_until_a_long_turn(self):
        """The server is stopped for moments while it is asked, until one of them was in the midst of a turn."""
        def is_told():
            os.kill(self.server.pid, signal.SIGSTOP)
            time.sleep(0.005)  # the test itself: how long a turn lasts
            os.kill(self.server.pid, signal.SIGCONT)
            self.ask_all()
            page = self.page()  # of threads that never had to wait for a CPU there is no line either
            return "conch_shard_long_turns_total" in page and "conch_shard_cpu_wait_seconds_total" in page
        until(is_told, "a long turn", 120)


class Names(BusyCase):
    """Every family, and every label, that is asked for is on a server's page."""

    def samples(self):
        """sample -> the labels that it has on the page."""
        found = {}
        for family in families(self.page()).values():
            for sample, labels, _ in family.samples:
                found.setdefault(sample, set()).update(labels)
        return found

    def assert_names(self, where, expression, samples):
        selectors = SELECTOR.findall(expression)
        self.assertTrue(selectors, where)
        grouping = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
        for name, selection in selectors:
            if name in RARE:
                continue
            self.assertIn(name, samples, where)
            self.assertLessEqual(set(LABEL.findall(selection)) - OF_THE_COLLECTOR, samples[name], (where, name))
            self.assertLessEqual(grouping - OF_THE_COLLECTOR, samples[name], (where, name))

    def test_what_both_servers_have(self):
        """triton.json, but for GPUs, which a machine may not have."""
        self.ask_all()
        samples = self.samples()
        for name in SHARED:
            for title, expression in expressions(dashboards()[name]):
                if not (IS_TRITON and "nv_gpu_" in expression):
                    self.assert_names((name, title), expression, samples)

    @conch_only
    def test_dashboards(self):
        self.ask_all()
        self.stop_until_a_long_turn()
        samples = self.samples()
        for name, dashboard in dashboards().items():
            for title, expression in expressions(dashboard):
                self.assert_names((name, title), expression, samples)

    @conch_only
    def test_alerts(self):
        self.ask_all()
        self.stop_until_a_long_turn()
        samples = self.samples()
        for rule in alerts().split("- alert: ")[1:]:
            expression = re.search(r"expr:(.*?)(?=\n +(?:for|labels):)", rule, re.DOTALL)[1]
            if "up{" not in expression:
                for part in re.split(r"\band\b|\bor\b|/", expression):
                    self.assert_names(rule.split("\n", 1)[0], part, samples)

    @conch_only
    def test_signals_of_autoscalers(self):
        """What the files of docs/examples/scale, and the agent among them, read of a server."""
        self.ask_all()
        samples, found = self.samples(), set()
        for file in sorted((servers.ROOT / "docs/examples/scale").rglob("*")):
            if file.suffix in ("", ".yaml") and file.is_file():
                found |= {(file.name, name) for name in re.findall(r"\bconch_(?:inference|model)_\w+", file.read_text())}
        self.assertEqual({file for file, _ in found}, {"adapter.yaml", "autoscaling.yaml", "queue-agent"})
        for file, name in found:
            self.assertIn(name, samples, file)

    @conch_only
    def test_what_is_rarely_there(self):
        sources = "".join(file.read_text() for file in (servers.ROOT / "src").rglob("*.rs"))
        for name in RARE:
            self.assertIn(f'"{name}"', sources)


@conch_only
@unittest.skipUnless(shutil.which("prometheus"), "there is no prometheus")
class Collected(BusyCase):
    """A Prometheus reads the server, and every panel has something to show."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory(prefix="conch-prometheus-")
        cls.addClassCleanup(cls.folder.cleanup)
        folder = pathlib.Path(cls.folder.name)
        config = (PROMETHEUS / "prometheus.yaml").read_text()
        config = re.sub(r"_interval: 15s", "_interval: 250ms", config).replace("localhost:8002", cls.server.address("metrics"))
        config = config.replace("- alerts.yaml", f"- {PROMETHEUS / 'alerts.yaml'}")
        (folder / "prometheus.yaml").write_text(config)
        cls.port = servers.free_port()
        with open(folder / "log", "w") as log:
            collector = subprocess.Popen(["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
                                          f"--web.listen-address=127.0.0.1:{cls.port}"], stdout=log, stderr=subprocess.STDOUT)
        cls.addClassCleanup(collector.wait)
        cls.addClassCleanup(collector.kill)

    def api(self, path, **query):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as reply:
                return json.load(reply)["data"]
        except OSError:  # it has only just started
            return {}

    def test_panels_are_not_empty(self):
        self.stop_until_a_long_turn()
        for name, dashboard in dashboards().items():
            for title, expression in expressions(dashboard):
                if SELECTOR.search(expression)[1] in RARE:
                    continue

                def shown():
                    self.ask_all()  # what is a rate of requests is there while there are some
                    return self.api("query", query=with_values(expression, "30s")).get("result")
                until(shown, f"{name}, {title}: something of {expression}", 60)

    def test_alerts_are_evaluated(self):
        def evaluated():
            rules = [rule for group in self.api("rules").get("groups", ()) for rule in group["rules"]]
            return len(rules) == len(re.findall("- alert:", alerts())) and all(rule["health"] == "ok" for rule in rules)
        until(evaluated, lambda: f"rules that are evaluated: {self.api('rules')}", 60)
        self.assertEqual([alert["labels"]["alertname"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"], [])
