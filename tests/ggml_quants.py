"""ggml's own quantisers: ggml-quants.c as llama.cpp has it, compiled alone into the tests' cache.

llama_model_quantize calls quantise() below for each tensor (llama_tensor_quantize_impl, ggml_quantize_chunk) and takes
another type where a row is no whole number of blocks; type_for() is that choice.
"""

import ctypes
import functools
import os
import subprocess
from pathlib import Path

import gguf
import numpy as np

from oracles import LLAMA_CPP_PYTHON, cache_dir, llama_cpp_sources

# What ggml.c would bring. Of all that the quantisers call only the size of a row, which is set before each call.
_STUBS = """
#include <stdlib.h>
#include <stddef.h>
#include <stdint.h>
void ggml_abort(const char * file, int line, const char * text, ...) { abort(); }
size_t row_bytes;
size_t ggml_row_size(int type, int64_t n) { return row_bytes; }
size_t ggml_type_size(int type) { abort(); }
const char * ggml_type_name(int type) { return "?"; }
"""
_FALLBACKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


@functools.cache
def _library() -> ctypes.CDLL:
    target = cache_dir() / f"ggml_quants-{LLAMA_CPP_PYTHON}.so"
    if not target.is_file():
        ggml = llama_cpp_sources() / "ggml"
        part = target.with_name(f"{target.name}.{os.getpid()}")
        stubs = part.with_suffix(".c")
        stubs.write_text(_STUBS)
        command = ["cc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=off"]
        command += [f"-I{ggml / 'include'}", f"-I{ggml / 'src'}", str(ggml / "src" / "ggml-quants.c"), str(stubs)]
        subprocess.run([*command, "-lm", "-o", str(part)], check=True)
        part.rename(target)
        stubs.unlink()
    return ctypes.CDLL(str(target))


def type_for(type_name: str, num_cols: int) -> str:
    """The type that llama.cpp gives a tensor of such rows when it is asked for `type_name`."""
    for name in (type_name, _FALLBACKS.get(type_name, "F16"), "F16"):
        if num_cols % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0] == 0:
            return name
    raise AssertionError("F16 always fits")


def quantise(values: np.ndarray, type_name: str) -> np.ndarray:
    """Rows of float32 as rows of bytes, [num_rows, row_bytes]."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name in ("F32", "F16", "BF16"):
        return gguf.quantize(values, kind).view(np.uint8)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, cols = values.shape
    assert cols % block_size == 0
    source = np.ascontiguousarray(values, np.float32)
    target = np.empty((rows, cols // block_size * block_bytes), np.uint8)
    function = getattr(_library(), f"quantize_{type_name.lower().replace('_k', '_K')}")
    ctypes.c_size_t.in_dll(_library(), "row_bytes").value = target.shape[1]
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    assert function(source.ctypes.data, target.ctypes.data, rows, cols, None) == target.nbytes
    return target


def dequantise(data: np.ndarray, type_name: str) -> np.ndarray:
    """Bytes of whole blocks as float32, one-dimensional, as ggml's C does it."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    source = np.ascontiguousarray(data, np.uint8).reshape(-1)
    target = np.empty(source.size // block_bytes * block_size, np.float32)
    function = getattr(_library(), f"dequantize_row_{type_name.lower().replace('_k', '_K')}")
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function(source.ctypes.data, target.ctypes.data, target.size)
    return target


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, type_name: str) -> str:
    """A matrix as llama.cpp would write it when asked for `type_name`; the type that it got."""
    found = type_for(type_name, values.shape[1])
    writer.add_tensor(name, quantise(values, found), raw_dtype=gguf.GGMLQuantizationType[found])
    return found


def write_as(path: Path, kinds: dict[str, tuple[np.ndarray, str]]) -> dict[str, str]:
    """A GGUF file of these matrices, each asked for in its type; the types that they got."""
    writer = gguf.GGUFWriter(path, "llama")
    got = {name: add_tensor(writer, name, values, kind) for name, (values, kind) in kinds.items()}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return got
