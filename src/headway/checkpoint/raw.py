"""RawTensor: a matrix as its file has it, for executors that pack the file's blocks themselves."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Bytes of whole rows, end to end, in the file's order; each row is whole blocks of `type`."""

    type: str
    """ggml's name, one of ggml_types.READABLE_TYPES; safetensors' F32, F16 and BF16 are the same."""
    data: Bytes
    """[num_rows * row_bytes], read-only, a view of the mapped file: good until the file is closed."""
    shape: tuple[int, ...]
    """Of the canonical tensor; rows are its first dimension."""
    row_order: Int32 | None = None
    """[num_rows]: the file's row i is the canonical tensor's row row_order[i]; None: they are in order."""

    @property
    def num_rows(self) -> int:
        """Rows, as many in the file as in the canonical tensor."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.data.size // self.shape[0]


def raw_of_floats(values: npt.NDArray[np.float32]) -> RawTensor:
    """An array that is no file's, as an F32 tensor over the same memory (a copy where it is not contiguous)."""
    data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    return RawTensor("F32", data, values.shape)
