"""Metrics that models in Python add to the server's."""

import unittest

from tritonclient.utils import InferenceServerException

from python_script import everywhere, ours
from waiting import until_equal

FAMILY = "family = pb_utils.MetricFamily(name='{}', description='of a test', kind=pb_utils.MetricFamily.{})\n"


def page(case, name):
    """What the server tells of a family."""
    lines = case.server.get("/metrics", port="metrics")[1].decode().splitlines()
    return [line for line in lines if name in line]


@everywhere
class Metrics:
    """What does not fail: the process of upstream's backend, or its server, often ends with an error."""

    def test_counters(self):
        self.check((
            FAMILY.format("test_counter", "COUNTER") + "one = family.Metric(labels={'a': 'b'}); same = family.Metric(labels={'a': 'b'})\n"
            "other, plain = family.Metric(labels={'a': 'c'}), family.Metric()\none.increment(2); same.increment(1.5)\n"
            "result = [one.value(), same.value(), other.value(), plain.value()]\ndel same; gc.collect(); result.append(one.value())\n"
            "again = pb_utils.MetricFamily('test_counter', 'of a test', pb_utils.MetricFamily.COUNTER); last = again.Metric(labels={'a': 'b'})\n"
            "last.increment(1); result += [one.value(), last.value()]; kept['counters'] = (family, again, one, other, plain, last)",
            [3.5, 3.5, 0, 0, 3.5, 4.5, 4.5]))
        self.assertEqual(sorted(page(self, "test_counter")), sorted([
            "# HELP test_counter of a test", "# TYPE test_counter counter", 'test_counter{a="b"} 4.5', 'test_counter{a="c"} 0', "test_counter 0"]))
        self.check(("kept.pop('counters') and gc.collect() * 0", 0))
        until_equal(lambda: page(self, "test_counter"), [], "what is left of a family that is gone")

    def test_metrics_live_as_long_as_their_family(self):
        self.check(
            (FAMILY.format("test_kept", "COUNTER") + "for _ in range(3): family.Metric(labels={'z': '1'}).increment(2); gc.collect()\n"
             "kept['family'] = family; result = family.Metric(labels={'z': '1'}).value()", 6))
        self.assertEqual(page(self, "test_kept")[-1], 'test_kept{z="1"} 6')
        self.check(("kept.pop('family') and gc.collect() * 0", 0))
        until_equal(lambda: page(self, "test_kept"), [], "what is left of a family that is gone")

    def test_gauges(self):
        self.check(
            (FAMILY.format("test_gauge", "GAUGE") + "m = family.Metric(labels={}); result = [m.value()]\n"
             "for value in (-4.5, 1e300): m.set(value); result.append(m.value())\nm.set(1); m.increment(-3); result.append(m.value())\n"
             "for value in (float('inf'), float('-inf'), float('nan')): m.set(value); result.append(str(m.value()))",
             [0, -4.5, 1e300, -2, "inf", "-inf", "nan"]),
        )

    def test_histograms(self):
        self.check((
            FAMILY.format("test_histogram", "HISTOGRAM") + "m = family.Metric(labels={'k': '3'}, buckets=[1.0, 5.0])\n"
            "for value in (0.5, 1, 3, 100): m.observe(value)\nkept['histogram'] = family, m; result = None", None))
        self.assertEqual(page(self, "test_histogram"), [
            "# HELP test_histogram of a test", "# TYPE test_histogram histogram", 'test_histogram_count{k="3"} 4', 'test_histogram_sum{k="3"} 104.5',
            'test_histogram_bucket{k="3",le="1"} 2', 'test_histogram_bucket{k="3",le="5"} 3', 'test_histogram_bucket{k="3",le="+Inf"} 4'])
        prefix = FAMILY.format("test_refused", "HISTOGRAM")
        self.check_failures(
            (prefix + "family.Metric(labels={'k': '1'})", "TritonModelException: Failed to create metric. Missing required buckets."),
            (prefix + "family.Metric(labels={'k': '1'}, buckets=(1.0,))", "TritonModelException: Failed to create metric. Buckets must be a list."),
            (prefix + "family.Metric(labels=[1], buckets=[1.0])", "TritonModelException: Failed to create metric. Labels must be a dictionary."),
            (FAMILY.format("test_refused_counter", "COUNTER") + "family.Metric(buckets=[1.0])",
             "TritonModelException: Failed to create metric. Unexpected buckets found."),
        )

    def test_a_family_takes_its_metrics_along(self):
        gone = ("TritonModelException: Failed to {} metric value: Invalid metric operation as the corresponding 'MetricFamily' has been deleted. "
                "The 'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been deleted.")
        for call, what in (("increment(1)", "increment"), ("set(1)", "set"), ("observe(1)", "observe"), ("value()", "get")):
            code = FAMILY.format("test_gone", "COUNTER") + f"m = family.Metric(); kept['orphan'] = m\ndel family; gc.collect()\nm.{call}"
            self.assertEqual(self.failure(code), gone.format(what))
        until_equal(lambda: page(self, "test_gone"), [], "what is left of a family that is gone")

    def test_names(self):
        self.check(
            ("[str(kind) for kind in (pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE, pb_utils.MetricFamily.HISTOGRAM)]",
             ["MetricKind.COUNTER", "MetricKind.GAUGE", "MetricKind.HISTOGRAM"]))


