"""Which number type weights are computed with."""

from headway.config import Dtype
from headway.errors import InvalidConfig
from headway.executor.device import CPU, is_cuda, multiplies_bfloat16
from headway.observe.machine import isa_flags

DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def choose_dtype(requested: Dtype, file_dtype: str, isa: frozenset[str] | None = None, device: str = CPU) -> str:
    """The run dtype: what was requested, or for auto what this machine multiplies fastest.

    1. A dtype that was asked for is taken.
    2. auto on a GPU: float16 where the file has it, or where the GPU does not multiply bfloat16; else bfloat16.
    3. auto with a float32 file: float32.
    4. auto with a 16-bit file: bfloat16 where the instruction set multiplies it (AVX512_BF16, AMX, Arm BF16), else
       float32. Without those, torch widens 16-bit weights on the way into each product: measured at 64 tokens on AVX2,
       9 GFLOP/s in bfloat16 and 10 in float16 against 40 to 80 in float32.

    Args:
        requested: EngineConfig.dtype.
        file_dtype: ModelShape.dtype.
        isa: the instruction set's flags; None: this machine's.
        device: of choose_device().
    """
    if requested != "auto":
        if requested not in DTYPES:
            raise InvalidConfig(f"dtype is {requested!r}; it must be auto or one of {', '.join(DTYPES)}", param="dtype")
        return requested  # 1
    if is_cuda(device):
        return "bfloat16" if file_dtype != "float16" and multiplies_bfloat16(device) else "float16"  # 2
    if file_dtype == "float32":
        return "float32"  # 3
    flags = isa_flags() if isa is None else isa
    return "bfloat16" if flags & _BFLOAT16_FLAGS else "float32"  # 4
