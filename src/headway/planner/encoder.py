"""What an encoder needs of memory: weights, workspace, K and V of one step, and a tokenizer. Pure: numbers in, a plan
out."""

from dataclasses import dataclass

from headway.config import EngineConfig
from headway.errors import InvalidConfig, OutOfMemory
from headway.observe.sizes import size_text
from headway.planner.costs import Costs

TOKENIZER_TOKEN_BYTES = 600
"""Of a tokenizer in the encoder's process, a token of the vocabulary; 515 were measured (WordPiece, 30,522 tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPlan:
    """Where an encoder's memory goes, in bytes, and how long a text may be."""

    dtype: str
    weights_text: str
    weights_bytes: int
    workspace_bytes: int
    """Of a full step, its K and V included."""
    max_model_len: int
    """Tokens of a text, special ones included."""
    max_tokens: int
    """Of a step: texts are never cut, so it holds the longest one."""
    available_bytes: int
    tokenizer_bytes: int
    """Of the one that its process reads where texts come as they are (predictors/late_tokenizer)."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.workspace_bytes + self.tokenizer_bytes

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"weights: {self.weights_text}, {size_text(self.weights_bytes)}",
            f"a step: {self.max_tokens:,} tokens of whole texts, {size_text(self.workspace_bytes)}; nothing is cached",
            f"a text: at most {self.max_model_len:,} tokens",
        ]


def encoder_limit(config: EngineConfig, *, max_position: int, trained_for: int | None) -> int:
    """Tokens of the longest text: what was asked for, else what the model was trained for.

    Raises InvalidConfig for more than there are positions.
    """
    asked = config.max_model_len
    if asked is not None and not 1 <= asked <= max_position:
        raise InvalidConfig(
            f"max_model_len is {asked}; the model has {max_position} positions: give 1 to that many, or leave it out",
            param="max_model_len",
        )
    return asked or min(trained_for or max_position, max_position)


def plan_encoder(
    costs: Costs, *, kv_bytes: int, max_model_len: int, max_tokens: int, tokenizer_bytes: int, available_bytes: int
) -> EncoderPlan:
    """The plan, if it fits.

    Args:
        costs: what its executor makes of it.
        kv_bytes: K and V of one step.
        max_model_len: encoder_limit().
        max_tokens: of a step.
        tokenizer_bytes: of what is available; 0 on a GPU.
        available_bytes: observe.machine.available_memory_bytes() before the load.

    Raises:
        OutOfMemory: the bytes needed and had.
    """
    plan = EncoderPlan(
        dtype=costs.dtype,
        weights_text=costs.weights_text,
        weights_bytes=costs.weights_bytes,
        workspace_bytes=costs.workspace_bytes + kv_bytes,
        max_model_len=max_model_len,
        max_tokens=max_tokens,
        available_bytes=available_bytes,
        tokenizer_bytes=tokenizer_bytes,
    )
    if plan.total_bytes > available_bytes:
        raise OutOfMemory(
            f"the model needs {size_text(plan.total_bytes)} ({plan.total_bytes} bytes: weights {plan.weights_bytes}, a "
            f"step {plan.workspace_bytes}, a tokenizer {plan.tokenizer_bytes}) and {size_text(available_bytes)} "
            f"({available_bytes} bytes) are available: "
            "lower --max-num-batched-tokens, or take a smaller model"
        )
    return plan
