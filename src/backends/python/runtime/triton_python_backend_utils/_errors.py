"""Errors: those that models answer with, and those that the functions of this package raise."""

import enum


class TritonModelException(Exception):
    """Raised by the functions of this package."""


class NamedNumber(enum.IntEnum):
    """A number that is shown by its name, on every version of Python."""

    def __str__(self):
        return f"{type(self).__name__}.{self.name}"

    __format__ = enum.Enum.__format__


def valid_text(text):
    """The text without surrogates on their own, such as names of files may have: no message can carry them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class _ErrorCode(NamedNumber):
    """The server's codes."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


# As upstream's is shown.
_ErrorCode.__name__ = "__ErrorCode"


class TritonError:
    """An error as a response carries it."""

    UNKNOWN = _ErrorCode.UNKNOWN
    INTERNAL = _ErrorCode.INTERNAL
    NOT_FOUND = _ErrorCode.NOT_FOUND
    INVALID_ARG = _ErrorCode.INVALID_ARG
    UNAVAILABLE = _ErrorCode.UNAVAILABLE
    UNSUPPORTED = _ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = _ErrorCode.ALREADY_EXISTS
    CANCELLED = _ErrorCode.CANCELLED

    __slots__ = ("_message", "_code")

    def __init__(self, message, code=_ErrorCode.INTERNAL):
        if not isinstance(message, str):
            raise TypeError(f"the message of a TritonError is a str, got {type(message).__name__}")
        self._message = valid_text(message)
        self._code = _ErrorCode(code)

    def code(self):
        return self._code

    def message(self):
        return self._message

    def __repr__(self):
        return f"TritonError({self._message!r}, {self._code.name})"
