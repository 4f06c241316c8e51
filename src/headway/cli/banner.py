"""What `serve` tells once the model answers: pure functions from facts to lines."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

_ENCODER_CALLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "embed": ("embeddings", {"input": ["A cat sat on the mat.", "Markets fell today."]}),
    "score": ("rerank", {"query": "Where is the cat?", "documents": ["A cat sat on the mat.", "Markets fell today."]}),
}
"""A route and a body, by Ready.info's task."""


def curl_line(url: str, model: str, *, has_key: bool, has_chat: bool = True, task: str = "generate") -> str:
    """One line for a POSIX shell. A key is written as $HEADWAY_API_KEY: never printed.

    Of a language model it asks for few tokens: a small one may ramble to the end of its context.
    """
    body: dict[str, Any] = {"model": model, "max_tokens": 64}
    if task in _ENCODER_CALLS:
        route, inputs = _ENCODER_CALLS[task]
        body = {"model": model, **inputs}
    elif has_chat:
        route, body["messages"] = "chat/completions", [{"role": "user", "content": "Say hello in one sentence."}]
    else:
        route, body["prompt"] = "completions", "Once upon a time"
    key = '-H "Authorization: Bearer $HEADWAY_API_KEY" ' if has_key else ""
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    address = shlex.quote(f"{url}/v1/{route}")  # IPv6: [::1] is a pattern to some shells
    return f"curl {address} -H 'Content-Type: application/json' {key}-d {text}"


def plan_lines(info: Mapping[str, Any]) -> list[str]:
    """The memory plan as the planner wrote it; nothing for a predictor that has none."""
    plan = info.get("plan", ())
    lines = plan.splitlines() if isinstance(plan, str) else plan
    return [str(line) for line in lines]


def unmatched_lines(info: Mapping[str, Any]) -> list[str]:
    """What --non-strict let pass: tensors that are missing, misshapen or unexpected."""
    return [f"loaded all the same: {line}" for line in info.get("unmatched_tensors", ())]
