"""OfflineRun: one request of LLM.generate and LLM.chat in the calling process; and how an answer grows."""

import math
import time

import headway_wire as wire
from headway.core.output import CompletionOutput, PromptOutput, RequestOutput, TextDelta, TokenLogprob
from headway.core.request import Prompt, TextPrompt
from headway.core.sampling import SamplingParams
from headway.core.tools import add_deltas
from headway.errors import from_wire
from headway.worker.asked import Asked
from headway.worker.assembler import ChoiceAssembler, PromptAssembler
from headway.worker.prompt import ModelText, check_request, complete_sampling, fit_prompt, read_prompt


class OfflineRun:
    """One request of an LLM while it runs.

    Args:
        asked: its prompt and how it is to be scheduled.
        limit: the longest context, prompt and output together; None: not known.

    Raises InvalidRequest, ContextLengthExceeded.
    """

    def __init__(
        self, request_id: str, asked: Asked, sampling: SamplingParams, text: ModelText, limit: int | None
    ) -> None:
        wanted = asked.make_request(request_id, "", sampling)
        request = fit_prompt(check_request(text, wanted, read_prompt(text, asked.prompt)), limit)
        token_ids = list(request.prompt_token_ids)
        self.submit = wire.Submit(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling=complete_sampling(request.sampling, num_prompt_tokens=len(token_ids), max_model_len=limit),
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        self._choices = [
            ChoiceAssembler(text.tokenizer, request.sampling, choice, request.output) for choice in range(sampling.n)
        ]
        self._prompt = PromptAssembler(text.tokenizer, sampling, request.prompt_token_ids, request.prompt_text)
        self._tells_prompt = sampling.prompt_logprobs is not None
        self.output = make_output(request_id, asked.prompt, token_ids, sampling)
        self.deadline = math.inf if sampling.timeout_s is None else time.monotonic() + sampling.timeout_s

    @property
    def is_ended(self) -> bool:
        """Whether each choice has its end."""
        return all(choice.is_ended for choice in self._choices)

    def end(self, stop_reason: str) -> None:
        """Ends the choices that still run, with the text that they have."""
        for choice in self._choices:
            delta = choice.end("abort", stop_reason)
            if delta is not None:
                add_delta(self.output, delta)

    def push_prompt(self, message: wire.PromptLogprobs) -> None:
        """Takes log-probabilities of the prompt; the last of them come before the first token."""
        self._prompt.push(message)

    def push(self, event: wire.TokenEvent) -> bool:
        """Takes an event; True if the choice met a stop string that the engine has to be told of."""
        if event.error is not None:
            raise from_wire(event.error)
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, event.num_cached_tokens)
        if self._tells_prompt and self.output.prompt_logprobs is None:
            self.output.prompt_logprobs = told_logprobs(self._prompt.output())
        delta = self._choices[event.choice].push(event)
        if delta is None:
            return False
        add_delta(self.output, delta)
        return delta.finish_reason is not None and event.finish_reason is None


def add_delta(output: RequestOutput, delta: TextDelta) -> None:
    """Appends what one choice gained."""
    choice = output.outputs[delta.choice]
    choice.text += delta.text
    choice.token_ids += delta.token_ids
    choice.reasoning += delta.reasoning
    add_deltas(choice.tool_calls, delta.tool_calls)
    if choice.logprobs is not None:
        choice.logprobs += delta.logprobs
    if delta.finish_reason is not None:
        choice.finish_reason = delta.finish_reason
        choice.stop_reason = delta.stop_reason
        output.finished = all(each.finish_reason is not None for each in output.outputs)


def told_logprobs(prompt: PromptOutput) -> list[TokenLogprob | None] | None:
    """As vLLM has them: None for the first."""
    return None if prompt.logprobs is None else [None, *prompt.logprobs[1:]]


def make_output(request_id: str, prompt: Prompt, token_ids: list[int], sampling: SamplingParams) -> RequestOutput:
    """The answer before its first token."""
    has_logprobs = sampling.logprobs is not None
    outputs = [CompletionOutput(index, logprobs=[] if has_logprobs else None) for index in range(sampling.n)]
    return RequestOutput(request_id, prompt.text if isinstance(prompt, TextPrompt) else None, token_ids, outputs)
