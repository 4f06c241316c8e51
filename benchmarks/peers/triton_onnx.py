"""An ONNX model in Triton's Python backend, the only one that its package has: all requests as one batch."""

# The first import makes the environment's other packages importable.
import triton_python_backend_utils as utils  # isort: skip

import numpy as np
import onnxruntime


class TritonPythonModel:
    """MODEL_PATH and NUM_THREADS are written in before it is loaded."""

    def initialize(self, args: dict) -> None:
        """Opens the session."""
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = int("NUM_THREADS")
        self.session = onnxruntime.InferenceSession("MODEL_PATH", settings, providers=["CPUExecutionProvider"])

    def execute(self, requests: list) -> list:
        """Joined, computed, split."""
        rows = [utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        (result,) = self.session.run(None, {"x": np.concatenate(rows)})
        ends = np.cumsum([len(it) for it in rows])[:-1]
        return [utils.InferenceResponse([utils.Tensor("y", it)]) for it in np.split(result, ends)]
