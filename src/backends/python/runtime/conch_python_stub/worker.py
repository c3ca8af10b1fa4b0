"""Commands of the backend, and the model that they are for."""

import asyncio
import importlib
import json
import os
import sys
import threading
import traceback

import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import InferenceRequest, InferenceResponse, TritonModelException, _link

from . import codec, process
from .channel import Exhausted
from .connection import Connection

RELEASE_RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
COMPLETE_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
INTERNAL = 1


def _text_of(error):
    """An exception as clients are shown it, with where it came from."""
    if isinstance(error, ImportError):
        return process.import_failure(error)
    if isinstance(error, TritonModelException):
        return str(error)
    lines = traceback.extract_tb(error.__traceback__)
    own = os.path.dirname(os.path.abspath(__file__))
    places = [f"  {frame.filename}({frame.lineno}): {frame.name}" for frame in lines if not frame.filename.startswith(own)]
    text = f"{type(error).__name__}: {error}"
    return text + "\n\nAt:\n" + "\n".join(reversed(places)) + "\n" if places else text


class Worker:
    """Serves one instance, or completes one configuration."""

    def __init__(self, start, channel):
        self._start, self._channel = start, channel
        self._model, self._loop, self._futures, self._quoted = None, None, set(), set()
        self._connection = Connection(channel, os.path.dirname(start["model_path"]))
        _link.connect(self._connection)
        # Some models import it by upstream's name.
        sys.modules.setdefault("c_python_backend_utils", pb_utils)

    def run(self):
        commands = {"complete": self._complete, "initialize": self._initialize, "execute": self._execute, "finalize": self._finalize}
        while True:
            message, block = self._channel.next_command()
            kind = message["k"]
            try:
                reply, tensors = commands[kind](message, block)
            except BaseException as error:  # noqa: BLE001 whatever it is, the backend waits for an answer
                if isinstance(error, (SystemExit, KeyboardInterrupt)):
                    raise
                if kind != "execute":
                    traceback.print_exc()
                reply, tensors = json.dumps({"e": [INTERNAL, _text_of(error)]}), None
            del message, block
            self._reply(reply, tensors)
            del reply, tensors
            if kind == "finalize":
                self._end()

    def _reply(self, text, tensors):
        parts = () if tensors is None else tensors.parts
        try:
            offset = self._channel.write(text.encode(), parts, may_wait=True)
        except Exhausted as error:
            offset = self._channel.write(json.dumps({"e": [INTERNAL, str(error)]}).encode())
        self._channel.reply(offset)

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

    def _complete(self, message, _):
        module = self._import_model()
        config = pb_utils.ModelConfig(message["config"])
        complete = getattr(module.TritonPythonModel, "auto_complete_config", None)
        if complete is not None:
            config = complete(config)
        if not isinstance(config, pb_utils.ModelConfig):
            raise TritonModelException(f"auto_complete_config function in model '{self._start['name']}' must return a valid pb.ModelConfig object.")
        return json.dumps({"config": config._model_config}), None

    def _initialize(self, message, _):
        module = self._import_model()
        self._model = module.TritonPythonModel()
        if hasattr(self._model, "initialize"):
            self._connection.takes_calls = False
            self._model.initialize(message["args"])
        self._connection.takes_calls = True
        has_ready = hasattr(self._model, "is_ready")
        if has_ready:
            threading.Thread(target=self._answer_ready, name="is_ready", daemon=True).start()
        return json.dumps({"is_ready": has_ready}), None

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

    def _execute(self, message, block):
        base = self._channel.tensors_address(block.offset)
        decoupled = self._start["decoupled"]
        requests = [InferenceRequest._received(fields, _inputs(fields, base, block), decoupled) for fields in message["r"]]
        try:
            returned = self._call_model(requests, decoupled)
            return self._responses(requests, returned, decoupled)
        except BaseException as error:
            # What failed is answered by the backend, so nothing may be sent any more.
            for request in requests:
                request._close()
            if not isinstance(error, Exception):
                raise
            text = f"Failed to process the request(s) for model '{self._start['name']}', message: {_text_of(error)}"
            self._connection.log(2, __file__, 0, text)
            return json.dumps({"e": [INTERNAL, text]}), None

    def _call_model(self, requests, decoupled):
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise TritonModelException(f"Python model {self._start['model_path']} does not implement `execute` method.")
        returned = execute(requests)
        if not asyncio.iscoroutine(returned):
            return returned
        future = asyncio.run_coroutine_threadsafe(returned, self._event_loop())
        if not decoupled:
            return future.result()
        # It goes on while the next requests are executed.
        self._futures.add(future)
        future.add_done_callback(self._report)
        return None

    def _event_loop(self):
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()
        return self._loop

    def _report(self, future):
        self._futures.discard(future)
        if not future.cancelled() and future.exception() is not None:
            error = future.exception()
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._connection.log(2, __file__, 0, text)

    def _responses(self, requests, returned, decoupled):
        """The reply: for each request a response, null if it is answered otherwise, or that it is to be executed again."""
        if returned is not None and decoupled:
            raise TritonModelException(f"Python model '{self._start['name']}' is using the decoupled mode and the execute function must return None.")
        if returned is None:
            returned = [None] * len(requests)
        elif not isinstance(returned, list):
            raise TritonModelException(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(requests) != len(returned):
            raise TritonModelException(
                f"Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size is:"
                f"{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n")
        for request, response in zip(requests, returned):
            _check(request, response)
        writer, rows = codec.MessageWriter(), []
        for request, response in zip(requests, returned):
            if response is not None:
                rows.append(writer.response(response, request._outputs))
                request._close()
            elif request._release_flags == RELEASE_RESCHEDULE:
                rows.append('"again"')
                request._close()
            else:
                # Its sender answers it, or it is given up.
                rows.append("null")
        # The tensors live until they are copied.
        writer.kept = returned
        return '{"r":[' + ",".join(rows) + "]}", writer

    def _finalize(self, _message, _block):
        self._connection.takes_calls = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        if hasattr(self._model, "finalize"):
            self._model.finalize()
        return "{}", None

    def _end(self):
        self._model = None
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of the model's own, and what its libraries do at exit, hold nothing up: the backend waits for the process.
        os._exit(0)


def _inputs(fields, base, block):
    return lambda: codec.inputs_of(fields["i"], base, block)


def _check(request, response):
    if response is None:
        return
    if request._release_flags == RELEASE_RESCHEDULE:
        raise TritonModelException(
            f"Expected a None object in the execute function return list for reschduled request, found type '{type(response)}'.")
    if not isinstance(response, InferenceResponse):
        raise TritonModelException(f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(response)}'.")
    if request._sender is not None:
        request._sender._count_one(response, COMPLETE_FINAL)
