"""TransformersGenerator: a causal language model on transformers, for architectures that Headway's engine has not.

Token ids in and out, chosen by Headway's own sampler, so that sampling fields and seeds mean what they always mean.
Each sequence is computed alone with its own cache, in the number type of its weights: right, and not fast. Computed
together, padded to one length, a sequence's sums would be added in another order by who is beside it, and its answer
would depend on that; and caches that are no keys and values would take in the padding. The life of a request: it waits
until all its choices have rows, and their caches room for what they may grow to; a step computes the prompt of the next
one, and one token of each that runs. What needs Headway's engine (constraints, log-probabilities of prompts) is refused
by name.
"""

import copy
import inspect
import random
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import headway_wire as wire
from headway.checkpoint.checkpoint import open_text
from headway.engine.admission import ModelLimits, check_submit
from headway.engine.sampler import Sampler
from headway.engine.step_time import StepTime
from headway.errors import (
    HeadwayError,
    InvalidRequest,
    NonFiniteLogits,
    UnsupportedFeature,
    UnsupportedModel,
    from_wire,
)
from headway.executor.base import Float32, Sampled
from headway.observe.sizes import size_text
from headway.predictors.base import Report
from headway.predictors.options import invalid_config, num_threads, read_options
from headway.predictors.torch_runner import find_device, find_dtype, set_threads
from headway.predictors.transformers_cache import CacheSize, cache_bytes, choose_room, describe_plan, measure_size
from headway.predictors.transformers_model import check_folder, from_pretrained

_DEFAULT_MAX_MODEL_LEN = 4096
_COUNTERS = (
    "accepted_total",
    "refused_total",
    "prompt_tokens_total",
    "computed_tokens_total",
    "computed_output_tokens_total",
    "steps_total",
    "aborts_total",
)
"""Named as Headway's engine names them, so that one table of metrics serves both."""


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model of the framework transformers and the type text-generation."""

    type: str = "text-generation"
    device: str = "auto"
    """auto, cpu, cuda:N."""
    dtype: str | None = None
    """What it is computed in: float32, bfloat16, float16; null or auto: as the file has it."""
    threads: int | None = None
    """null: the cores that the process may use."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; null: the model's own."""
    max_num_seqs: int = 8
    """Sequences that run at once; each has a cache of its own, which grows with it."""
    kv_cache_memory: int | None = None
    """Bytes of all caches; null: a quarter of memory_limit, or what all sequences could use, if that is less."""
    memory_limit: int | None = None
    """Bytes of all models together, as the server has them."""
    seed: int | None = None
    """Seeds of requests that have none are drawn from it; null: from the system."""


@dataclass(slots=True, eq=False)
class Choice:
    """A running sequence."""

    submit: wire.Submit
    index: int
    row: int
    """Of the sampler."""
    token_ids: list[int]
    max_total_tokens: int
    end_token_ids: frozenset[int]
    cache: Any = None
    """transformers' own, of all its tokens but the last."""


@dataclass(slots=True, eq=False)
class _Open:
    """What a request is until its last choice has ended."""

    submit: wire.Submit
    max_total_tokens: int
    num_reserved_bytes: int
    """What the caches of all its choices may grow to."""
    is_held: bool = False
    choices: list[Choice] = field(default_factory=list)
    """Empty: it waits."""


