"""The same models for Headway's python framework and for Triton's Python backend: what tritonclient's suite asks."""

from pathlib import Path

KINDS = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip
"""Those that numpy has: Triton's Python backend gives a model no BF16."""
LABELS = ("zero", "one", "two", "three")

HEADWAY = {
    "identity": f"""
class Identity:
    inputs = {{kind: (kind, [-1, -1]) for kind in {KINDS}}}
    outputs = {{"OUT_" + kind: (kind, [-1, -1]) for kind in {KINDS}}}

    def predict_tensors(self, arrays):
        return {{"OUT_" + name: array for name, array in arrays.items()}}
""",
    "add_sub": f"""
class AddSub:
    inputs = {{"INPUT0": ("FP32", [-1, 4]), "INPUT1": ("FP32", [-1, 4])}}
    outputs = {{"SUM": ("FP32", [-1, 4]), "DIFF": ("FP32", [-1, 4])}}
    labels = {LABELS}
    can_batch = True

    def predict_tensors(self, arrays):
        first, second = arrays["INPUT0"], arrays["INPUT1"]
        return {{"SUM": first + second, "DIFF": first - second}}
""",
    "upper": """
import time

import numpy as np

class Upper:
    inputs = {"TEXT": ("BYTES", [-1])}
    outputs = {"UPPER": ("BYTES", [-1])}

    def predict_tensors(self, arrays):
        if b"slow" in arrays["TEXT"].tolist():
            time.sleep(0.5)
        return {"UPPER": np.array([text.upper() for text in arrays["TEXT"]], dtype=object)}
""",
}

# Triton's module comes first: with numpy imported before it, 24.10 hands out tensors whose memory is gone.
_TRITON = """
import triton_python_backend_utils as pb
import numpy as np

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            responses.append(pb.InferenceResponse([pb.Tensor(*each) for each in compute(inputs).items()]))
        return responses

"""
TRITON = {
    "identity": """
def compute(inputs):
    return {"OUT_" + name: array for name, array in inputs.items()}
""",
    "add_sub": """
def compute(inputs):
    first, second = inputs["INPUT0"], inputs["INPUT1"]
    return {"SUM": first + second, "DIFF": first - second}
""",
    "upper": """
import time

def compute(inputs):
    if b"slow" in inputs["TEXT"].tolist():
        time.sleep(0.5)
    return {"UPPER": np.array([text.upper() for text in inputs["TEXT"]], dtype=object)}
""",
}


def _config(name: str, max_batch_size: int, inputs: str, outputs: str) -> str:
    return f'name: "{name}"\nbackend: "python"\nmax_batch_size: {max_batch_size}\n{inputs}\n{outputs}\n'


def _tensor(side: str, name: str, kind: str, dims: str, more: str = "") -> str:
    kind = "STRING" if kind == "BYTES" else kind
    return f'{side} {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} {more} }}\n'


CONFIGS = {
    "identity": _config(
        "identity",
        0,
        "".join(_tensor("input", kind, kind, "[-1, -1]") for kind in KINDS),
        "".join(_tensor("output", f"OUT_{kind}", kind, "[-1, -1]") for kind in KINDS),
    ),
    "add_sub": _config(
        "add_sub",
        8,
        "".join(_tensor("input", name, "FP32", "[4]") for name in ("INPUT0", "INPUT1")),
        "".join(_tensor("output", name, "FP32", "[4]", 'label_filename: "labels.txt"') for name in ("SUM", "DIFF")),
    ),
    "upper": _config(
        "upper", 0, _tensor("input", "TEXT", "BYTES", "[-1]"), _tensor("output", "UPPER", "BYTES", "[-1]")
    ),
}


def write_headway_models(folder: Path) -> dict[str, Path]:
    """Files by the model's name."""
    paths = {}
    for name, code in HEADWAY.items():
        paths[name] = folder / f"{name}.py"
        paths[name].write_text(code)
    return paths


def triton_code(name: str) -> str:
    """model.py."""
    return _TRITON + TRITON[name]
