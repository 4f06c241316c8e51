"""What Headway must reach against each peer (the floor), and what it aims at (the goal): ratios of medians."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workloads import Measurement

PREFILL = frozenset({"prefill-512", "prefill-2048"})
"""Their rate counts the prompt's tokens; long-context-8 counts all; the others the output's."""


@dataclass(frozen=True)
class Bar:
    """Of one workload, against the best configuration of a peer."""

    floor: float
    goal: float | None = None


@dataclass(frozen=True)
class Contest:
    """An engine of ours against the configurations of one peer; the best of them counts, workload by workload."""

    ours: str
    peers: Sequence[str]
    bars: Mapping[str, Bar]


OPENVINO_BARS = {
    "prefill-512": Bar(1.2, 1.6),
    "prefill-2048": Bar(1.2, 1.6),
    "single-128": Bar(1.5, 2.2),
    "eight-128": Bar(1.5, 2.2),
    "mixed-32": Bar(1.5, 2.5),
    "sixty-four-128": Bar(1.5, 2.5),
    "long-context-8": Bar(1.3, 2.0),
}
VLLM_BARS = {"single-128": Bar(1.3), "sixty-four-128": Bar(2.0)}
NEVER_SLOWER = dict.fromkeys(OPENVINO_BARS, Bar(1.0))

CONTESTS: Mapping[str, Contest] = {
    "openvino": Contest("headway", ("openvino", "openvino-2048"), OPENVINO_BARS),
    "vllm": Contest("headway-bf16", ("vllm",), VLLM_BARS),
    "vllm-eager": Contest("headway-bf16", ("vllm-eager", "vllm-eager-float32"), VLLM_BARS),
    "llamacpp": Contest("headway", ("llamacpp-unified", "llamacpp-split"), NEVER_SLOWER),
    "ortgenai": Contest("headway", ("ortgenai",), NEVER_SLOWER),
    "transformers": Contest("headway-bf16", ("transformers", "transformers-float32"), NEVER_SLOWER),
    "openvino-q8": Contest("headway-q8", ("openvino-q8",), OPENVINO_BARS),
    "llamacpp-q8": Contest("headway-q8", ("llamacpp-q8",), NEVER_SLOWER),
}


def rate_of(measurement: Measurement) -> float:
    """Tokens a second."""
    if measurement.workload in PREFILL:
        return (measurement.total_tokens - measurement.output_tokens) / measurement.seconds
    if measurement.workload == "long-context-8":
        return measurement.total_tokens / measurement.seconds
    return measurement.output_tokens / measurement.seconds
