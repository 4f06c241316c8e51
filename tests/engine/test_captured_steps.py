"""The engine over captured steps gives the answers worked by hand, with so few blocks that sequences are preempted."""

from pathlib import Path

import pytest

from headway import LLM, SamplingParams
from headway.executor import torch_making
from headway.executor.torch import DecodePlan
from headway.testing.tiny_model import greedy_by_hand, write_tiny_model
from recorded_capture import RecordedCapture

PROMPTS = ["hello w", "x", "zebra", "!", "abc" * 9, "q", "mn", "stu", "a" * 30, "k"]


def test_answers_over_captured_steps_are_those_worked_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = RecordedCapture()
    monkeypatch.setattr(
        torch_making,
        "_plan_decode",
        lambda program, config, limits, device: DecodePlan(limits.max_seqs, limits.max_context, capture),
    )
    folder = write_tiny_model(tmp_path / "tiny")
    flags = {"dtype": "float32", "threads": 1, "max_num_seqs": 5, "max_model_len": 64, "block_size": 4}
    # K and V of a token are 2 x 9 heads x 64 numbers of 4 bytes: 17 blocks, 16 of which one sequence may need.
    flags["kv_cache_memory"] = 17 * 4 * 2 * 9 * 64 * 4
    with LLM(str(folder), executor="torch", device="cpu", enable_prefix_caching=False, **flags) as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=30))
        num_preemptions = llm.stats()["preemptions_total"]
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        wanted = bytes(token for token in greedy_by_hand(list(prompt.encode()), 30) if token < 256).decode()
        assert output.outputs[0].text == wanted
    assert num_preemptions > 0
    assert capture.num_replays > 30
    assert capture.num_captured == 4  # of 1, 2, 4 and 5 sequences, all of 64 tokens
