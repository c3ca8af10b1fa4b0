"""What a model may ask of the server that is no request: log lines, metrics, other models."""

import json
import math
import sys
import weakref

from . import _link
from ._errors import NamedNumber, TritonModelException


class LogLevel(NamedNumber):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """Lines into the server's log, with the model's file and line."""

    LogLevel = LogLevel
    INFO, WARNING, ERROR, VERBOSE = LogLevel

    @staticmethod
    def _write(level, message):
        frame = sys._getframe(2)
        _link.connection().log(int(level), frame.f_code.co_filename, frame.f_lineno, str(message))

    @staticmethod
    def log(message, level=LogLevel.INFO):
        Logger._write(LogLevel(level), message)

    @staticmethod
    def log_info(message):
        Logger._write(LogLevel.INFO, message)

    @staticmethod
    def log_warn(message):
        Logger._write(LogLevel.WARNING, message)

    @staticmethod
    def log_error(message):
        Logger._write(LogLevel.ERROR, message)

    @staticmethod
    def log_verbose(message):
        Logger._write(LogLevel.VERBOSE, message)


class MetricKind(NamedNumber):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


def _ask(prefix, call, **fields):
    connection = _link.connection()
    try:
        return connection.ask(call, **fields)
    except TritonModelException as error:
        raise TritonModelException(f"{prefix}: Failed to process the request for model '{connection.name}', message: {error}") from None


def _number(value):
    """As a message carries it: JSON has no infinities."""
    value = float(value)
    return value if math.isfinite(value) else repr(value)


class Metric:
    """One value of a family. It lives as long as the family, whether the model keeps it or asks for it again."""

    def __init__(self, family, handle):
        self._family, self._handle = weakref.ref(family), handle

    def _operate(self, what, op, value):
        prefix = f"Failed to {what} metric value"
        if self._family() is None:
            raise TritonModelException(
                f"{prefix}: Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
                f"be deleted AFTER its corresponding 'Metric' objects have been deleted.")
        return _ask(prefix, "metric", h=self._handle, op=op, v=_number(value))

    def increment(self, value):
        self._operate("increment", "increment", value)

    def set(self, value):
        self._operate("set", "set", value)

    def observe(self, value):
        self._operate("observe", "observe", value)

    def value(self):
        return float(self._operate("get", "value", 0.0)["v"])


class MetricFamily:
    """A name in the server's metrics, with any number of values that differ in their labels."""

    COUNTER, GAUGE, HISTOGRAM = MetricKind

    def __init__(self, name, description, kind):
        self._handle, self._metrics = None, {}
        self._kind = MetricKind(kind)
        made = _ask("Error when creating MetricFamily", "family", name=str(name), text=str(description), kind=int(self._kind))
        self._handle = made["h"]

    def Metric(self, labels=None, buckets=None):
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if buckets is not None and self._kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if buckets is None and self._kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        # As text, which is what labels are.
        texts = {str(key): value if isinstance(value, str) else json.dumps(value) for key, value in (labels or {}).items()}
        edges = [_number(edge) for edge in buckets or ()]
        key = (frozenset(texts.items()), tuple(edges))
        metric = self._metrics.get(key)
        if metric is None:
            made = _ask("Error when creating Metric", "new_metric", h=self._handle, labels=texts, buckets=edges)
            metric = self._metrics.setdefault(key, Metric(self, made["h"]))
        return metric

    def __del__(self):
        if self._handle is not None:
            _link.connection().drop("family", self._handle)


def load_model(model_name, config="", files=None):
    """Loads a model; blocks until it is ready. `files` are bytes by path, beginning with `file:`."""
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents")
    connection = _link.connection()
    try:
        connection.load_model(str(model_name), config or "", files or {})
    except TritonModelException as error:
        raise TritonModelException(f"Failed to load model: Failed to process the request for model '{connection.name}', message: {error}") from None


def unload_model(model_name, unload_dependents=False):
    """Has a model unloaded; returns before it is."""
    _ask("Failed to unload model", "unload", m=str(model_name), d=bool(unload_dependents))


def is_model_ready(model_name, model_version=""):
    return _ask("Failed to check model readiness", "is_ready", m=str(model_name), v=str(model_version))["v"]
