"""ScriptedModel: a predictor of tensors and values that does what each value says (headway_wire.InferPredictor).

    {"echo": x}                  gives x, with how many requests were computed together and in which process
    {"gate": path, ...}          waits first, until somebody has opened and closed that FIFO for writing
    {"print": text, ...}         prints it first
    {"raise": "ValueError", "words": "..."}   raises a built-in exception
    {"exit": code}, {"kill": signal}          ends the process
    {"fork": true}               forks; the child raises
    {"answer": "object"}         gives what can not be sent; "huge": a number that is too large for it
Tensors come back as they are. Options: {"signature": Signature as plain data, "phases": [...], "load": one of these}.
"""

import builtins
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headway_wire import Infer, InferPredictor, Loading, Outputs, Signature

PREDICTOR = "headway.testing.scripted_model:ScriptedModel"


class ScriptedModel(InferPredictor):
    """See the module."""

    def load(self, source: str, options: dict[str, Any], report: Callable[[Loading], None]) -> Signature:
        """Does what options["load"] says; tells the phases."""
        for phase in options.get("phases", ["read"]):
            report(Loading(phase=phase))
        _act(options.get("load", {}))
        plain = {"task": "tensor", "platform": "scripted", "can_batch": True, **options.get("signature", {})}
        return msgspec.convert(plain, Signature)

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """Each value's act, in order, then the answers."""
        for request in requests:
            if isinstance(request.value, dict):
                _act(request.value)
        return [self._answer(request, len(requests)) for request in requests]

    def _answer(self, request: Infer, batch_size: int) -> Outputs:
        if request.tensors:
            chosen = [it for it in request.tensors if not request.outputs or it.name in request.outputs]
            return Outputs(request_id=request.request_id, tensors=chosen)
        if isinstance(request.value, dict) and "answer" in request.value:
            return Outputs(request_id=request.request_id, value=_ANSWERS.get(request.value["answer"]))
        echo = request.value.get("echo") if isinstance(request.value, dict) else request.value
        value = {"echo": echo, "batch": batch_size, "pid": os.getpid(), "parameters": request.parameters}
        return Outputs(request_id=request.request_id, value=value)


class _Odd:
    """What no message can hold."""


_ANSWERS: dict[str, Any] = {"object": _Odd(), "huge": 1 << 80}


def _act(act: dict[str, Any]) -> None:
    if "gate" in act:
        with open(act["gate"], "rb") as gate:
            gate.read()
    if "print" in act:
        print(act["print"])
    if "kill" in act:
        os.kill(os.getpid(), act["kill"])
    if "exit" in act:
        os._exit(act["exit"])
    if "fork" in act and os.fork() == 0:
        raise RuntimeError("this is the child")
    if "raise" in act:
        raise getattr(builtins, act["raise"])(act.get("words", ""))
