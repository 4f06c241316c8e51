"""Recorded steps as a trace in Chrome's format (chrome://tracing, ui.perfetto.dev), and their time by op."""

from collections.abc import Sequence
from typing import Any

import headway_wire as wire

_PROCESS, _THREAD = 1, 1


def make_trace(model: str, steps: Sequence[wire.ProfiledStep]) -> dict[str, Any]:
    """{"traceEvents": ...}: complete events, in microseconds since the first step; ops lie within their step.

    Steps are told apart by args.step; op_seconds sums each kind of op over all steps, the longest first.
    """
    origin_ns = steps[0].begin_ns if steps else 0
    events = [_name("process_name", f"headway {model}"), _name("thread_name", "engine")]
    for number, step in enumerate(steps):
        about = {"step": number, "sequences": step.num_sequences, "tokens": step.num_tokens}
        events.append(_event("step", "step", step.begin_ns, step.end_ns, origin_ns, about))
        for span in step.spans:
            values = {"values": span.values} if span.values else {}
            events.append(_event(span.name, "op", span.begin_ns, span.end_ns, origin_ns, {"step": number} | values))
    return {"traceEvents": events, "displayTimeUnit": "ms", "op_seconds": op_seconds(steps)}


def op_seconds(steps: Sequence[wire.ProfiledStep]) -> dict[str, float]:
    """Seconds of each kind of op, and of what is none, longest first."""
    totals: dict[str, int] = {}
    for step in steps:
        for span in step.spans:
            totals[span.name] = totals.get(span.name, 0) + span.end_ns - span.begin_ns
    return {name: total / 1e9 for name, total in sorted(totals.items(), key=lambda item: -item[1])}


def _event(
    name: str, category: str, begin_ns: int, end_ns: int, origin_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": (begin_ns - origin_ns) / 1e3,
        "dur": (end_ns - begin_ns) / 1e3,
        "pid": _PROCESS,
        "tid": _THREAD,
        "args": args,
    }


def _name(what: str, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": _THREAD, "args": {"name": name}}