class TransformersGenerator:
    """See the module, and predictors.base.Predictor."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        """Loads the model and computes one token. Raises HeadwayError."""
        try:
            return self._load(Path(source), read_options(options, GenerationOptions), report)
        except wire.PredictorError as error:
            raise from_wire(error.error) from error

    def _load(self, folder: Path, wanted: GenerationOptions, report: Report) -> wire.Ready:
        report(wire.Loading(phase="read"))
        check_folder(folder)
        threads = num_threads(wanted.threads)
        set_threads(threads)
        dtype = "auto" if wanted.dtype in (None, "auto") else find_dtype(str(wanted.dtype))
        model, _ = from_pretrained(folder, "AutoModelForCausalLM", dtype, needs_tokenizer=False)
        self._runner = CausalRunner(model.to(find_device(wanted.device)))
        text = open_text(folder)
        max_model_len = _max_model_len(model.config.get_text_config(), wanted.max_model_len)
        if wanted.max_num_seqs < 1:
            raise invalid_config(f"max_num_seqs is {wanted.max_num_seqs}; it must be 1 or more", "max_num_seqs")
        report(wire.Loading(phase="warm"))
        vocab_size, self._cache_size = self._runner.warm_up()
        self._room = choose_room(
            self._cache_size,
            kv_cache_memory=wanted.kv_cache_memory,
            memory_limit=wanted.memory_limit,
            max_num_seqs=wanted.max_num_seqs,
            max_model_len=max_model_len,
            is_asked=wanted.max_model_len is not None,
        )
        max_model_len = self._room.max_model_len
        self._limits = ModelLimits(vocab_size=vocab_size, max_model_len=max_model_len, num_pool_tokens=max_model_len)
        self._sampler = Sampler(
            max_num_seqs=wanted.max_num_seqs, vocab_size=vocab_size, max_model_len=max_model_len, threads=threads
        )
        self._end_token_ids = text.end_token_ids
        self._random: random.Random = random.SystemRandom() if wanted.seed is None else random.Random(wanted.seed)
        self._free_rows = list(range(wanted.max_num_seqs))
        self._waiting: deque[_Open] = deque()
        self._running: dict[str, _Open] = {}
        self._ended: list[wire.TokenEvent] = []
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._step_time = StepTime(max_model_len)
        info = {**self._runner.facts(), "threads": threads, "max_num_seqs": wanted.max_num_seqs}
        plan = describe_plan(self._runner.weights_bytes, self._cache_size, self._room)
        return wire.Ready(info={**info, **plan, "max_model_len": max_model_len, "vocab_size": vocab_size})

    def handle(self, message: wire.Submit | wire.Abort | wire.Hold | wire.Infer) -> Iterable[wire.Up]:
        """Answers a Submit at once; the terminal events of an Abort come with the next step."""
        match message:
            case wire.Submit():
                return [self._submit(message)]
            case wire.Abort():
                self._abort(message)
            case wire.Hold():
                found = self._find(message.request_id)
                if found is not None:
                    found.is_held = message.is_held
            case wire.Infer():
                error = UnsupportedFeature("this is a language model: it takes prompts and no tensors")
                return [wire.Outputs(request_id=message.request_id, error=error.to_wire())]
        return []

    def has_work(self) -> bool:
        """Whether step() would do something: an end is to be told, a prompt has room, or a sequence is not held."""
        return (
            bool(self._ended)
            or self._next_waiting() is not None
            or any(not it.is_held for it in self._running.values())
        )

    def step(self) -> Iterable[wire.Up]:
        """The prompt of the next request that has room, and one token of each that runs."""
        begin = time.perf_counter()
        events, self._ended = self._ended, []
        rows: list[tuple[Choice, Float32]] = [
            (choice, self._runner.decode(choice))
            for request in self._running.values()
            if not request.is_held
            for choice in request.choices
        ]
        num_tokens = len(rows)
        starting = self._next_waiting()
        if starting is not None:
            self._waiting.remove(starting)
            num_tokens += len(starting.submit.prompt_token_ids)
            rows += self._start(starting)
        events += self._choose(rows)
        self._counts["steps_total"] += 1
        self._counts["computed_tokens_total"] += num_tokens
        self._step_time.note(num_tokens, time.perf_counter() - begin)
        num_running = sum(len(request.choices) for request in self._running.values())
        num_waiting = sum(request.submit.sampling.n for request in self._waiting)
        return [wire.Step(events=events, num_running=num_running, num_waiting=num_waiting, num_tokens=num_tokens)]

    def close_queue(self) -> None:
        """Nothing waits for a fuller batch."""

    def stats(self) -> wire.Stats:
        """Gauges, and counters (`*_total`) since the start."""
        gauges = {
            "num_requests": len(self._running) + len(self._waiting),
            "num_running": sum(len(request.choices) for request in self._running.values()),
            "num_waiting": sum(request.submit.sampling.n for request in self._waiting),
        }
        numbers = gauges | self._counts | self._step_time.values()
        return wire.Stats(values={name: float(value) for name, value in numbers.items()})

    def close(self) -> None:
        """Nothing is held outside the process."""

    def _submit(self, message: wire.Submit) -> wire.Up:
        try:
            self._check_features(message.sampling)
            max_total_tokens = check_submit(message, self._limits)
            self._check_caches(message.sampling.n, max_total_tokens)
        except HeadwayError as error:
            self._counts["refused_total"] += 1
            return wire.Refused(request_id=message.request_id, error=error.to_wire())
        self._counts["accepted_total"] += 1
        num_bytes = message.sampling.n * self._cache_size.of(max_total_tokens)
        self._waiting.append(_Open(message, max_total_tokens, num_bytes))
        return wire.Accepted(request_id=message.request_id)

    def _check_features(self, sampling: wire.Sampling) -> None:
        for name, is_asked in (
            ("structured_outputs", sampling.constraint is not None),
            ("prompt_logprobs", sampling.prompt_logprobs is not None),
        ):
            if is_asked:
                raise UnsupportedFeature(
                    f"{name} is not there for models that transformers runs: serve the model by the framework headway",
                    param=name,
                )
        if sampling.n > len(self._sampler.token_ids):
            raise InvalidRequest(
                f"n is {sampling.n}, and this model runs {len(self._sampler.token_ids)} sequences at once: ask"
                " for fewer, or load it with a larger max_num_seqs",
                param="n",
            )

    def _check_caches(self, n: int, max_total_tokens: int) -> None:
        needed = n * self._cache_size.of(max_total_tokens)
        if needed > self._room.num_bytes:
            raise InvalidRequest(
                f"n is {n}, and {n} times {max_total_tokens} tokens take {size_text(needed)} of keys and values, of"
                f" which there are {size_text(self._room.num_bytes)}: lower n or max_tokens, or load the model with a"
                " larger kv_cache_memory",
                param="n",
            )

    def _find(self, request_id: str) -> _Open | None:
        waiting = (request for request in self._waiting if request.submit.request_id == request_id)
        return self._running.get(request_id) or next(waiting, None)

    def _abort(self, message: wire.Abort) -> None:
        request = self._find(message.request_id)
        if request is None:
            return
        self._counts["aborts_total"] += 1
        if request in self._waiting:
            if message.choice is not None and request.submit.sampling.n > 1:
                return  # what ends one choice alone is in its text, and it has none yet
            self._waiting.remove(request)
            self._ended += [_ended(message, index) for index in range(request.submit.sampling.n)]
            return
        for choice in [it for it in request.choices if message.choice in (None, it.index)]:
            self._ended.append(_ended(message, choice.index))
            self._release(choice)

    def _next_waiting(self) -> _Open | None:
        """The first, if it is not held and all its choices have rows and room: nobody overtakes."""
        first = self._waiting[0] if self._waiting else None
        if first is None or first.is_held or first.submit.sampling.n > len(self._free_rows):
            return None
        reserved = sum(request.num_reserved_bytes for request in self._running.values())
        return first if reserved + first.num_reserved_bytes <= self._room.num_bytes else None

    def _start(self, request: _Open) -> list[tuple[Choice, Float32]]:
        """Computes the prompt once; each choice goes on from a copy of its cache."""
        submit = request.submit
        sampling, prompt = submit.sampling, submit.prompt_token_ids
        seed = self._random.getrandbits(64) - 2**63 if sampling.seed is None else sampling.seed
        own = frozenset() if sampling.ignore_eos else self._end_token_ids
        ends = own.union(sampling.stop_token_ids)
        logits, cache = self._runner.prefill(prompt)
        self._counts["prompt_tokens_total"] += len(prompt)
        self._running[submit.request_id] = request
        for index in range(sampling.n):
            row = self._free_rows.pop()
            self._sampler.token_ids[row, : len(prompt)] = prompt
            self._sampler.set_row(
                row, sampling, seed=seed, choice=index, end_token_ids=ends, num_prompt_tokens=len(prompt)
            )
            is_last = index == sampling.n - 1
            own_cache = cache if is_last else copy.deepcopy(cache)
            request.choices.append(Choice(submit, index, row, list(prompt), request.max_total_tokens, ends, own_cache))
        return [(choice, logits) for choice in request.choices]

    def _choose(self, rows: list[tuple[Choice, Float32]]) -> list[wire.TokenEvent]:
        """A token for each row of logits, and what that does to its choice."""
        if not rows:
            return []
        sampled = self._sampler.sample(
            np.stack([logits for _, logits in rows]),
            np.array([choice.row for choice, _ in rows], dtype=np.int32),
            np.array([len(choice.token_ids) for choice, _ in rows], dtype=np.int32),
        )
        return [self._advance(choice, sampled, place) for place, (choice, _) in enumerate(rows)]

    def _advance(self, choice: Choice, sampled: Sampled, place: int) -> wire.TokenEvent:
        request_id, sampling = choice.submit.request_id, choice.submit.sampling
        if not sampled.is_finite[place]:
            self._release(choice)
            error = NonFiniteLogits(
                "the model computed NaN or infinity: its weights do not fit it, or the dtype is too small"
            )
            return wire.TokenEvent(request_id, choice.index, finish_reason="error", error=error.to_wire())
        token = int(sampled.token_ids[place])
        self._sampler.token_ids[choice.row, len(choice.token_ids)] = token
        choice.token_ids.append(token)
        self._counts["computed_output_tokens_total"] += 1
        reason = None
        if token in choice.end_token_ids:
            reason = "stop"
        elif len(choice.token_ids) >= choice.max_total_tokens:
            reason = "length"
        if reason is not None:
            self._release(choice)
        return wire.TokenEvent(
            request_id,
            choice.index,
            token_ids=[token],
            logprobs=None if sampling.logprobs is None else [_logprobs(sampled, place, sampling.logprobs)],
            finish_reason=reason,
            stop_reason=token if reason == "stop" and token in sampling.stop_token_ids else None,
        )

    def _release(self, choice: Choice) -> None:
        """It has ended: its row and its cache are free, and with the last one its request is gone."""
        request = self._running[choice.submit.request_id]
        request.choices.remove(choice)
        self._free_rows.append(choice.row)
        if not request.choices:
            del self._running[choice.submit.request_id]


class CausalRunner:
    """A causal model of transformers over one sequence at a time."""

    def __init__(self, model: Any) -> None:
        import torch

        self._torch = torch
        self._model = model.eval().requires_grad_(False)
        parameters = inspect.signature(model.forward).parameters
        # Named `cache` from transformers 5.24 on, and before it past_key_values.
        self._cache = "cache" if "cache" in parameters else "past_key_values"
        # Else the logits of the whole prompt are made, of which the last are wanted.
        self._options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def prefill(self, token_ids: list[int]) -> tuple[Float32, Any]:
        """Logits behind the prompt, and its cache."""
        return self._forward(token_ids, None)

    def decode(self, choice: Choice) -> Float32:
        """Logits behind the choice's last token; its cache grows by it."""
        logits, choice.cache = self._forward(choice.token_ids[-1:], choice.cache)
        return logits

    def warm_up(self) -> tuple[int, CacheSize]:
        """Two steps; the width of the logits, and what a cache takes. Raises UnsupportedModel for a model that keeps no
        cache."""
        logits, cache = self._forward([0, 0], None)
        if cache is None:
            raise UnsupportedModel(
                f"{type(self._model).__name__} keeps no cache of keys and values: models without one are not run"
            )
        two = cache_bytes(cache)
        _, cache = self._forward([0], cache)
        return len(logits), measure_size(two, cache_bytes(cache))

    @property
    def weights_bytes(self) -> int:
        """Of its parameters and buffers."""
        return int(self._model.get_memory_footprint())

    def facts(self) -> dict[str, Any]:
        """For people."""
        return {
            "architecture": type(self._model).__name__,
            "device": str(self._model.device),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "num_parameters": self._model.num_parameters(),
        }

    def _forward(self, token_ids: list[int], cache: Any) -> tuple[Float32, Any]:
        ids = self._torch.tensor([token_ids], device=self._model.device)
        with self._torch.inference_mode():
            found = self._model(input_ids=ids, use_cache=True, **{self._cache: cache}, **self._options)
            logits: Float32 = found.logits[0, -1].float().cpu().numpy()
        return logits, found.get(self._cache)


def _max_model_len(config: Any, wanted: int | None) -> int:
    """Raises PredictorError for more than the model has positions for."""
    own = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if wanted is None:
        return int(own or _DEFAULT_MAX_MODEL_LEN)
    if wanted < 1 or (own is not None and wanted > own):
        limit = f"1 to {own}" if own else "1 or more"
        raise invalid_config(f"max_model_len is {wanted}; it must be {limit}", "max_model_len")
    return wanted


def _ended(message: wire.Abort, index: int) -> wire.TokenEvent:
    return wire.TokenEvent(
        message.request_id, index, finish_reason=message.finish_reason, stop_reason=message.reason or None
    )


def _logprobs(sampled: Sampled, place: int, num_top: int) -> wire.TokenLogprobs:
    ids = [token for token in sampled.top_ids[place].tolist()[:num_top] if token >= 0]
    return wire.TokenLogprobs(float(sampled.logprobs[place]), ids, sampled.top_logprobs[place].tolist()[: len(ids)])
