"""LLM and AsyncLLM: the offline door, in the names of vLLM's.

`LLM` runs an engine in the calling process and speaks to it by the worker's messages, held in memory: the same bits as
over HTTP. `AsyncLLM` runs it in a worker process, as the server does, so that the caller's event loop stays free.
Both take the flags of `headway serve` that are about the model as keyword arguments.
"""

import asyncio
import functools
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Unpack, cast

import msgspec

import headway_wire as wire
from headway.config import PoolConfig, ServerConfig
from headway.core.embedding import EmbeddingOutput, EmbedRequest, ScoreOutput, ScoreRequest
from headway.core.output import RequestOutput
from headway.core.sampling import SamplingParams, sampling_defaults
from headway.core.tools import ToolUse
from headway.errors import InternalError, InvalidConfig, InvalidRequest, from_wire
from headway.predictors.base import TimedPredictor
from headway.text.tokenizer import Tokenizer
from headway.worker.asked import (
    Asked,
    ChatForm,
    Message,
    PromptLike,
    as_asked,
    as_chats,
    as_prompt,
    as_prompts,
    as_texts,
    one_each,
)
from headway.worker.embed_offline import OfflineEncoder
from headway.worker.generate_offline import OfflineRun, add_delta, make_output, told_logprobs
from headway.worker.offline_flags import Flags, make_configs
from headway.worker.prompt import ModelText, check_generates
from headway.worker.stream import RequestStream

DEFAULT_MAX_TOKENS = 16
"""Of generate() where max_tokens is None, as vLLM and OpenAI's completions have it; chat() takes the whole context."""


