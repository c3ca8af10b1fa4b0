"""What a model may ask of the server that is no request: log lines, metrics, other models."""

import enum
import json
import sys

from . import _link
from ._errors import TritonModelException


class LogLevel(enum.IntEnum):
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


class MetricKind(enum.IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


def _ask(prefix, call, **fields):
    try:
        return _link.connection().ask(call, **fields)
    except TritonModelException as error:
        raise TritonModelException(f"{prefix}: {error}") from None


class Metric:
    """One value of a family."""

    def __init__(self, family, handle):
        # The server wants a family to live longer than its metrics.
        self._family, self._handle = family, handle

    def increment(self, value):
        _ask("Failed to increment metric value", "metric", h=self._handle, op="increment", v=float(value))

    def set(self, value):
        _ask("Failed to set metric value", "metric", h=self._handle, op="set", v=float(value))

    def observe(self, value):
        _ask("Failed to observe metric value", "metric", h=self._handle, op="observe", v=float(value))

    def value(self):
        return _ask("Failed to get metric value", "metric", h=self._handle, op="value", v=0.0)["v"]

    def __del__(self):
        _link.connection().drop("metric", self._handle)


class MetricFamily:
    """A name in the server's metrics, with any number of values that differ in their labels."""

    COUNTER, GAUGE, HISTOGRAM = MetricKind

    def __init__(self, name, description, kind):
        self._handle = None
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
        made = _ask("Error when creating Metric", "new_metric", h=self._handle, labels=texts, buckets=[float(edge) for edge in buckets or ()])
        return Metric(self, made["h"])

    def __del__(self):
        if self._handle is not None:
            _link.connection().drop("family", self._handle)


def load_model(model_name, config="", files=None):
    """Loads a model; blocks until it is ready. `files` are bytes by path, beginning with `file:`."""
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents")
    _link.connection().load_model(str(model_name), config or "", files or {})


def unload_model(model_name, unload_dependents=False):
    """Has a model unloaded; returns before it is."""
    _ask("Failed to unload model", "unload", m=str(model_name), d=bool(unload_dependents))


def is_model_ready(model_name, model_version=""):
    return _ask("Failed to check model readiness", "is_ready", m=str(model_name), v=str(model_version))["v"]