@ours
class Errors:
    """What fails. Upstream's texts; its server ends with many of them."""

    def assert_fails(self, kind, code, prefix, text):
        self.assertEqual(self.failure(FAMILY.format(f"test_failing_{kind.lower()}", kind) + code),
                         f"TritonModelException: {prefix}: Failed to process the request for model 'script_0_0', message: {text}")

    def test_operations(self):
        for kind, code, what, text in (
                ("COUNTER", "increment(-1)", "increment",
                 "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."),
                ("COUNTER", "set(3)", "set", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
                ("COUNTER", "observe(3)", "observe", "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
                ("GAUGE", "observe(3)", "observe", "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
                ("HISTOGRAM", "set(3)", "set", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
                ("HISTOGRAM", "increment(3)", "increment", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
                ("HISTOGRAM", "value()", "get", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value")):
            with self.subTest(f"{kind} {code}"):
                buckets = "buckets=[1.0]" if kind == "HISTOGRAM" else ""
                self.assert_fails(kind, f"family.Metric({buckets}).{code}", f"Failed to {what} metric value", text)

    def test_families(self):
        same = "other = pb_utils.MetricFamily('test_failing_counter', '{}', pb_utils.MetricFamily.{})\nresult = None"
        self.check((FAMILY.format("test_failing_counter", "COUNTER") + same.format("described otherwise", "COUNTER"), None))
        for code in (same.format("of a test", "GAUGE"), "pb_utils.MetricFamily('a b', 'x', pb_utils.MetricFamily.COUNTER)"):
            text = self.failure(FAMILY.format("test_failing_counter", "COUNTER") + code)
            self.assertRegex(text, "^TritonModelException: Error when creating MetricFamily: Failed to process the request for model 'script_0_0', "
                                   "message: .")

    def test_buckets_that_are_not_sorted(self):
        text = self.failure(FAMILY.format("test_unsorted", "HISTOGRAM") + "family.Metric(buckets=[3.0, 1.0])")
        self.assertRegex(text, "^TritonModelException: Error when creating Metric: Failed to process the request for model 'script_0_0', message: "
                               "Bucket ")

    def test_a_process_that_ends(self):
        """Its metrics go with it, and the next one has its own."""
        begin = FAMILY.format("test_ended", "COUNTER") + "m = family.Metric(); m.increment({}); kept['ended'] = family, m; result = m.value()"
        self.check((begin.format(5), 5))
        self.assertEqual(page(self, "test_ended")[-1], "test_ended 5")
        with self.assertRaisesRegex(InferenceServerException, "Stub process 'script_0_0' is not healthy."):
            self.script("__import__('os')._exit(1)")
        until_equal(lambda: page(self, "test_ended"), [], "what is left of a process that ended")
        self.check((begin.format(1), 1))
        self.assertEqual(page(self, "test_ended")[-1], "test_ended 1")


if __name__ == "__main__":
    unittest.main()
