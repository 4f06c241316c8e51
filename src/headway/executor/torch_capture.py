"""CudaCapture: a function of static buffers as a CUDA graph. All graphs of an executor share their memory."""

import torch

from headway.executor.torch_decode import Replay

_NUM_WARM_UPS = 2
"""Libraries choose their kernels and take their buffers in first calls, which must not be captured."""


class CudaCapture:
    """A torch_decode.Capture. A replay runs on the stream that is current then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, body: Replay) -> Replay:
        """Runs body, then captures it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_NUM_WARM_UPS):
                body()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            body()
        replay: Replay = graph.replay
        return replay
