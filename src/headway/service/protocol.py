"""What a door needs of the house behind it. server/ knows nothing else of the models."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol

from headway._native import TextEvents
from headway.config import ModelType
from headway.core.embedding import Embedded, EmbedRequest, Scored, ScoreRequest
from headway.core.infer import Inferred, InferRequest
from headway.core.output import PromptOutput, TextDelta, Usage
from headway.core.request import GenerateRequest, Prompt
from headway.errors import HeadwayError

ModelState = Literal["cold", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model, as /v1/models and /ready tell it."""

    id: str
    created: int
    """Unix seconds."""
    state: ModelState
    max_model_len: int | None
    root: str
    """Where it came from."""
    error: HeadwayError | None = None
    """Why it failed last, until it is ready."""
    phases: tuple[tuple[str, float], ...] = ()
    """The load so far, for people: phases (fetch, start, read, build, warm) and their seconds, the current one last."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the model's worker told when it became ready (Ready.info): limits, bytes, the memory plan's lines; of models
    that take tensors their headway_wire.Signature as plain data."""
    framework: str = "headway"
    type: ModelType = "text-generation"
    version: str = ""
    description: str = ""
    kind: Literal["model", "alias", "preset"] = "model"
    """What `id` is; `model` names what it stands for."""
    model: str = ""
    """The id of the model; of a model itself too."""
    num_bytes: int | None = None
    """What it is charged with: measured while it is resident, else expected; None: not known yet."""
    over_limit_bytes: int = 0
    """Of it alone, over the limit of the device where that is most: it stays, for it would come back no smaller."""
    num_leases: int = 0
    is_pinned: bool = False
    update_error: HeadwayError | None = None
    """Why what is new in its watched source is not served; the version before is."""
    fraction: float | None = None
    """Of the phase under way, from 0 to 1; None: nobody knows."""
    retry_at_s: float | None = None
    """Of one that failed: seconds until it is loaded again at the next request."""


class GenerateStream(Protocol):
    """An accepted request. Iterating gives deltas of all choices, each choice's last with a finish_reason.

    An error event raises its HeadwayError from the iterator. Whoever got the stream closes it (aclose, or
    `async with`); closing before the end aborts what still runs.
    """

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    @property
    def prompt(self) -> PromptOutput:
        """Its log-probabilities, where they were asked for, are whole once the first delta is there."""
        ...

    @property
    def model(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[TextDelta]: ...

    async def feed(
        self,
        take: Callable[[Sequence[TextDelta]], bool],
        offer_events: Callable[[], TextEvents | None] | None = None,
    ) -> bool:
        """Gives the deltas to `take`: those that are there (never more at once than fits one write), then what comes.

        `take` says whether it wants more. It is called while the caller sleeps, and must not block. True: it wants no
        more for now; call again when it does. False: the end. Raises the error event's HeadwayError, once, and what
        `take` raised.

        `offer_events` is asked after a take that wants more. Where it tells what `take` would put each further piece of
        text into that is all there is to tell, such pieces may go there instead, counted in the events' times.
        """
        ...

    async def __aenter__(self) -> "GenerateStream": ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def aclose(self) -> None: ...

    @property
    def usage(self) -> Usage:
        """So far; final once the iterator has ended."""
        ...


class Service(Protocol):
    """Many models behind one door."""

    def models(self) -> list[ModelCard]:
        """Those that may be asked for."""
        ...

    def card(self, model: str) -> ModelCard:
        """Of one name, id@version of a default too. Raises ModelNotFound."""
        ...

    def is_ready(self) -> tuple[bool, str]:
        """Whether a request would be taken now, and why not."""
        ...

    async def generate(self, request: GenerateRequest) -> GenerateStream:
        """Returns once the worker has accepted it. Raises HeadwayError: then nothing was started."""
        ...

    async def embed(self, request: EmbedRequest) -> Embedded:
        """A vector of each input. Raises as generate(); UnsupportedFeature for a model that makes none."""
        ...

    async def score(self, request: ScoreRequest) -> Scored:
        """A score of each pair. Raises as embed()."""
        ...

    async def infer(self, request: InferRequest) -> Inferred:
        """Tensors or a value to the model and back; loads it if need be.

        Raises as generate(); InvalidRequest for a wrong name, datatype or shape; UnsupportedFeature for a model that
        takes none.
        """
        ...

    async def signature(self, model: str) -> Mapping[str, Any]:
        """headway_wire.Signature of a model as plain data; loads it if it was never loaded. Raises as infer()."""
        ...

    async def load(self, model: str) -> ModelCard:
        """Makes it resident and returns once it is ready, with its phases. Raises why it can not be."""
        ...

    async def unload(self, model: str) -> ModelCard:
        """Takes nothing new for it, waits for its leases, ends its processes; the next request loads it again."""
        ...

    def watch(self, model: str) -> AsyncIterator[ModelCard]:
        """Its card now, and at each change of its load, until it is ready or failed; loads nothing. Raises
        ModelNotFound at the first step. What changed while nobody looked is told once."""
        ...

    async def tokenize(self, model: str, prompt: Prompt) -> list[int]:
        """The ids that generate() would send. Raises as generate()."""
        ...

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included. Raises InvalidRequest for an id outside the vocabulary."""
        ...

    async def token_texts(self, model: str, token_ids: Sequence[int]) -> list[str]:
        """Each id decoded on its own."""
        ...

    async def generation_defaults(self, model: str) -> Mapping[str, Any]:
        """The model's own sampling defaults (generation_config.json), empty where it has none or they are off.

        Waits until the model's files are open, not for its weights. Raises ModelNotFound, or why they can't be opened.
        """
        ...

    def stats(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """{"models": {model id: numbers}, "pool": {"pool": numbers}}.

        A model's numbers are its worker's last Stats as they came, and the parent's own: client_open_requests,
        client_output_tokens_total (billed), client_overshoot_tokens_total, client_aborts_total,
        client_internal_errors_total, client_unreadable_calls_total (tool calls that became text). Counters (*_total)
        go on over restarts of the worker.
        The pool's: waiting_requests, leases, worker_starts_total, worker_restarts_total, worker_failures_total.
        """
        ...

    async def profile(self, model: str | None, num_steps: int, timeout_s: float) -> Mapping[str, Any]:
        """The model's next steps as a trace in Chrome's format (worker/trace); None: the first model's.

        Fewer steps where no more are made within `timeout_s`. Starts no model. Raises ModelNotFound, ModelNotReady,
        UnsupportedFeature, QueueFull while others are recorded, WorkerDied.
        """
        ...

    async def start(self) -> None:
        """Starts what is to be resident from the beginning; returns at once, the load goes on. Again: nothing."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Takes nothing new, waits for what runs, at most so long; then ends it with ShuttingDown."""
        ...

    async def aclose(self) -> None:
        """Ends every worker process."""
        ...
