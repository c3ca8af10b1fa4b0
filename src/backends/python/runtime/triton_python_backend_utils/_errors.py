"""Errors: those that models answer with, and those that the functions of this package raise."""

import enum


class TritonModelException(Exception):
    """Raised by the functions of this package."""


class _ErrorCode(enum.IntEnum):
    """The server's codes."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


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
        self._message = message
        self._code = _ErrorCode(code)

    def code(self):
        return self._code

    def message(self):
        return self._message

    def __repr__(self):
        return f"TritonError({self._message!r}, {self._code.name})"
