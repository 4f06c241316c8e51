"""Weights that are no numbers: the file loads, and whoever asks for tokens is told."""

from pathlib import Path

import numpy as np
import pytest

import headway_wire as wire
from checkpoint.conftest import QUANTISED, quantised_model
from headway.checkpoint.gguf import GgufFile
from headway.predictors.headway import HeadwayPredictor

OPTIONS = {"threads": 1, "kv_cache_memory": 1 << 20, "max_num_batched_tokens": 32, "max_num_seqs": 2}


def spoil(path: Path, name: str, scale: int) -> None:
    """Puts a float16 by its bits into the scale of each block of the tensor."""
    tensor = GgufFile(path).tensors[f"{name}.weight"]
    at = 208 if tensor.type.name == "Q6_K" else 0
    file = np.memmap(path, np.uint8, "r+")
    blocks = file[tensor.start : tensor.start + tensor.num_bytes].reshape(-1, tensor.type.block_bytes)
    blocks[:, at : at + 2] = np.frombuffer(scale.to_bytes(2, "little"), np.uint8)
    file.flush()


def events_of(path: Path, executor: str) -> list[wire.TokenEvent]:
    predictor = HeadwayPredictor()
    predictor.load(str(path), OPTIONS | {"executor": executor}, lambda message: None)
    try:
        predictor.handle(wire.Submit(request_id="r", prompt_token_ids=[4, 5, 6], sampling=wire.Sampling(max_tokens=4)))
        events: list[wire.TokenEvent] = []
        while predictor.has_work():
            events += [event for step in predictor.step() if isinstance(step, wire.Step) for event in step.events]
        return events
    finally:
        predictor.close()


@pytest.mark.parametrize("executor", ["native", "torch"])
@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("scale", [0x7E00, 0x7C00, 0xFC00], ids=["NaN", "infinity", "-infinity"])
def test_scales_that_are_no_numbers_end_in_an_error_of_the_request(
    tmp_path: Path, name: str, scale: int, executor: str
) -> None:
    path = quantised_model().write(tmp_path / "model.gguf")
    spoil(path, name, scale)
    (event,) = events_of(path, executor)
    assert event.error is not None
    assert event.error.kind == "NonFiniteLogits"


@pytest.mark.parametrize("scale", [0x7BFF, 0xFBFF, 0x0001], ids=["largest", "-largest", "smallest"])
def test_absurd_scales_are_numbers(tmp_path: Path, scale: int) -> None:
    path = quantised_model().write(tmp_path / "model.gguf")
    for name in QUANTISED:
        spoil(path, name, scale)
    events = events_of(path, "native")
    assert {event.error.kind for event in events if event.error is not None} <= {"NonFiniteLogits"}
    assert [event.finish_reason is not None for event in events] == [False] * (len(events) - 1) + [True]
