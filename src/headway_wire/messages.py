"""The messages between a worker process and its parent, one class each; nothing else travels between them.

Down (parent to worker): Load, Submit, SubmitText, Abort, Hold, Infer, Profile, Shutdown.
Up (worker to parent):   Waiting, Loading, Ready, Failed, Accepted, Refused, Step, PromptLogprobs, Embedding, Outputs,
                         Stats, ProfiledStep, ProfileEnd.

A worker answers Load by Loading (any number of times) and then by one Ready or one Failed. It answers each Submit by
one Accepted or one Refused, in the order of the Submits but for those whose grammar is compiled first; an accepted
request ends with exactly one terminal TokenEvent for each of its choices. What is per token is packed as arrays, the
rest as maps, so that a field can be added without breaking the other side.
"""

from typing import Any, Dict, List, Optional, Union

import msgspec


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an output has to match, and from where on. An output goes through these, in order:

    1. `opening`, which is forced.
    2. Reasoning, which is free, until `reasoning_end` has come.
    3. Without a trigger: what `grammar` says, and with its end the choice ends (stop). With one: free text; where
       `trigger` matches, the grammar holds from the match's beginning on (it describes the trigger's text too), and
       when it is complete the text is free again.
    """

    grammar: str = ""
    """Of llguidance: Lark, or JSON of several grammars. "": nothing is constrained in 3."""
    opening: str = ""
    """Text that the output begins with."""
    reasoning_end: str = ""
    """"": the output begins with 3."""
    reasoning_start: str = ""
    """With a trigger: 2 is there only where the output begins with this text, behind white space; "": it is."""
    max_reasoning_tokens: Optional[int] = None
    """After so many tokens of 1 and 2, reasoning_end is forced."""
    trigger: str = ""
    """A regular expression (Python's) over the free text since 2 or the last match's end; a match has at most 256
    characters."""
    max_matches: Optional[int] = None
    """With a trigger: the choice ends (stop) once the grammar was complete so often."""
    last_trigger: str = ""
    """With a trigger: the choice ends (stop) with the end of a match whose beginning this matches too."""
    param: str = "structured_outputs"
    """The request's field that it comes from, for errors."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen and when a choice ends: what the worker has to know of a request.

    Stop strings are not here: they are seen where the text is, in the parent.
    """

    n: int = 1
    """Choices of one prompt."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    seed: Optional[int] = None
    """64 bits. Choice i draws its noise from (seed, i, output position); None: the worker draws a seed."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Dict[int, float] = {}
    """Token id to what is added to its logit."""
    allowed_token_ids: Optional[List[int]] = None
    """No other token is chosen; None: any may be."""
    bad_token_ids: List[List[int]] = []
    """Sequences that do not come up in the output: the last token of each is not chosen behind the others."""
    stop_token_ids: List[int] = []
    """End the choice, beside the model's own end tokens."""
    ignore_eos: bool = False
    """The model's own end tokens do not end the choice; stop_token_ids still do."""
    min_tokens: int = 0
    """No end token is chosen before so many output tokens."""
    max_tokens: Optional[int] = None
    """Output tokens a choice; None: the rest of the context. 0: only the prompt is computed."""
    logprobs: Optional[int] = None
    """None: none. k: each sampled token's log-probability and those of the k likeliest tokens."""
    prompt_logprobs: Optional[int] = None
    """The same of each token of the prompt but the first: PromptLogprobs, all of them before the first output token."""
    constraint: Optional[Constraint] = None
    """What the output has to match; None: any token may come."""


class Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error on its way between processes: the name of its class in the error tree, and its words."""

    kind: str
    message: str
    param: Optional[str] = None
    """The request's field at fault."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A named array, as the Open Inference Protocol (v2) has it on the wire in binary."""

    name: str
    datatype: str
    """Of the protocol: BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64, BYTES."""
    shape: List[int]
    data: bytes
    """Little-endian and C-contiguous. BYTES: each element behind its length in four bytes, in row-major order."""


# Down


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """First message: what to load. `predictor` is a dotted name `module:Class`; `options` are that predictor's own."""

    predictor: str
    source: str
    options: Dict[str, Any] = {}
    predictor_file: str = ""
    """The module's file, for an interpreter that can not import it by its name; "": it can."""
    max_batch_size: int = 1
    """Of Infer: requests that are computed together at most; 1: each alone."""
    batch_delay_s: float = 0.0
    """How long a request waits for others to join its batch. 0: only those that are there already join."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """A request: valid ids, and a length that the parent has checked; the worker checks again what it depends on."""

    request_id: str
    prompt_token_ids: List[int]
    sampling: Sampling = Sampling()
    priority: int = 0
    """Lower goes first, where the worker schedules by it."""
    tenant: str = ""
    """Whose request it is, where the worker shares among tenants."""
    cache_salt: str = ""
    """Prefixes are shared only with requests of the same salt."""
    second_start: Optional[int] = None
    """Of a pair of texts for an encoder: tokens from here on are of type 1. Encoders read no other field but priority,
    and answer with an Embedding in place of tokens."""


class SubmitText(msgspec.Struct, frozen=True, kw_only=True, tag="submit_text"):
    """A text for an encoder that tells `takes_texts` in Ready.info. It ends with an Embedding or with Refused, also
    where it is aborted, has no vector, or the worker can not read texts yet: Submit its ids then."""

    request_id: str
    text: str
    """Not empty; with what the model wants before it."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End a request (or one choice of it) now. Unknown and finished ones are ignored.

    `finish_reason` is what the terminal events will say: "stop" when the parent saw a stop string, else "abort".
    """

    request_id: str
    choice: Optional[int] = None
    finish_reason: str = "abort"
    reason: str = ""


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Stop scheduling a request whose reader is slow, or go on with it."""

    request_id: str
    is_held: bool


class Infer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="infer"):
    """Tensors or one value in, Outputs out, for models that are no language models. Abort drops one that waits."""

    request_id: str
    tensors: List[Tensor] = []
    """Named inputs; empty: `value` is the input."""
    value: Any = None
    """What /predict was given: JSON's types, and bytes (of an image)."""
    parameters: Dict[str, Any] = {}
    """Of the request: JSON's types."""
    outputs: List[str] = []
    """Names of the tensors that are wanted; empty: all."""
    timeout_s: Optional[float] = None
    """From its arrival: one that still waits then is answered by an error."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag="profile"):
    """Record the next steps: a ProfiledStep of each, then a ProfileEnd. 0: record no more, whatever was asked for."""

    num_steps: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """End the process now; what is open ends with abort events."""


Down = Union[Load, Submit, SubmitText, Abort, Hold, Infer, Profile, Shutdown]

# Up


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting"):
    """A process that was started ahead has imported what it was told to: its Load may come. Told once, at most."""


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Progress of a load: phases are fetch, read, build, warm; `fraction` in 0..1 where it is known."""

    phase: str
    fraction: Optional[float] = None
    elapsed_s: float = 0.0


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model answers. `info` holds the predictor's facts (limits, bytes, dtype), for people and for checks."""

    info: Dict[str, Any] = {}


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The load, or the whole worker, failed; the process ends after this."""

    error: Error


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The request is in the worker's queue; events follow."""

    request_id: str


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request never entered, or was a SubmitText and has no vector; no event follows."""

    request_id: str
    error: Error


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one output position (log-softmax of the raw logits, float32)."""

    logprob: float
    top_ids: List[int] = []
    """Likeliest first; ties by the lower id."""
    top_logprobs: List[float] = []


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step did to one choice: new tokens, or its end, or both."""

    request_id: str
    choice: int
    token_ids: List[int] = []
    logprobs: Optional[List[TokenLogprobs]] = None
    """One for each of token_ids, if asked for."""
    finish_reason: Optional[str] = None
    """None while it runs; else stop, length, abort or error: this is the terminal event."""
    stop_reason: Union[int, str, None] = None
    """The stop token's id, or why it was aborted."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed because the prefix cache held them."""
    error: Optional[Error] = None
    """With finish_reason error."""
    num_forced_tokens: int = 0
    """Of token_ids: those that the constraint left no choice about, and that were not sampled."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """One engine step: the events of all its sequences. A step without events is sent too: it is progress."""

    events: List[TokenEvent] = []
    num_running: int = 0
    num_waiting: int = 0
    num_tokens: int = 0
    """Tokens computed in this step."""
    num_preemptions: int = 0
    """In this step."""
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    """Blocks that only the prefix cache holds (no sequence uses them)."""


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_logprobs"):
    """Log-probabilities of a run of prompt tokens, from position `start`."""

    request_id: str
    start: int
    logprobs: List[TokenLogprobs]


class Embedding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="embedding"):
    """An encoder's answer to a Submit or a SubmitText, and its end: a vector, or the scores of a pair; little-endian
    float32."""

    request_id: str
    data: bytes
    num_tokens: int = 0
    """Of a SubmitText."""


class Outputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="outputs"):
    """The answer to Infer, or its error."""

    request_id: str
    tensors: List[Tensor] = []
    """The answer to tensors."""
    value: Any = None
    """The answer to a value: JSON's types, and bytes."""
    labels: Optional[List[str]] = None
    """Of a classifier: names of the last axis of its predictions."""
    error: Optional[Error] = None


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a step: monotonic nanoseconds of the worker."""

    name: str
    values: str
    """What its ops made, for people."""
    begin_ns: int
    end_ns: int


class ProfiledStep(msgspec.Struct, frozen=True, kw_only=True, tag="profiled_step"):
    """A recorded step and its parts, in order."""

    begin_ns: int
    end_ns: int
    num_sequences: int
    num_tokens: int
    spans: List[Span]


class ProfileEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="profile_end"):
    """No more is recorded; `error`: nothing can be."""

    error: Optional[Error] = None


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """The predictor's counters and gauges: sent when it becomes idle, and at most once a second otherwise."""

    values: Dict[str, float] = {}


Up = Union[
    Waiting,
    Loading,
    Ready,
    Failed,
    Accepted,
    Refused,
    Step,
    PromptLogprobs,
    Embedding,
    Outputs,
    Stats,
    ProfiledStep,
    ProfileEnd,
]

_encoder = msgspec.msgpack.Encoder()
_down_decoder = msgspec.msgpack.Decoder(Down)
_up_decoder = msgspec.msgpack.Decoder(Up)


def encode(message: Union[Down, Up]) -> bytes:
    """A message as msgpack, without its frame."""
    return _encoder.encode(message)


def decode_down(payload: bytes) -> Down:
    """A message for the worker. Raises msgspec.DecodeError (ValidationError included)."""
    return _down_decoder.decode(payload)


def decode_up(payload: bytes) -> Up:
    """A message for the parent. Raises msgspec.DecodeError (ValidationError included)."""
    return _up_decoder.decode(payload)
