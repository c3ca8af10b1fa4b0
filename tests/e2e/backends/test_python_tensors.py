"""Tensors of models in Python: every data type through the wire, and memory that is shared with other frameworks by DLPack."""

import json
import unittest

import numpy
import tritonclient.http as httpclient

from python_script import everywhere, ours
from repository import tensors
from test_python_backend import python

TYPES = {
    "BOOL": [True, False, True], "UINT8": [0, 255], "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1], "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127], "INT16": [-2**15, 2**15 - 1], "INT32": [-2**31, 2**31 - 1], "INT64": [-2**63, 2**63 - 1],
    "FP16": [0.5, -65504.0], "FP32": [1.5, -1e30], "FP64": [1e-300, -1e300], "STRING": ["", "x", "αβγ", "\0"],
}
NUMPY = {
    "BOOL": bool, "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "INT8": "i1", "INT16": "i2", "INT32": "i4", "INT64": "i8",
    "FP16": "f2", "FP32": "f4", "FP64": "f8", "STRING": object,
}

# Gives back what it gets; numpy has no BF16, which goes by DLPack.
MIRROR = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = []
            for tensor in request.inputs():
                name = tensor.name().replace("IN", "OUT", 1)
                if "BF16" in name:
                    outputs.append(pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack()))
                else:
                    outputs.append(pb_utils.Tensor(name, tensor.as_numpy()))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
'''

# A framework's tensor: the memory of a numpy array by DLPack, as torch gives it away.
FRAMEWORK = '''
import ctypes

class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]

class Kind(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]

