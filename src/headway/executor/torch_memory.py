"""What torch says when a device's memory is full, as an error of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headway.errors import OutOfMemory


@contextmanager
def told_out_of_memory(device: torch.device, doing: str) -> Iterator[None]:
    """Raises OutOfMemory, with the bytes that were needed and had, where torch raises its own.

    Args:
        device: what is computed on.
        doing: what was done, after "while".
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        had = ""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            had = f"; {free} of its {total} bytes are free"
        needed = str(error).partition(". ")[2].partition(". ")[0] or str(error)
        raise OutOfMemory(
            f"{device} has no memory left while {doing}: {needed}{had}: lower --kv-cache-memory, "
            "--max-num-batched-tokens or --max-num-seqs, end what else is on it, or take a smaller model"
        ) from error