class LLM:
    """A model in this process. Calls from several threads take turns.

    Args:
        model: a GGUF file, a Hugging Face folder, a hub id, or "demo".
        flags: as those of `headway serve`, with _ for -.

    Raises HeadwayError: InvalidConfig for a flag, ModelError for the model's files, OutOfMemory.
    """

    def __init__(self, model: str, **flags: Unpack[Flags]) -> None:
        from headway.checkpoint.checkpoint import open_checkpoint
        from headway.checkpoint.sources import resolve_source
        from headway.predictors.encoder import EncoderPredictor
        from headway.predictors.headway import HeadwayPredictor
        from headway.service.loader import make_text

        offline: Flags = {"step_target_s": 0.0}  # nobody reads along
        config, checkpoint = make_configs(model, {**offline, **flags})
        path = resolve_source(config.source, checkpoint)
        self._text: ModelText = make_text(config.text, open_checkpoint(path), path)
        self._predictor = HeadwayPredictor() if self._text.encoder is None else EncoderPredictor()
        ready = self._predictor.load(str(path), asdict(config.engine), lambda _: None)
        self.info: Mapping[str, Any] = ready.info
        """What the engine told when it was ready: limits, bytes, the memory plan's lines."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._is_closed = False

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt; answers in the order of the prompts. One SamplingParams for all, or one each.

        `priority` has one number a prompt, lower goes first (scheduling_policy="priority").

        Raises InvalidRequest before anything runs if a prompt or a parameter cannot be; an error of the engine in the
        middle is raised too, and nothing of this call runs on.
        """
        many = as_prompts(prompts)
        default = self.get_default_sampling_params()
        asked = as_asked(many, priority)
        return self._run(asked, sampling_params, default, DEFAULT_MAX_TOKENS)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_use: ToolUse | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several, by the model's chat template. Raises as generate().

        Reasoning and tool calls are fields of their own in each output.

        Args:
            tools: functions that may be called, as OpenAI has them.
            tool_use: whether one must be called, and which; None: the model chooses.
            continue_final_message: the output goes on with the last message, the assistant's; give
                add_generation_prompt=False with it.
            chat_template_kwargs: enable_thinking, and other switches that the template knows.
        """
        switches = chat_template_kwargs or {}
        how = ChatForm(tools, add_generation_prompt, continue_final_message, switches, tool_use or ToolUse())
        asked = [how.make_asked(chat) for chat in as_chats(messages)]
        return self._run(asked, sampling_params, self.get_default_sampling_params(), None)

    def embed(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[EmbeddingOutput]:
        """A vector of each text, in the order of the texts; the model must be an encoder.

        Args:
            prompts: as generate()'s.
            dimensions: of a vector, where the model was made for shorter ones.
            truncate_prompt_tokens: cuts longer texts, -1: to what the model takes; None: they are refused.

        Raises InvalidRequest, UnsupportedFeature, ContextLengthExceeded before anything runs.
        """
        inputs = [as_prompt(prompt) for prompt in as_prompts(prompts)]
        with self._open_encoder(truncate_prompt_tokens) as encoder:
            return encoder.embed(inputs, dimensions)

    def score(
        self, text_1: str | Sequence[str], text_2: str | Sequence[str], *, truncate_prompt_tokens: int | None = None
    ) -> list[ScoreOutput]:
        """How well the texts of each pair fit: a cross-encoder's score, or the cosine of an encoder's vectors.

        Args:
            text_1: one text for all of text_2, or one each.
            text_2: texts.
            truncate_prompt_tokens: as embed()'s; of a pair the longer text is cut first.

        Raises as embed().
        """
        firsts, seconds = as_texts(text_1), as_texts(text_2)
        with self._open_encoder(truncate_prompt_tokens) as encoder:
            return encoder.score(firsts, seconds)

    @contextmanager
    def _open_encoder(self, truncate_to: int | None) -> Iterator[OfflineEncoder]:
        with self._lock:
            if self._is_closed:
                raise InvalidConfig("this LLM is closed: make another one")
            yield OfflineEncoder(self._text, self._predictor, self.info, truncate_to)

    def get_default_sampling_params(self) -> SamplingParams:
        """Our defaults, with what the model's generation_config sets."""
        return SamplingParams(**sampling_defaults(self._text.generation_defaults))

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._text.tokenizer

    def stats(self) -> Mapping[str, float]:
        """The engine's counters and gauges."""
        with self._lock:
            return self._predictor.stats().values

    def close(self) -> None:
        """Frees the model; what is called after it raises InvalidConfig."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._predictor.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(
        self,
        prompts: "Sequence[Asked]",
        given: SamplingParams | Sequence[SamplingParams] | None,
        default: SamplingParams,
        default_max_tokens: int | None,
    ) -> list[RequestOutput]:
        check_generates(self._text)
        params = one_each(given, default, len(prompts))
        limit = self.info.get("max_model_len")
        runs = []
        for prompt, sampling in zip(prompts, params, strict=True):
            sampling = _with_max_tokens(sampling, default_max_tokens)
            runs.append(OfflineRun(str(next(self._numbers)), prompt, sampling, self._text, limit))
        with self._lock:
            if self._is_closed:
                raise InvalidConfig("this LLM is closed: make another one")
            self._drive({run.submit.request_id: run for run in runs})
        return [run.output for run in runs]

    def _drive(self, runs: Mapping[str, OfflineRun]) -> None:
        """Submits all and steps until each has its end. However it is left, the engine is empty after it."""
        try:
            for run in runs.values():
                self._apply(self._predictor.handle(run.submit), runs)
            self._predictor.close_queue()
            while not all(run.is_ended for run in runs.values()):
                if self._predictor.has_work():
                    self._apply(self._predictor.step(), runs)
                else:
                    self._wait()
                self._end_late(runs)
        finally:
            for run in runs.values():
                if not run.is_ended:
                    self._predictor.handle(wire.Abort(request_id=run.submit.request_id))
            while self._predictor.has_work():
                self._predictor.step()

    def _wait(self) -> None:
        """Until a grammar may be compiled."""
        wait_s = self._predictor.wait_s() if isinstance(self._predictor, TimedPredictor) else None
        if wait_s is None:
            raise InternalError("the engine has nothing to do although requests are open")
        time.sleep(wait_s)

    def _apply(self, messages: Iterable[wire.Up], runs: Mapping[str, OfflineRun]) -> None:
        for message in messages:
            if isinstance(message, wire.Refused):
                raise from_wire(message.error)
            if isinstance(message, wire.PromptLogprobs) and message.request_id in runs:
                runs[message.request_id].push_prompt(message)
            if not isinstance(message, wire.Step):
                continue
            for event in message.events:
                run = runs.get(event.request_id)
                if run is not None and run.push(event):
                    abort = wire.Abort(request_id=event.request_id, choice=event.choice, finish_reason="stop")
                    self._predictor.handle(abort)

    def _end_late(self, runs: Mapping[str, OfflineRun]) -> None:
        now = time.monotonic()
        for run in runs.values():
            if now >= run.deadline and not run.is_ended:
                run.end("timeout")
                self._predictor.handle(wire.Abort(request_id=run.submit.request_id, reason="timeout"))


class AsyncLLM:
    """A model in a process of its own, for asyncio. Use as `async with AsyncLLM("demo") as llm:`.

    Args: as LLM's.
    """

    def __init__(self, model: str, **flags: Unpack[Flags]) -> None:
        from headway.service.local import LocalService

        config, checkpoint = make_configs(model, flags)
        self._service = LocalService([config], PoolConfig(), ServerConfig(), checkpoint)
        self._model = self._service.models()[0].id
        self._open: dict[str, Callable[[], object]] = {}
        """What ends each request."""
        self._numbers = itertools.count()

    async def __aenter__(self) -> "AsyncLLM":
        await self._service.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def generate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Yields the answer each time it has grown, one object that is added to. Closing it early aborts."""
        asked = as_asked([prompt], [priority])[0]
        async for output in self._stream(asked, sampling_params, request_id, DEFAULT_MAX_TOKENS):
            yield output

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_use: ToolUse | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """As generate(), for a conversation; the rest as LLM.chat()."""
        switches = chat_template_kwargs or {}
        how = ChatForm(tools, add_generation_prompt, continue_final_message, switches, tool_use or ToolUse())
        asked = how.make_asked(messages, priority)
        async for output in self._stream(asked, sampling_params, request_id, None):
            yield output

    async def embed(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        priority: int = 0,
    ) -> list[EmbeddingOutput]:
        """As LLM.embed(); cancelling it ends what runs of it. `priority`: lower goes first among waiting texts."""
        from headway.worker.scoring import vectors_of

        request = EmbedRequest(
            request_id=self._next_id(),
            model=self._model,
            inputs=[as_prompt(prompt) for prompt in as_prompts(prompts)],
            dimensions=dimensions,
            truncate_to=truncate_prompt_tokens,
            priority=priority,
        )
        if not request.inputs:
            return []
        made = await self._service.embed(request)
        rows = vectors_of(made.vectors).tolist()
        return [EmbeddingOutput(row, count) for row, count in zip(rows, made.token_counts, strict=True)]

    async def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        priority: int = 0,
    ) -> list[ScoreOutput]:
        """As LLM.score(); the rest as embed()."""
        request = ScoreRequest(
            request_id=self._next_id(),
            model=self._model,
            firsts=as_texts(text_1),
            seconds=as_texts(text_2),
            truncate_to=truncate_prompt_tokens,
            priority=priority,
        )
        return [ScoreOutput(score) for score in (await self._service.score(request)).scores]

    async def abort(self, request_id: str) -> None:
        """Ends a request: its iterator stops with what it has, with nothing where it still waits for the model.
        Unknown ones are ignored."""
        end = self._open.get(request_id)
        if end is not None:
            end()

    async def aclose(self) -> None:
        """Ends the model's process."""
        await self._service.aclose()

    def _next_id(self) -> str:
        return f"async-{next(self._numbers)}"

    async def _stream(
        self, asked: Asked, sampling: SamplingParams | None, request_id: str | None, default_max_tokens: int | None
    ) -> AsyncIterator[RequestOutput]:
        name = request_id if request_id is not None else self._next_id()
        if name in self._open:
            raise InvalidRequest(f"request_id {name!r} is in use: give another one", param="request_id")
        starting = asyncio.create_task(self._start(name, asked, sampling, default_max_tokens))
        self._open[name] = starting.cancel
        try:
            stream, sampling = await starting
            self._open[name] = functools.partial(stream.end, "abort")
            output = make_output(name, asked.prompt, list(stream.prompt_token_ids), sampling)
            async with stream:
                async for delta in stream:
                    if sampling.prompt_logprobs is not None and output.prompt_logprobs is None:
                        output.prompt_logprobs = told_logprobs(stream.prompt)
                    add_delta(output, delta)
                    output.num_cached_tokens = stream.usage.num_cached_tokens
                    yield output
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                starting.cancel()
                starting.add_done_callback(_end_unused)
                raise
            # abort() came before there was a stream.
        finally:
            del self._open[name]

    async def _start(
        self, name: str, asked: Asked, sampling: SamplingParams | None, default_max_tokens: int | None
    ) -> tuple[RequestStream, SamplingParams]:
        if sampling is None:
            sampling = SamplingParams(**sampling_defaults(await self._service.generation_defaults(self._model)))
        sampling = _with_max_tokens(sampling, default_max_tokens)
        # One model in a process of its own, so its streams are these.
        stream = await self._service.generate(asked.make_request(name, self._model, sampling))
        return cast(RequestStream, stream), sampling


def _end_unused(starting: "asyncio.Task[tuple[RequestStream, SamplingParams]]") -> None:
    """A stream that came in the same moment as the cancellation has no other end."""
    if not starting.cancelled() and not starting.exception():
        starting.result()[0].end("abort")


def _with_max_tokens(sampling: SamplingParams, default: int | None) -> SamplingParams:
    """With the default where nothing is said; None: as it is."""
    if sampling.max_tokens is not None or default is None:
        return sampling
    return msgspec.structs.replace(sampling, max_tokens=max(default, sampling.min_tokens))


__all__ = ["LLM", "AsyncLLM", "Flags"]
