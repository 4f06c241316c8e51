"""Generations to responses, whole; events.py streams them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headway._native import TokenTimes
from headway.core.output import TextDelta, Usage
from headway.core.request import ChatPrompt, GenerateRequest
from headway.server.errors import error_body
from headway.server.generation import Generation
from headway.server.openai.responses.output import OutputItems
from headway.server.openai.responses.schema import (
    LOGPROBS,
    IncompleteOut,
    InputTokens,
    OutputItem,
    ReasoningOut,
    ResponseErrorOut,
    ResponseOut,
    ResponsesBody,
    ResponseStatus,
    ResponseUsageOut,
)
from headway.server.openai.schema import OutputTokens


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a response the request decides."""

    body: ResponsesBody
    request: GenerateRequest
    is_kept: bool
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def has_logprobs(self) -> bool:
        """Whether the texts of the answer have them."""
        return LOGPROBS in (self.body.include or ())

    def response(
        self,
        model: str,
        status: ResponseStatus,
        output: Sequence[OutputItem] = (),
        *,
        usage: Usage | None = None,
        error: ResponseErrorOut | None = None,
        incomplete: IncompleteOut | None = None,
    ) -> ResponseOut:
        """The response as it stands."""
        body, sampling = self.body, self.request.sampling
        reasoning = body.reasoning
        return ResponseOut(
            id=self.request.request_id,
            created_at=self.created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            error=error,
            incomplete_details=incomplete,
            model=model,
            output=list(output),
            usage=None if usage is None else usage_out(usage),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning=ReasoningOut(reasoning.effort, reasoning.summary) if reasoning else ReasoningOut(),
            store=self.is_kept,
            temperature=sampling.temperature,
            text=_text_out(body),
            tool_choice=body.tool_choice or "auto",
            tools=_tools_out(self.request.prompt),
            top_logprobs=body.top_logprobs or 0,
            top_p=sampling.top_p,
            user=body.user,
        )

    def ended(self, generation: Generation, items: OutputItems) -> ResponseOut:
        """The response at its end: whole, or cut by a limit."""
        status: ResponseStatus = "completed" if items.finish_reason == "stop" else "incomplete"
        incomplete = None
        if status == "incomplete":
            is_length = items.finish_reason == "length"
            incomplete = IncompleteOut("max_output_tokens" if is_length else str(items.stop_reason or "abort"))
        usage = generation.usage
        return self.response(generation.model, status, items.items(), usage=usage, incomplete=incomplete)

    def failed(self, generation: Generation, items: OutputItems, error: Exception) -> ResponseOut:
        """The response of a generation that failed on its way, with what it had."""
        told = ResponseErrorOut(error_body(error).error.message)
        return self.response(generation.model, "failed", items.items(), usage=generation.usage, error=told)


class ItemsSink:
    """A generation's sink that makes items and tells of no changes (server/generation.Sink)."""

    def __init__(self, items: OutputItems) -> None:
        self._items = items

    def take(self, first: int, deltas: Sequence[TextDelta]) -> bool:
        """As Sink.take."""
        for delta in deltas:
            self._items.take(delta)
        return True

    async def drain(self) -> None:
        """Never called."""

    def offer_events(self, index: int, times: TokenTimes) -> None:
        """All text is kept."""


def usage_out(usage: Usage) -> ResponseUsageOut:
    """This API's usage."""
    prompt, output = usage.num_prompt_tokens, usage.num_output_tokens
    details = OutputTokens(usage.num_reasoning_tokens, usage.num_forced_tokens)
    return ResponseUsageOut(prompt, InputTokens(usage.num_cached_tokens), output, details, prompt + output)


def _text_out(body: ResponsesBody) -> dict[str, Any]:
    if body.text is None:
        return {"format": {"type": "text"}}
    told = body.text.model_dump(by_alias=True, exclude_none=True)
    return {"format": {"type": "text"}} | told


def _tools_out(prompt: object) -> list[dict[str, Any]]:
    """The tools, flat; what a tool leaves out is told as null, and strict as what was done."""
    tools = (prompt.tools if isinstance(prompt, ChatPrompt) else None) or ()
    nothing = {"description": None, "parameters": None, "strict": False}
    return [{"type": "function"} | nothing | tool["function"] for tool in tools]
