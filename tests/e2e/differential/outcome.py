"""What an answer says, as plain values that can be compared path by path."""

import json

from google.protobuf.json_format import MessageToDict

HEADERS = ("content-type", "inference-header-content-length", "content-encoding", "accept-encoding", "endpoint-load-metrics",
           "transfer-encoding")
# Figures of time: that there is one is compared, not which.
TIMES = {"ns", "last_inference", "lastInference"}


def json_value(text):
    """JSON with the order of its members, and numbers as they are written where that matters (integers are exact)."""
    return json.loads(text, object_pairs_hook=lambda pairs: Members(pairs))


class Members(dict):
    """An object: its members and their order."""

    def __init__(self, pairs):
        super().__init__(pairs)
        self.order = [name for name, _ in pairs]


def plain(value, path="", into=None):
    """`value` as a map from paths to leaves."""
    into = {} if into is None else into
    if isinstance(value, dict):
        into[f"{path}{{}}"] = ",".join(value.order if isinstance(value, Members) else sorted(value))
        for name, member in value.items():
            if name in TIMES:
                member = float(member) > 0
            plain(member, f"{path}.{name}" if path else name, into)
    elif isinstance(value, (list, tuple)):
        into[f"{path}[]"] = len(value)
        for index, member in enumerate(value):
            plain(member, f"{path}[{index}]", into)
    else:
        into[path] = value
    return into


def http(status, headers, body):
    """An HTTP answer: status, the headers that clients look at, JSON by value, bytes behind the JSON as they are."""
    seen = {"status": status}
    for name in HEADERS:
        if name in headers:
            seen[f"header {name}"] = headers[name]
    length = int(headers.get("inference-header-content-length", len(body)))
    head, tail = body[:length], body[length:]
    kind = headers.get("content-type", "")
    try:
        plain(json_value(head), "body", seen)
    except ValueError:
        if "event-stream" in kind:
            events = [json_value(line[6:]) if line.startswith("data: ") else line
                      for line in head.decode().split("\n\n") if line]
            plain(events, "events", seen)
        else:
            seen["body"] = head
    if tail:
        seen["tail"] = tail
    return seen


def message(value):
    """A protobuf message; raw contents stay bytes."""
    fields = MessageToDict(value, preserving_proto_field_name=True)
    return plain(fields, "message")


def failure(error):
    return {"code": error.code().name, "details": error.details()}
