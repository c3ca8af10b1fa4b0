"""The mean of the tokens' vectors, of length 1."""

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            hidden = pb_utils.get_input_tensor_by_name(request, "hidden").as_numpy()
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()[..., None].astype(numpy.float32)
            mean = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
            embedding = mean / numpy.linalg.norm(mean, axis=1, keepdims=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", embedding)]))
        return responses
