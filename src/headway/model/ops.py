"""The ops of a Program: frozen records over named values.

A value is a matrix [rows, width]; its rows are the step's tokens, or after SelectRows the rows whose logits are wanted.
Heads lie one after another in the width: head h of a value with head_dim d is columns h * d to (h + 1) * d.
Each op names the values that it reads (`inputs`), the one that it makes (`out`) and its weights by their canonical
names (checkpoint/shape.py).
"""

from dataclasses import dataclass
from typing import Literal

ActivationKind = Literal["silu", "relu", "gelu", "gelu_tanh", "sigmoid", "tanh"]
EmbedIndex = Literal["token", "position", "token_type"]
NormKind = Literal["rms", "layer"]
NormOver = Literal["hidden", "head"]
RopeLayout = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """out = table[index + offset] * scale."""

    out: str
    table: str
    """Weight [num_entries, width]."""
    index: EmbedIndex = "token"
    offset: int = 0
    scale: float = 1.0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Reads the step's arrays, no value."""
        return ()

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return (self.table,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Root-mean-square or layer normalisation of each row, or of each head of it, times the weight.

    Statistics are taken in float32. Sources: Zhang and Sennrich 2019 (rms), Ba et al. 2016 (layer).
    """

    out: str
    input: str
    weight: str
    """[width], or [head_dim] over heads."""
    eps: float
    kind: NormKind = "rms"
    over: NormOver = "hidden"
    bias: str | None = None
    one_plus: bool = False
    """Multiplies by 1 + weight (Gemma)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """out = input @ weight.T + bias."""

    out: str
    input: str
    weight: str
    """[out width, in width]."""
    bias: str | None = None
    """[out width]."""
    adapter: str | None = None
    """Name under which a LoRA adapter may add to it; None: none may."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """out = f(input), element by element; gelu is the exact one, gelu_tanh its approximation."""

    out: str
    input: str
    kind: ActivationKind

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mul:
    """out = left * right; right may be of width 1 and is then broadcast."""

    out: str
    left: str
    right: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.left, self.right)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """out = left + right."""

    out: str
    left: str
    right: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.left, self.right)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """out = input * factor."""

    out: str
    input: str
    factor: float

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions (Su et al. 2021) on the first `dims` columns of each head.

    Pair p turns by position * frequencies[p] radians. `half`: pair p is columns p and p + dims / 2; `interleaved`:
    it is columns 2p and 2p + 1.
    """

    out: str
    input: str
    head_dim: int
    frequencies: tuple[float, ...]
    """[dims / 2]."""
    layout: RopeLayout = "half"
    magnitude: float = 1.0
    """Cosine and sine are multiplied by it (YaRN)."""

    @property
    def dims(self) -> int:
        """Columns of each head that turn."""
        return 2 * len(self.frequencies)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Writes k and v into the cache, then out = softmax(q k^T * scale) v over what the sequence has there.

    Query head h reads key and value head h // (num_heads / num_kv_heads). A query at position p sees keys at positions
    up to p if causal, and of these the last `window`.
    """

    out: str
    q: str
    """[tokens, num_heads * qk_dim]."""
    k: str
    """[tokens, num_kv_heads * qk_dim]."""
    v: str
    """[tokens, num_kv_heads * v_dim]."""
    cache_id: int
    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.q, self.k, self.v)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRows:
    """Keeps the rows whose logits are wanted."""

    out: str
    input: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """The scores over the vocabulary in float32, times scale, then soft-capped: what the Program gives. Always last."""

    out: str
    input: str
    scale: float = 1.0
    soft_cap: float | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


Op = Embed | Norm | Linear | Activation | Mul | Add | Scale | Rope | Attention | SelectRows | Logits
