"""vLLM's engine inside a worker process (options.mode embedded): ids in, ids out, through headway_wire.token_server.

Template, tokenizer, stop strings and tool calls are Headway's, as for its own models. Runs in vLLM's own environment,
where Headway is not installed: imports nothing of it but headway_wire.
"""

import os
from collections.abc import Sequence
from typing import Any

from headway_wire.messages import Loading, Sampling, Submit, TokenEvent, TokenLogprobs
from headway_wire.predictor import PredictorError, Report
from headway_wire.token_server import TokenPredictor

_KNOWN = ("mode", "arguments", "kv_cache_gib", "environment", "threads")
"""Of those that docs/other-servers.md has: what means something here."""
_REASONS = {"stop": "stop", "length": "length", "abort": "abort"}


class VllmPredictor(TokenPredictor):
    """One vLLM engine, in this process and thread."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._max_model_len = 0
        self._live: dict[str, set[int]] = {}
        """Choices of each request that have not ended for the parent."""
        self._num_top: dict[str, int | None] = {}
        """Log-probabilities that each request asked for."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> dict[str, Any]:
        """Options: arguments (those of `vllm serve`, as a list), kv_cache_gib, environment, threads."""
        unknown = sorted(set(options) - {*_KNOWN, "type"})
        if unknown:
            raise PredictorError(
                "InvalidConfig", f"options of vLLM has {unknown[0]!r}; there are {', '.join(_KNOWN)}", "options"
            )
        set_environment(options)
        report(Loading(phase="read"))
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.llm_engine import LLMEngine

        parser = EngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
        try:
            parsed = parser.parse_args(["--model", source, *options.get("arguments", ())])
        except (Exception, SystemExit) as error:  # its parser exits
            raise PredictorError("InvalidConfig", f"options.arguments is no list of vLLM's flags: {error}") from error
        report(Loading(phase="build"))
        self._engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(parsed))
        config = self._engine.vllm_config
        self._max_model_len = int(config.model_config.max_model_len)
        return {
            "task": "generate",
            "max_model_len": self._max_model_len,
            "max_num_seqs": int(config.scheduler_config.max_num_seqs),
            "dtype": str(config.model_config.dtype),
            "engine": "vllm",
        }

    def submit(self, request: Submit) -> None:
        """Raises PredictorError for what vLLM can not be told by ids."""
        check_sampling(request)
        num_prompt = len(request.prompt_token_ids)
        if num_prompt >= self._max_model_len:
            raise PredictorError(
                "ContextLengthExceeded",
                f"the prompt has {num_prompt} tokens, and the context is {self._max_model_len} tokens",
                "prompt",
            )
        prompt: dict[str, Any] = {"prompt_token_ids": request.prompt_token_ids}
        if request.cache_salt:
            prompt["cache_salt"] = request.cache_salt
        try:
            params = make_params(request.sampling, self._max_model_len - num_prompt)
            self._engine.add_request(request.request_id, prompt, params, priority=request.priority)
        except ValueError as error:
            raise PredictorError("InvalidRequest", f"vLLM refused the request: {error}") from error
        self._live[request.request_id] = set(range(request.sampling.n))
        self._num_top[request.request_id] = request.sampling.logprobs

    def abort(self, request_id: str, choice: int | None, finish_reason: str, reason: str) -> list[TokenEvent]:
        """One choice of several runs on in vLLM until its request ends; what it makes is not told."""
        live = self._live.get(request_id, set())
        ended = sorted(live if choice is None else live & {choice})
        events = [
            TokenEvent(request_id, each, finish_reason=finish_reason, stop_reason=reason or None) for each in ended
        ]
        self._end(request_id, ended, aborts=True)
        return events

    def has_work(self) -> bool:
        """Whether vLLM has requests that are not finished."""
        return self._engine is not None and bool(self._engine.has_unfinished_requests())

    def step(self) -> list[TokenEvent]:
        """One step of vLLM's engine."""
        events: list[TokenEvent] = []
        for output in self._engine.step():
            num_cached = output.num_cached_tokens or 0
            for completion in output.outputs:
                event = self._event(output.request_id, completion, num_cached)
                if event is not None:
                    events.append(event)
        return events

    def open_ids(self) -> list[str]:
        """Requests that the parent still waits for."""
        return list(self._live)

    def close(self) -> None:
        """Ends what vLLM started."""
        if self._engine is not None:
            self._engine.engine_core.shutdown()

    def _event(self, request_id: str, completion: Any, num_cached: int) -> TokenEvent | None:
        choice, token_ids = completion.index, list(completion.token_ids)
        if choice not in self._live.get(request_id, ()) or not (token_ids or completion.finish_reason):
            return None
        num_top = self._num_top[request_id]
        reason, stop_reason = completion.finish_reason, completion.stop_reason
        if reason is not None:
            reason = _REASONS.get(reason, "stop")
            self._end(request_id, [choice], aborts=False)
        if reason == "stop" and stop_reason is None and token_ids:
            stop_reason = token_ids[-1]  # an end token of the model's own, which vLLM does not name
        return TokenEvent(
            request_id,
            choice,
            token_ids,
            logprobs=None if num_top is None else told_logprobs(token_ids, completion.logprobs or (), num_top),
            finish_reason=reason,
            stop_reason=stop_reason,
            num_cached_tokens=num_cached,
        )

    def _end(self, request_id: str, choices: Sequence[int], *, aborts: bool) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        live.difference_update(choices)
        if not live:
            del self._live[request_id], self._num_top[request_id]
            if aborts:
                self._engine.abort_request([request_id])


def set_environment(options: dict[str, Any]) -> None:
    """What vLLM reads as it is imported: its engine in this very process, no word to anybody, cache and threads."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(int(options.get("kv_cache_gib", 1))),
        "OMP_NUM_THREADS": str(options.get("threads") or num_cores),
    }
    os.environ.update({**told, **options.get("environment", {})})


def check_sampling(request: Submit) -> None:
    """Raises PredictorError for a field that would be left out."""
    sampling = request.sampling
    refused = {
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "structured_outputs": sampling.constraint is not None,
        "input": request.second_start is not None,
    }
    for name, is_asked in refused.items():
        if is_asked:
            raise PredictorError(
                "UnsupportedFeature",
                f"{name} can not be asked of a vLLM that is embedded, nor tools that a grammar holds to: serve the "
                "model with options.mode launch",
                name,
            )


def make_params(sampling: Sampling, room: int) -> Any:
    """vLLM's SamplingParams: pieces as they are made, and no text.

    `room`: tokens that the context has left.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        n=sampling.n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias) or None,
        allowed_token_ids=sampling.allowed_token_ids,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        min_tokens=sampling.min_tokens,
        max_tokens=room if sampling.max_tokens is None else min(sampling.max_tokens, room),
        logprobs=sampling.logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    if sampling.bad_token_ids:
        params._bad_words_token_ids = [list(word) for word in sampling.bad_token_ids]
    return params


def told_logprobs(token_ids: Sequence[int], told: Sequence[dict[int, Any]], num_top: int) -> list[TokenLogprobs]:
    """Of each token: its own log-probability and those of the likeliest, by rank; ties by the lower id."""
    rows = []
    for token_id, candidates in zip(token_ids, told, strict=True):
        top = sorted(candidates.items(), key=lambda item: (-item[1].logprob, item[0]))[:num_top]
        rows.append(
            TokenLogprobs(candidates[token_id].logprob, [each for each, _ in top], [value.logprob for _, value in top])
        )
    return rows
