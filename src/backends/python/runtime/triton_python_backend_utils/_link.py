"""The connection of this process to the server that started it.

The process that serves a model sets it before it imports the model; elsewhere there is none, and what needs a server raises."""

from ._errors import TritonModelException

_connection = None


def connect(connection):
    global _connection
    _connection = connection


def connection():
    if _connection is None:
        raise TritonModelException("there is no server: this process was not started by the Python backend")
    return _connection
