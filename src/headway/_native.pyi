"""The kernels of native/: arrays in, arrays out. Arrays are C-contiguous and of exactly the types named here."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def available_isas() -> list[str]:
    """Instruction sets that this machine and this build have, the slowest first: plain, avx2, avx512."""

def chosen_isa() -> str:
    """The one that HEADWAY_ISA names, else the fastest. Raises ValueError if that one is not available."""

def philox4x64(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x64-10: four 64-bit words of noise for a counter of four and a key of two."""

def explain_bus_errors(exit_code: int) -> None:
    """From now on a SIGBUS in a watched mapping ends the process with this code, and a line on standard error."""

def watch_mapping(start: int, num_bytes: int, path: str) -> int:
    """Notes the mapping of the file `path` at the address `start`; what unwatch_mapping takes."""

def unwatch_mapping(place: int) -> None:
    """Forgets it, before it is unmapped."""

class Sampler:
    """Samples batches of rows; headway.engine.sampler.Sampler is its Python side."""

    def __init__(self, token_ids: npt.NDArray[np.int32], vocab_size: int, threads: int) -> None:
        """Keeps `token_ids` [max_num_seqs, max_model_len] and reads it at each sample(). Raises ValueError."""

    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    def set_row(
        self,
        row: int,
        *,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float,
        presence_penalty: float,
        frequency_penalty: float,
        repetition_penalty: float,
        seed: int,
        choice: int,
        bias_ids: Sequence[int],
        biases: Sequence[float],
        banned_ids: Sequence[int],
        min_tokens: int,
        num_prompt_tokens: int,
        num_logprobs: int,
    ) -> None:
        """How this row's tokens are chosen from now on. num_logprobs is -1 for none. Raises ValueError."""

    def sample(
        self,
        logits: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.int32],
        chosen: npt.NDArray[np.int32],
        is_finite: npt.NDArray[np.bool_],
        logprobs: npt.NDArray[np.float32],
        top_ids: npt.NDArray[np.int32],
        top_logprobs: npt.NDArray[np.float32],
    ) -> None:
        """Fills the five last arrays, without the GIL. Raises ValueError before anything is written."""
