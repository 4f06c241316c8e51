"""LitServe around an ONNX model, as its documents show it:  serve_litserve.py MODEL PORT MAX_BATCH THREADS"""

import sys

import litserve
import numpy as np
import onnxruntime

MODEL, PORT, MAX_BATCH, THREADS = sys.argv[1], *map(int, sys.argv[2:5])


class Api(litserve.LitAPI):
    """A row in, a row out."""

    def setup(self, device: str) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = THREADS
        self.session = onnxruntime.InferenceSession(MODEL, settings, providers=["CPUExecutionProvider"])

    def decode_request(self, request: dict) -> np.ndarray:
        return np.array(request["x"], np.float32)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(None, {"x": x.reshape(-1, x.shape[-1])})[0]

    def encode_response(self, output: np.ndarray) -> dict:
        return {"output": output.ravel().tolist()}


if __name__ == "__main__":
    batching = {"max_batch_size": MAX_BATCH, "batch_timeout": 0.001} if MAX_BATCH > 1 else {}
    server = litserve.LitServer(Api(**batching), accelerator="cpu", timeout=False)
    server.run(host="127.0.0.1", port=PORT, generate_client_file=False, log_level="error")
