"""What models in Python import: tensors, requests, responses, and the server around them."""

from ._config import ModelConfig, get_input_config_by_name, get_output_config_by_name, using_decoupled_model_transaction_policy
from ._errors import TritonError, TritonModelException
from ._requests import (TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, TRITONSERVER_REQUEST_RELEASE_ALL,
                        TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, InferenceRequest, InferenceTrace, MemoryType, PreferredMemory, ResponseIterator)
from ._responses import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponse, InferenceResponseSender
from ._server import Logger, LogLevel, Metric, MetricFamily, MetricKind, is_model_ready, load_model, unload_model
from ._tensor import Tensor
from ._types import (TRITON_STRING_TO_NUMPY, deserialize_bytes_tensor, numpy_to_triton_type, serialize_byte_tensor, triton_string_to_numpy,
                     triton_to_numpy_type)

TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU


def get_input_tensor_by_name(inference_request, name):
    """The input of this name; None if there is none."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response, name):
    """The output of this name; None if there is none."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_model_dir():
    """The folder of the model's version."""
    from . import _link
    return _link.connection().model_dir


def _configure():
    """Tells the library of the classes whose objects it makes and reads."""
    import numpy as np
    from . import _native, _requests, _tensor, _types
    _native.configure({
        "Tensor": Tensor, "InferenceRequest": InferenceRequest, "InferenceResponse": InferenceResponse, "InferenceTrace": InferenceTrace,
        "TritonError": TritonError, "ndarray": np.ndarray, "dtypes": _types.plain_dtypes(), "prepare": _tensor._prepare,
        "as_array": Tensor._as_array, "check": _requests.check_response, "settle": _requests.settle, "received_on_device": _tensor._received_on_device,
        "export_device": _tensor._export_device, "to_host": _tensor._to_host})


_configure()
