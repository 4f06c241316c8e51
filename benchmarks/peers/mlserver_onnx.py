"""An ONNX model as a runtime of MLServer's, as its documents show a custom one."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    """The inputs by name, all outputs."""

    async def load(self) -> bool:
        """Opens the session."""
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = self.settings.parameters.extra["threads"]
        self.session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, settings, providers=["CPUExecutionProvider"]
        )
        self.names = [output.name for output in self.session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Runs it."""
        feeds = {tensor.name: NumpyCodec.decode_input(tensor).astype("float32") for tensor in payload.inputs}
        results = self.session.run(None, feeds)
        outputs = [NumpyCodec.encode_output(name, it) for name, it in zip(self.names, results, strict=True)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
