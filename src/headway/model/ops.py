"""The ops of a Program: frozen records over named values.

A value is a matrix [rows, width]; its rows are the step's tokens, or after SelectRows the rows whose logits are wanted,
or after Pool the sequences.
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
Scoring = Literal["softmax", "sigmoid"]
GroupScore = Literal["largest", "two_largest"]
PoolKind = Literal["cls", "mean", "max", "last"]


class OneInput:
    """A record that reads `input`."""

    __slots__ = ()
    input: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input,)


class _TwoInputs:
    __slots__ = ()
    left: str
    right: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.left, self.right)


class _NoWeights:
    __slots__ = ()

    @property
    def weights(self) -> tuple[str, ...]:
        """None."""
        return ()


class _WeightAndBias:
    __slots__ = ()
    weight: str
    bias: str | None

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


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
class Norm(OneInput, _WeightAndBias):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(OneInput, _WeightAndBias):
    """out = input @ weight.T + bias."""

    out: str
    input: str
    weight: str
    """[out width, in width]."""
    bias: str | None = None
    """[out width]."""
    adapter: str | None = None
    """Name under which a LoRA adapter may add to it; None: none may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(OneInput, _NoWeights):
    """out = f(input), element by element; gelu is the exact one, gelu_tanh its approximation."""

    out: str
    input: str
    kind: ActivationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Mul(_TwoInputs, _NoWeights):
    """out = left * right; right may be of width 1 and is then broadcast."""

    out: str
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(_TwoInputs, _NoWeights):
    """out = left + right."""

    out: str
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(OneInput, _NoWeights):
    """out = input * factor."""

    out: str
    input: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope(OneInput, _NoWeights):
    """Rotary positions (Su et al. 2021) on `dims` columns of each head, from column `start` on.

    Pair p turns by position * frequencies[p] radians. `half`: pair p is columns p and p + dims / 2 of these;
    `interleaved`: it is columns 2p and 2p + 1.
    """

    out: str
    input: str
    head_dim: int
    frequencies: tuple[float, ...]
    """[dims / 2]."""
    layout: RopeLayout = "half"
    magnitude: float = 1.0
    """Cosine and sine are multiplied by it (YaRN)."""
    start: int = 0

    @property
    def dims(self) -> int:
        """Columns of each head that turn."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(_NoWeights):
    """Writes k and v into the cache, then out = softmax(q k^T * scale) v over what the sequence has there.

    Without a cache the sequence is what the step has of it, which must be all (encoders). Query head h reads key and
    value head h // (num_heads / num_kv_heads). A query at position p sees keys at positions up to p if causal, else
    all, and of these the last `window`. Without a v the first v_dim columns of a key are its value too,
    and the cache holds them once (DeepSeek-AI 2024: multi-head latent attention with absorbed weights).
    """

    out: str
    q: str
    """[tokens, num_heads * qk_dim]."""
    k: str
    """[tokens, num_kv_heads * qk_dim]."""
    v: str | None
    """[tokens, num_kv_heads * v_dim]."""
    cache_id: int | None
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
        return (self.q, self.k) if self.v is None else (self.q, self.k, self.v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(_NoWeights):
    """out = the columns of the parts, one part behind the other."""

    out: str
    parts: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLinear(OneInput):
    """A product for each head with a matrix of its own; the last `kept` columns of a head are handed on as they are.

    Of head h with columns x and kept columns r: out = x @ weight[h].T, then r.
    """

    out: str
    input: str
    """[rows, heads * (in width + kept)]."""
    weight: str
    """[heads, out width, in width]."""
    kept: int = 0

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return (self.weight,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(OneInput):
    """Chooses top_k experts for each row: out [rows, experts] is what each one's result is multiplied by, 0 for others.

    1. scores = softmax or sigmoid of the input, in float32
    2. choice = scores + bias; with num_groups of neighbouring experts only those of the top_groups best groups remain,
       a group being worth its largest choice, or its two largest together
    3. the top_k largest of choice, of equal ones the lower, have their score; divided by the sum of these if
       `normalise`, then times scale

    Sources: Shazeer et al. 2017, Fedus et al. 2021; groups and bias: DeepSeek-AI 2024.
    """

    out: str
    input: str
    """[rows, experts], scores before softmax or sigmoid."""
    top_k: int
    scoring: Scoring = "softmax"
    bias: str | None = None
    """[experts], counts for the choice only."""
    num_groups: int = 1
    top_groups: int = 1
    group_score: GroupScore = "largest"
    normalise: bool = False
    scale: float = 1.0

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return () if self.bias is None else (self.bias,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """out = sum over experts of routing * (activation(input @ gate.T) * (input @ up.T)) @ down.T, for each row.

    Experts whose routing is 0 are not computed; the others are added in ascending order, so that a row's result does
    not depend on the rows beside it. No expert has a capacity: no row is dropped.
    """

    out: str
    input: str
    routing: str
    """[rows, num_experts], as Route makes it."""
    name: str
    """Expert e has the weights name.e.gate.weight, name.e.up.weight [width, in width], name.e.down.weight."""
    num_experts: int
    top_k: int
    """The most experts that a row has."""
    kind: ActivationKind = "silu"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.input, self.routing)

    @property
    def gates(self) -> tuple[str, ...]:
        """Names of the experts' gate matrices, ascending."""
        return self._names("gate")

    @property
    def ups(self) -> tuple[str, ...]:
        """Names of the up matrices, ascending."""
        return self._names("up")

    @property
    def downs(self) -> tuple[str, ...]:
        """Names of the down matrices, ascending."""
        return self._names("down")

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return (*self.gates, *self.ups, *self.downs)

    def _names(self, part: str) -> tuple[str, ...]:
        return tuple(f"{self.name}.{expert}.{part}.weight" for expert in range(self.num_experts))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRows(OneInput, _NoWeights):
    """Keeps the rows whose logits are wanted."""

    out: str
    input: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(OneInput, _NoWeights):
    """Makes a row of each sequence, all of whose tokens must be in the step: the first token's, the last one's, or the
    mean or the largest of each column; divided by its length if `normalise`. Sums in float32, first token first."""

    out: str
    input: str
    kind: PoolKind
    normalise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits(OneInput, _NoWeights):
    """The scores over the vocabulary in float32, times scale, then soft-capped: what a language model gives, and always
    the last of its ops."""

    out: str
    input: str
    scale: float = 1.0
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(OneInput, _NoWeights):
    """out = the sum of what all ranks have as input, in float32; each rank gets it (executor/shard.py)."""

    out: str
    input: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(OneInput, _NoWeights):
    """out = what the ranks have as input, the columns of one behind those of the other; each rank gets it."""

    out: str
    input: str
    parts: tuple[int, ...]
    """Columns of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns(OneInput, _NoWeights):
    """out = the input's columns from `first` on, `width` of them."""

    out: str
    input: str
    first: int
    width: int


Op = (
    Embed
    | Norm
    | Linear
    | Activation
    | Mul
    | Add
    | Scale
    | Rope
    | Attention
    | Join
    | HeadLinear
    | Route
    | Experts
    | SelectRows
    | Pool
    | Logits
    | AllReduce
    | AllGather
    | Columns
)
