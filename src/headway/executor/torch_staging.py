"""What travels between the machine's memory and a device, through pinned memory: weights there, logits back."""

import numpy as np
import torch
from torch import Tensor

from headway.executor.base import Float32

_CHUNK_ELEMENTS = 4 * 1024 * 1024


def chunk_rows(array: Float32, num_elements: int = _CHUNK_ELEMENTS) -> int:
    """How many of its rows are copied at once: so many that they have about num_elements, at least one."""
    return max(1, num_elements * len(array) // max(1, array.size))


class PinnedRows:
    """Copies arrays to a device by way of two pinned buffers: one is filled while the other travels.

    So a load needs on the host two pieces of a tensor and none of them whole.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, *, num_elements: int = _CHUNK_ELEMENTS) -> None:
        self._dtype, self._device, self._num_elements = dtype, device, num_elements
        self._is_cuda = device.type == "cuda"
        self._buffers: list[Tensor] = []
        self._travelled: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def copy(self, target: Tensor, array: Float32) -> None:
        """array into target, of the same shape, which is on the device; array may change when this is done."""
        rows = chunk_rows(array, self._num_elements)
        for first in range(0, len(array), rows):
            part = array[first : first + rows]
            buffer = self._next(part.size).view(part.shape)
            buffer.copy_(torch.from_numpy(part if part.flags.writeable else np.array(part)))
            target[first : first + rows].copy_(buffer, non_blocking=True)
            self._mark()

    def _next(self, num_elements: int) -> Tensor:
        """The buffer whose turn it is, once what it held has arrived."""
        if not self._buffers or self._buffers[0].numel() < num_elements:
            self._wait()
            size = max(num_elements, self._num_elements)
            self._buffers = [torch.empty(size, dtype=self._dtype, pin_memory=self._is_cuda) for _ in range(2)]
        self._turn = 1 - self._turn
        event = self._travelled[self._turn]
        if event is not None:
            event.synchronize()
        return self._buffers[self._turn][:num_elements]

    def _mark(self) -> None:
        if self._is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._travelled[self._turn] = event

    def _wait(self) -> None:
        for event in self._travelled:
            if event is not None:
                event.synchronize()


class HostRows:
    """Float32 rows of a device in the machine's memory: one copy, into pinned memory that is used again."""

    def __init__(self) -> None:
        self._pinned: Tensor | None = None

    def read(self, value: Tensor) -> Float32:
        """value [rows, width]; waits for whatever makes it. Valid until the next call."""
        if value.device.type != "cuda":
            rows: Float32 = value.float().numpy()
            return rows
        count = value.shape[0]
        if self._pinned is None or self._pinned.shape[0] < count:
            self._pinned = torch.empty(count, value.shape[1], dtype=torch.float32, pin_memory=True)
        target = self._pinned[:count]
        target.copy_(value.float(), non_blocking=True)
        torch.cuda.current_stream(value.device).synchronize()
        read: Float32 = target.numpy()
        return read