class Managed(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("rank", ctypes.c_int32), ("kind", Kind),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

class Framework:
    def __init__(self, array, code=0, device=(1, 0), lanes=1, byte_offset=0):
        self.array, self.device, self.deleted = array, device, 0
        self.dims = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        self.steps = (ctypes.c_int64 * max(array.ndim, 1))(*[step // array.itemsize for step in array.strides])
        self.deleter = DELETER(self.delete)
        self.managed = Managed(array.ctypes.data - byte_offset, Device(*device), array.ndim, Kind(code, array.itemsize * 8, lanes), self.dims,
                               self.steps, byte_offset, None, ctypes.cast(self.deleter, ctypes.c_void_p))
        kept.setdefault("frameworks", []).append(self)

    def delete(self, _):
        self.deleted += 1

    def __dlpack__(self, stream=None):
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self):
        return self.device

'''


def mirror(repository):
    names = [*TYPES, "BF16"]
    optional = "".join(f'input {{ name: "IN_{name}" data_type: TYPE_{name} dims: [ -1, -1 ] optional: true }}\n' for name in names)
    repository.model("mirror", 'backend: "python"\nmax_batch_size: 0\ninstance_group [ { kind: KIND_CPU } ]\n' + optional
                     + tensors("output", [(f"OUT_{name}", name, (-1, -1)) for name in names]), files={"1/model.py": MIRROR.encode()})
    scalar = ('input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } }\n'
              'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } }\n')
    repository.model("scalar", python([], [], 4) + scalar, files={"1/model.py": MIRROR.encode()})


@everywhere
class Tensors:
    """Data types, as models see them and as clients do."""

    models = staticmethod(mirror)

    def mirrored(self, module, address, **arrays):
        """What comes back for tensors by data type."""
        tensors_, outputs = [], []
        for name, array in arrays.items():
            tensor = module.InferInput(f"IN_{name}", list(array.shape), name.replace("STRING", "BYTES"))
            tensor.set_data_from_numpy(array)
            tensors_.append(tensor)
            outputs.append(module.InferRequestedOutput(f"OUT_{name}"))
        with module.InferenceServerClient(address) as client:
            result = client.infer("mirror", tensors_, outputs=outputs)
        return {name: result.as_numpy(f"OUT_{name}") for name in arrays}

    def test_types(self):
        """Each on its own and all together: what a request leaves out of its optional inputs is not there."""
        arrays = {name: numpy.array([values], NUMPY[name]) for name, values in TYPES.items()}
        expected = {name: array.astype(numpy.uint32) if name == "BOOL" else array for name, array in arrays.items()}
        expected["STRING"] = numpy.array([[text.encode() for text in TYPES["STRING"]]], object)
        for module, address in self.clients():
            for chosen in [[name] for name in arrays] + [list(arrays)]:
                with self.subTest(module=module.__name__, types=chosen):
                    result = self.mirrored(module, address, **{name: arrays[name] for name in chosen})
                    for name in chosen:
                        self.assertEqual(result[name].tolist(), expected[name].tolist(), name)

    def test_bf16(self):
        """As bytes: clients have no such type either."""
        raw = numpy.array([1.5, -2, 3e38], numpy.float32).view(numpy.uint16)[1::2].tobytes()
        head = json.dumps({"inputs": [{"name": "IN_BF16", "datatype": "BF16", "shape": [1, 3], "parameters": {"binary_data_size": len(raw)}}],
                           "outputs": [{"name": "OUT_BF16", "parameters": {"binary_data": True}}]}).encode()
        status, headers, body = self.server.request("POST", "/v2/models/mirror/infer", head + raw,
                                                    {"Inference-Header-Content-Length": str(len(head))})
        self.assertEqual(status, 200, body)
        length = int(headers["inference-header-content-length"])
        (output,) = json.loads(body[:length])["outputs"]
        self.assertEqual((output["name"], output["datatype"], output["shape"], body[length:]), ("OUT_BF16", "BF16", [1, 3], raw))

    def test_nothing(self):
        """Tensors without elements."""
        for module, address in self.clients():
            for name in ("FP32", "STRING", "BOOL"):
                with self.subTest(module=module.__name__, type=name):
                    result = self.mirrored(module, address, **{name: numpy.zeros((0, 3), NUMPY[name])})
                    self.assertEqual(result[name].shape, (0, 3))

    def test_scalars(self):
        """A model sees the batch dimension alone, or a number."""
        with httpclient.InferenceServerClient(self.server.http) as client:
            tensor = httpclient.InferInput("IN", [3, 1], "INT32")
            tensor.set_data_from_numpy(numpy.array([[1], [2], [3]], numpy.int32))
            self.assertEqual(client.infer("scalar", [tensor]).as_numpy("OUT").tolist(), [[1], [2], [3]])
        self.check(
            ("(lambda t: [t.shape(), t.as_numpy().shape, int(t.as_numpy())])(pb_utils.Tensor('A', np.array(7, np.int32)))", [[], [], 7]),
            ("(lambda t: [t.shape(), t.as_numpy().shape])(pb_utils.Tensor('A', np.zeros((0, 3), np.object_)))", [[0, 3], [0, 3]]),
        )

    def test_arrays(self):
        """What an array becomes as a tensor."""
        self.check(
            ("[pb_utils.Tensor('A', np.zeros((2, 3), t)).shape() for t in (np.bool_, np.float16, np.object_, np.bytes_)]", [[2, 3]] * 4),
            ("(lambda a: pb_utils.Tensor('A', a).as_numpy() is a)(np.zeros(3))", True),
            ("pb_utils.Tensor('A', np.arange(6).reshape(2, 3).T).as_numpy().tolist()", [[0, 3], [1, 4], [2, 5]]),
            ("pb_utils.Tensor('A', np.arange(6).reshape(2, 3).T).as_numpy().flags.c_contiguous", True),
            ("[repr(element) for element in pb_utils.Tensor('A', np.array([1, 'é', b'x', None], object)).as_numpy()]",
             ["1", "'é'", "b'x'", "None"]),
            ("[str(element) for element in pb_utils.Tensor('A', np.array([b'abc', b'd'])).as_numpy()]", ["b'abc'", "b'd'"]),
            ("pb_utils.Tensor('A', np.zeros(2)).is_cpu()", True),
            ("(lambda a: [a.flags.writeable, a.flags.owndata])(request.inputs()[0].as_numpy())", [True, False]),
        )
        self.check_failures(
            ("pb_utils.Tensor('', np.zeros(2))", "TritonModelException: Tensor name cannot be an empty string."),
            ("pb_utils.Tensor('A', np.array(['a', 'bc']))", "TritonModelException: NumPy dtype is not supported."),
            ("pb_utils.Tensor('A', np.zeros(2, np.complex64))", "TritonModelException: NumPy dtype is not supported."),
            ("pb_utils.Tensor('A', np.zeros(2, '>i4'))", "TritonModelException: NumPy dtype is not supported."),
        )
        self.assertTrue(self.failure("pb_utils.Tensor('A', [1, 2])").startswith("TypeError: "))

    def test_objects_become_texts(self):
        """What an array of objects holds, as a client gets it."""
        self.assertEqual(self.script("repr(pb_utils.serialize_byte_tensor(np.array([b'a', 'é', 3, None, 2.5], object)))"), repr(
            b"\1\0\0\0a\2\0\0\0\xc3\xa9\1\0\0\x003\4\0\0\0None\3\0\0\x002.5"))
        self.check(
            ("repr(pb_utils.serialize_byte_tensor(np.array([b'ab', b'c'])))", repr(b"\2\0\0\0ab\1\0\0\0c")),
            ("repr(pb_utils.serialize_byte_tensor(np.zeros(0, object)))", "()"),
            ("repr(pb_utils.serialize_byte_tensor(np.zeros(2)))", "None"),
            ("[str(e) for e in pb_utils.deserialize_bytes_tensor(b'\\1\\0\\0\\0a\\0\\0\\0\\0')]", ["b'a'", "b''"]),
            ("str(pb_utils.deserialize_bytes_tensor(b'\\1\\0\\0\\0a\\1\\0\\0\\0b').dtype)", "object"),
        )

    def test_names_of_types(self):
        self.check(
            ("[str(pb_utils.triton_to_numpy_type(number)) for number in (0, 1, 10, 13, 14)]",
             ["None", "<class 'numpy.bool_'>", "<class 'numpy.float16'>", "<class 'numpy.object_'>", "None"]),
            ("[pb_utils.numpy_to_triton_type(t) for t in (np.bool_, np.uint8, np.float16, np.object_, np.bytes_, np.complex64)]",
             [1, 2, 10, 13, 13, None]),
            ("str(pb_utils.triton_string_to_numpy('TYPE_FP16'))", "<class 'numpy.float16'>"),
        )
        self.assertEqual(self.failure("pb_utils.triton_string_to_numpy('TYPE_BF16')"), "KeyError: 'TYPE_BF16'")


@everywhere
class Shared:
    """Memory that tensors and frameworks share."""

    models = staticmethod(mirror)

    def test_tensors_are_given_away(self):
        self.check(
            ("t = pb_utils.Tensor('A', np.arange(6, dtype=np.int16).reshape(2, 3)); a = np.from_dlpack(t)\n"
             "t.as_numpy()[0, 0] = 99\nresult = [a.tolist(), str(a.dtype), np.shares_memory(a, t.as_numpy())]",
             [[[99, 1, 2], [3, 4, 5]], "int16", True]),
            ("t = pb_utils.Tensor('A', np.arange(3)); result = [list(t.__dlpack_device__()), [type(c).__name__ for c in (t.to_dlpack(), "
             "t.__dlpack__(), t.__dlpack__(None), t.__dlpack__(stream=None))]]", [[1, 0], ["PyCapsule"] * 4]),
            ("np.from_dlpack(pb_utils.Tensor('A', np.array([1.5, -2], np.float16))).tolist()", [1.5, -2]),
            ("pb_utils.Tensor.from_dlpack('B', pb_utils.Tensor('A', np.array([True, False]))).as_numpy().tolist()", [True, False]),
        )
        self.assertEqual(self.failure("pb_utils.Tensor('A', np.array([b'a'], object)).to_dlpack()"),
                         "TritonModelException: DLPack does not have support for string tensors.")

    def test_a_tensor_of_a_tensor(self):
        """Writing into one shows in the other. (Upstream's `as_numpy` of such a tensor is a copy.)"""
        self.check(
            ("t = pb_utils.Tensor('A', np.arange(3)); other = pb_utils.Tensor.from_dlpack('B', t.to_dlpack())\n"
             "t.as_numpy()[1] = 7; result = [other.name(), np.from_dlpack(other).tolist()]", ["B", [0, 7, 2]]),
        )

    def test_memory_outlives_its_tensor(self):
        self.check((
            "def make():\n    return pb_utils.Tensor('A', np.arange(100_000)).to_dlpack()\n"
            "capsule = make(); gc.collect(); junk = [np.full(100_000, 5) for _ in range(8)]\n"
            "tensor = pb_utils.Tensor.from_dlpack('B', capsule); del capsule; gc.collect()\nresult = int(tensor.as_numpy().sum())",
            sum(range(100_000))))

    def test_tensors_of_frameworks(self):
        """From an object, or from its capsule; written into afterwards; given back once."""
        for given in ("framework", "framework.__dlpack__()"):
            self.check(
                (FRAMEWORK + f"array = np.arange(6, dtype=np.int32).reshape(2, 3); framework = Framework(array)\n"
                 f"tensor = pb_utils.Tensor.from_dlpack('B', {given}); array[1, 2] = 99\n"
                 "result = [tensor.name(), tensor.shape(), np.from_dlpack(tensor).tolist(), framework.deleted]\n"
                 "del tensor; gc.collect(); result.append(framework.deleted)", ["B", [2, 3], [[0, 1, 2], [3, 4, 99]], 0, 1]),
                (FRAMEWORK + f"array = np.arange(6, dtype=np.float64); framework = Framework(array[2:], 2, byte_offset=16)\n"
                 f"result = pb_utils.Tensor.from_dlpack('B', {given}).as_numpy().tolist()", [2, 3, 4, 5]),
                (FRAMEWORK + f"array = np.arange(6, dtype=np.uint8).reshape(6, 1)[:1]; framework = Framework(array, 1)\n"
                 f"result = pb_utils.Tensor.from_dlpack('B', {given}).shape()", [1, 1]),
            )

    def test_what_is_refused(self):
        contiguous = ("TritonModelException: DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                      "supported.")
        self.check_failures(
            (FRAMEWORK + "pb_utils.Tensor.from_dlpack('B', Framework(np.arange(12).reshape(3, 4).T))", contiguous),
            (FRAMEWORK + "pb_utils.Tensor.from_dlpack('B', Framework(np.arange(12).reshape(3, 4)[:, ::2]).__dlpack__())", contiguous),
            (FRAMEWORK + "pb_utils.Tensor.from_dlpack('B', Framework(np.arange(3), device=(7, 0)))",
             "TritonModelException: DLDevice type 7 is not support by Python backend."),
            (FRAMEWORK + "pb_utils.Tensor.from_dlpack('', Framework(np.arange(3)))", "TritonModelException: Tensor name cannot be an empty string."),
        )
        text = self.failure("pb_utils.Tensor.from_dlpack('B', [1, 2])")
        self.assertEqual(" ".join(text.split()), "TritonModelException: Provided tensor is not supported. Tensor must be a DLPack capsule or have "
                                                 "`__dlpack__` and `__dlpack_device__` attributes")

    def test_bf16(self):
        """It has no array."""
        self.check(
            (FRAMEWORK + "array = np.array([0x3fc0, 0xc000], np.uint16); tensor = pb_utils.Tensor.from_dlpack('B', Framework(array, 4))\n"
             "result = [tensor.shape(), tensor.is_cpu(), list(tensor.__dlpack_device__())]", [[2], True, [1, 0]]),
        )
        self.assertEqual(
            self.failure(FRAMEWORK + "pb_utils.Tensor.from_dlpack('B', Framework(np.zeros(2, np.uint16), 4)).as_numpy()"),
            "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead.")


@ours
class SharedByNumpy:
    """What ends upstream's process: capsules of numpy, and capsules and types that cannot be."""

    def test_arrays_of_numpy(self):
        for given in ("array", "array.__dlpack__()"):
            self.check(
                (f"array = np.arange(6.0).reshape(2, 3); tensor = pb_utils.Tensor.from_dlpack('B', {given}); array[0, 0] = 99\n"
                 "result = [tensor.as_numpy().tolist(), np.shares_memory(tensor.as_numpy(), array)]", [[[99, 1, 2], [3, 4, 5]], True]),
                (f"array = np.array(4.5); result = pb_utils.Tensor.from_dlpack('B', {given}).as_numpy().tolist()", 4.5),
                (f"array = np.zeros((0, 2)); result = pb_utils.Tensor.from_dlpack('B', {given}).shape()", [0, 2]),
            )
        self.check(("np.from_dlpack(pb_utils.Tensor('A', np.zeros((0, 2)))).shape", [0, 2]))

    def test_a_capsule_is_used_once(self):
        self.assertEqual(self.failure("capsule = np.arange(3).__dlpack__(); pb_utils.Tensor.from_dlpack('B', capsule)\n"
                                      "pb_utils.Tensor.from_dlpack('C', capsule)"),
                         "TritonModelException: The DLPack capsule was used already, or is none.")

    def test_types_that_no_tensor_has(self):
        for given in ("np.zeros(3, np.complex64)", "Framework(np.zeros(2, np.int32), lanes=2)", "Framework(np.zeros(2, np.uint64), 4)"):
            self.assertEqual(self.failure(FRAMEWORK + f"pb_utils.Tensor.from_dlpack('B', {given})"),
                             "TritonModelException: DLPack dtype is not supported.")


if __name__ == "__main__":
    unittest.main()
