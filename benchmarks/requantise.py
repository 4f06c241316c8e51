"""A GGUF file's matrices in another type:  requantise.py FILE.gguf OUT.gguf Q8_0

Vectors and settings stay as they are. Runs in the transformers peer's environment (it has the gguf package).
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

WRITTEN_BY_WRITER = {"general.architecture", "general.file_type", "general.quantization_version"}


def copy_settings(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """All but what the writer or another type changes."""
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in WRITTEN_BY_WRITER:
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=part)


def main(source: Path, target: Path, kind: Type) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, architecture)
    copy_settings(reader, writer)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        to = Type.F32 if values.ndim == 1 else kind
        writer.add_tensor(tensor.name, np.ascontiguousarray(gguf.quants.quantize(values, to)), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Type[sys.argv[3]])
