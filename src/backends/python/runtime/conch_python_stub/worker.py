"""Commands of the backend, and the model that they are for."""

import asyncio
import atexit
import contextlib
import functools
import importlib
import json
import os
import sys
import threading
import traceback

import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import InferenceRequest, InferenceResponse, TritonModelException, _link, _native
from triton_python_backend_utils._errors import valid_text

from . import process
from .connection import Connection

INTERNAL = 1
# Folders whose lines are not told of in errors of models.
OWN = tuple(os.path.dirname(os.path.abspath(file)) for file in (__file__, pb_utils.__file__))


def _text_of(error):
    """An exception as clients are shown it, with where it came from."""
    if isinstance(error, ImportError):
        return process.import_failure(error)
    lines = traceback.extract_tb(error.__traceback__)
    places = [f"  {frame.filename}({frame.lineno}): {frame.name}" for frame in lines if not frame.filename.startswith(OWN)]
    if not places and isinstance(error, TritonModelException):
        # This program's own words.
        return str(error)
    text = valid_text(f"{type(error).__name__}: {error}")
    return text + "\n\nAt:\n" + "\n".join(reversed(places)) + "\n" if places else text


class Worker:
    """Serves one instance, or completes one configuration."""

    def __init__(self, start):
        self._start, self._is_decoupled = start, start["decoupled"]
        self._model, self._loop, self._futures = None, None, set()
        self._connection = Connection(start)
        _link.connect(self._connection)
        InferenceRequest._is_decoupled = self._is_decoupled
        # Some models import it by upstream's name.
        sys.modules.setdefault("c_python_backend_utils", pb_utils)

    def run(self):
        while True:
            command = _native.next_command()
            if type(command) is list:
                self._execute(command)
            else:
                self._run_command(json.loads(command))
            # What it refers to goes before the next one is waited for.
            command = None

    def _run_command(self, message):
        kind = message["k"]
        commands = {"complete": self._complete, "initialize": self._initialize, "finalize": self._finalize}
        try:
            reply = commands[kind](message)
        except Exception as error:  # noqa: BLE001 whatever it is, the backend waits for an answer
            traceback.print_exc()
            reply = {"e": [INTERNAL, _text_of(error)]}
        self._reply(reply)
        if kind == "finalize":
            self._end()

    def _import_model(self):
        """The module of the model, from the version's folder or the backend's own."""
        path = self._start["model_path"]
        runtime = self._start.get("runtime_dir")
        folder, name = (runtime, "model") if runtime else (os.path.dirname(path), os.path.splitext(os.path.basename(path))[0])
        if not runtime:
            if not os.path.exists(path):
                raise TritonModelException(f"Python model file not found in '{path}'")
            if not path.endswith(".py"):
                raise TritonModelException(f"Model name must end with '.py'. Model name is \"{os.path.basename(path)}\".")
            version = os.path.basename(folder)
            places = [folder, os.path.dirname(folder)]
            name = f"{version}.{name}"
        else:
            places = [folder]
        last = sys.path.pop()
        sys.path.extend([*places, last])
        return importlib.import_module(name)

    def _complete(self, message):
        module = self._import_model()
        config = pb_utils.ModelConfig(message["config"])
        complete = getattr(module.TritonPythonModel, "auto_complete_config", None)
        if complete is not None:
            config = complete(config)
        if not isinstance(config, pb_utils.ModelConfig):
            raise TritonModelException(f"auto_complete_config function in model '{self._start['name']}' must return a valid pb.ModelConfig object.")
        return {"config": config._model_config}

    def _initialize(self, message):
        module = self._import_model()
        self._model = module.TritonPythonModel()
        if hasattr(self._model, "initialize"):
            self._connection.takes_calls = False
            self._model.initialize(message["args"])
        self._connection.takes_calls = True
        has_ready = hasattr(self._model, "is_ready")
        if has_ready:
            threading.Thread(target=self._answer_ready, name="is_ready", daemon=True).start()
        return {"is_ready": has_ready}

    def _answer_ready(self):
        """Answers whether the model is ready, while it may be executing."""
        while True:
            asked = self._connection.ask("readiness")
            try:
                ready = self._model.is_ready()
                if asyncio.iscoroutine(ready):
                    ready = asyncio.run_coroutine_threadsafe(ready, self._event_loop()).result()
                if not isinstance(ready, bool):
                    raise TritonModelException("is_ready() must return a boolean value")
                self._connection.ask("is_ready_reply", n=asked["n"], v=ready)
            except Exception as error:  # noqa: BLE001 the backend says why the model is not ready
                self._connection.ask("is_ready_reply", n=asked["n"], v=False, m=_text_of(error))

    def _execute(self, requests):
        try:
            returned = self._call_model(requests)
            if type(returned) is not list or len(returned) != len(requests) or self._is_decoupled:
                returned = self._checked(requests, returned)
            _native.reply_requests(requests, returned)
        except BaseException as error:
            # What failed is answered by the backend, so nothing may be sent any more.
            for request in requests:
                request._close()
            if not isinstance(error, Exception):
                raise
            text = self._failure(error)
            self._connection.log(2, __file__, 0, text)
            self._settle(requests)
            self._reply({"e": [INTERNAL, text]})

    def _settle(self, requests):
        """Has the server handle what senders posted before it reads the reply: it answers requests for good."""
        if any(request._sender is not None and request._sender._count for request in requests):
            self._connection.settle()

    def _call_model(self, requests):
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise TritonModelException(f"Python model {self._start['model_path']} does not implement `execute` method.")
        returned = execute(requests)
        if type(returned) is list or not asyncio.iscoroutine(returned):
            return returned
        future = asyncio.run_coroutine_threadsafe(returned, self._event_loop())
        if not self._is_decoupled:
            return future.result()
        # It goes on while the next requests are executed.
        self._futures.add(future)
        future.add_done_callback(functools.partial(self._report, requests))
        return None

    def _event_loop(self):
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()
        return self._loop

    def _report(self, requests, future):
        """Logs how a coroutine failed, and ends what it left without an end."""
        self._futures.discard(future)
        if future.cancelled() or future.exception() is None:
            return
        error = future.exception()
        self._connection.log(2, __file__, 0, "".join(traceback.format_exception(type(error), error, error.__traceback__)))
        answer = InferenceResponse(error=pb_utils.TritonError(self._failure(error)))
        for request in requests:
            # Another thread may end it meanwhile.
            with contextlib.suppress(TritonModelException):
                request.get_response_sender().send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _failure(self, error):
        return f"Failed to process the request(s) for model '{self._start['name']}', message: {_text_of(error)}"

    def _checked(self, requests, returned):
        """A list of what `execute` returned, one for each request. Raises if it is not what the model is to return."""
        if returned is not None and self._is_decoupled:
            raise TritonModelException(f"Python model '{self._start['name']}' is using the decoupled mode and the execute function must return None.")
        if returned is None:
            return [None] * len(requests)
        if not isinstance(returned, list):
            raise TritonModelException(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(requests) != len(returned):
            raise TritonModelException(
                f"Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size is:"
                f"{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n")
        return returned

    @staticmethod
    def _reply(reply):
        _native.reply(valid_text(json.dumps(reply, ensure_ascii=False)))

    def _finalize(self, _message):
        self._connection.takes_calls = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        if hasattr(self._model, "finalize"):
            self._model.finalize()
        return {}

    def _end(self):
        self._model = None
        # What the model and its libraries registered to run at exit: they remove their files and end their processes. Threads of the model's
        # own hold nothing up. The backend kills a process that takes too long.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

