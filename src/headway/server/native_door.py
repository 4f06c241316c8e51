"""The native door: plain inference requests go from a connection's bytes to a worker's socket, and back, natively.

    bytes of a connection -> DoorConnection.take()    what is plain, whole, for a path that is known here
        -> frame of headway_wire.Infer -> the worker's socket     all else -> uvicorn's parser, as if there were no door
    the worker's answer -> PlainInstance.take()       what is plain
        -> HTTP answer -> the client's socket                     all else -> the request, and this answer, in Python

A path is known (learn()) once a request for it went the Python way, until something changes: a model, a name, the
server's end. Then all paths are forgotten. What is to be seen from outside (answers, metrics, statistics, log lines,
limits) is the same on both ways.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from starlette.types import Scope

import headway_wire as wire
from headway._native import (
    Door,
    DoorCodec,
    DoorConnection,
    DoorCounts,
    DoorEntry,
    Outlet,
    infer_codec,
    predict_codec,
    text_codec,
)
from headway.errors import ModelNotFound
from headway.observe.logs import log_many
from headway.server.writes import batch_of
from headway.service.protocol import ModelCard
from headway.service.standing_lease import LeasingService, StandingLease

if TYPE_CHECKING:
    from headway.server.oip.statistics import ModelKey
    from headway.server.oip.targets import Target
    from headway.server.state import ServerState

WHOLE_WITHIN_S = 1.0
"""A request that has not come whole by then goes on in Python, whose time limits are for slow clients."""
MAX_HELD_BYTES = 256 << 20
"""Of all requests that are open here, or not whole yet; what comes over it takes the Python way."""

_request_log = logging.getLogger("headway.server")


@dataclass(frozen=True, slots=True)
class _Counted:
    """Where what one DoorCounts counts is told."""

    counts: DoorCounts
    handler: str
    model: str | None = None
    """As the metrics of inferences name it; None: it is none of these."""
    statistics_key: "ModelKey | None" = None
    """None: it is none of the Open Inference Protocol's."""
    encoder: str | None = None
    """As the metrics of encoders name it; None: it is none."""


class NativeDoor:
    """One a server; all on the event loop's thread."""

    def __init__(self, state: "ServerState", service: LeasingService) -> None:
        self._state = state
        self._service = service
        self._door: Door | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._learned: dict[tuple[str, str], StandingLease] = {}
        """By path, and of /predict by the model's name."""
        self._counted: dict[tuple[str, str | None, ModelKey | None, str | None], _Counted] = {}
        self._by_counts: dict[DoorCounts, _Counted] = {}
        self._stop_listening = _do_nothing
        self._has_plus = orjson.dumps(1e16) == b"1e+16"

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, on this running loop."""
        config, batch = self._state.config, batch_of(loop)
        self._loop = loop
        self._door = Door(
            batch.queue,
            batch.schedule,
            hosts=() if "*" in config.allowed_hosts else config.allowed_hosts,
            api_keys=(*config.api_keys, *config.admin_api_keys) if config.api_keys else (),
            max_body_bytes=config.max_body_bytes,
            max_held_bytes=MAX_HELD_BYTES,
            on_records=lambda: loop.call_soon(self._log_turn),
            on_gathering=self._watch_gathering,
        )
        self._stop_listening = self._service.on_lease_stop(self.forget)
        self._state.metrics.num_native_open = lambda: 0 if self._door is None else self._door.num_open
        self._state.metrics.on_render = self._state.inferences.on_read = self._settle

    def close(self) -> None:
        """Nothing takes the native way any more; what is not whole yet goes on in Python."""
        self.forget()
        if self._door is not None:
            self._door.expire(0.0)
        stop_listening, self._stop_listening = self._stop_listening, _do_nothing
        stop_listening()

    def connect(self, protocol: Any, outlet: Outlet) -> DoorConnection | None:
        """Of a connection that may have a request for here (protocol: server/connection); None: nothing is known."""
        door = self._door
        return DoorConnection(door, outlet, protocol) if door is not None and door.num_entries else None

    def forget(self) -> None:
        """Something has changed: every path is to be learned anew."""
        if self._door is not None:
            self._door.drop()
        self._learned.clear()

    # Whom a name leads to is looked up when it is learned: it may be another one than when the request came.

    def learn_infer(self, scope: Scope, find: Callable[[], "Target"]) -> None:
        """A request for POST /v2/models/MODEL/infer was answered in Python: the next ones may be answered here.

        `find`: what the path leads to now. Raises ModelNotFound.
        """
        door, key = self._door, (scope["path"], "")
        if door is None or not self._may_learn(scope, key):
            return
        with suppress(ModelNotFound):
            target = find()
            lease = self._begin_to_learn(key, target.key)
            codec = None if lease is None else self._infer_codec(lease.signature, target)
            if lease is not None and codec is not None:
                counts = self._count(scope["route"].path, model=target.key, statistics_key=target.statistics_key)
                door.add(scope["path"], _entry(lease, codec, counts))

    def learn_predict(self, scope: Scope, model: str) -> None:
        """The same of POST /predict, by the id of the model's card."""
        door, key = self._door, (scope["path"], model)
        if door is None or not self._may_learn(scope, key):
            return
        with suppress(ModelNotFound):
            card, lease = self._state.service.card(model), self._begin_to_learn(key, model)
            codec = None if lease is None else _predict_codec(lease.signature, card)
            if lease is not None and codec is not None:
                door.add_predict(model, _entry(lease, codec, self._count(scope["route"].path, model=model)))

    def learn_texts(self, scope: Scope, model: str) -> None:
        """The same of an encoder of Headway's own: one text goes to its process as it is."""
        door, key = self._door, (scope["path"], model)
        if door is None or not self._may_learn(scope, key):
            return
        with suppress(ModelNotFound):
            card = self._state.service.card(model)
            is_ours = card.framework == "headway" and (card.type == "embedding" or card.info.get("task") == "embed")
            lease = self._begin_to_learn(key, model) if is_ours else None
            prompt = None if lease is None else lease.text_prompt
            if lease is not None and prompt is not None:
                codec = text_codec(prompt=prompt, name=card.id, version=card.version)
                counts = self._count(scope["route"].path, encoder=card.id)
                door.add_predict(model, DoorEntry(counts=counts, model=lease.plain, codec=codec, timeout_s=None))

    def count_lost(self, lost: tuple[DoorCounts, str, float]) -> None:
        """A client left before its answer: as server/middleware counts it."""
        counts, request_id, seconds = lost
        counted, metrics = self._by_counts[counts], self._state.metrics
        metrics.http_disconnects.inc()
        metrics.http_requests.labels(counted.handler, "POST", "499").inc()
        metrics.http_duration.labels(counted.handler).observe(seconds)
        if counted.model is not None:
            metrics.infer.end(counted.model, "abort", seconds)
        if counted.encoder is not None:
            metrics.encoders.end(counted.encoder, "embeddings", "abort", num_tokens=0, seconds=seconds)
        if counted.statistics_key is not None:
            statistics = self._state.inferences.add(counted.statistics_key)
            statistics.num_failures += 1
            statistics.failure_s += seconds
        self._log([(counted.handler, request_id, seconds)], 499)

    # within

    def _is_known(self, key: tuple[str, str]) -> bool:
        known = self._learned.get(key)
        return known is not None and known.is_current

    def _begin_to_learn(self, key: tuple[str, str], model: str) -> StandingLease | None:
        """None: its requests have no native way now. Raises ModelNotFound."""
        lease = self._service.standing_lease(model)
        if lease is not None:
            self._learned[key] = lease
        return lease

    def _may_learn(self, scope: Scope, key: tuple[str, str]) -> bool:
        """Whether it is not known yet, the request's target is its path, as it came, and there will be more."""
        if self._is_known(key):
            return False
        if self._door is not None:
            self._door.keeps_records = _request_log.isEnabledFor(logging.INFO)
        has_more = scope.get("query_string") or scope.get("root_path")
        return not has_more and scope.get("raw_path") == scope["path"].encode() and not self._state.is_draining

    def _infer_codec(self, signature: wire.Signature | None, target: "Target") -> DoorCodec | None:
        """None: of a signature that native code does not read."""
        if signature is None:
            return None
        inputs, outputs = _inputs(signature), [spec.name for spec in signature.outputs]
        try:
            return infer_codec(
                inputs=inputs, outputs=outputs, name=target.name, version=target.version, has_plus=self._has_plus
            )
        except ValueError:
            return None

    def _count(
        self,
        handler: str,
        *,
        model: str | None = None,
        statistics_key: "ModelKey | None" = None,
        encoder: str | None = None,
    ) -> DoorCounts:
        key = handler, model, statistics_key, encoder
        found = self._counted.get(key)
        if found is None:
            metrics = self._state.metrics
            seconds = None if model is None else metrics.infer.latency.labels(model)
            if encoder is not None:
                seconds = metrics.encoders.latency.labels(encoder, "success")
            counts = DoorCounts(handler, metrics.http_duration.labels(handler), seconds)
            found = self._counted[key] = self._by_counts[counts] = _Counted(counts, *key)
        return found.counts

    def _settle(self) -> None:
        """Counts what was answered here where it is told."""
        for counted in self._counted.values():
            num_answered, seconds, last_ms, num_tokens = counted.counts.take()
            if not num_answered:
                continue
            metrics = self._state.metrics
            metrics.http_requests.labels(counted.handler, "POST", "200").inc(num_answered)
            metrics.native_requests.labels(counted.handler).inc(num_answered)
            if counted.model is not None:
                metrics.infer.requests.labels(counted.model, "success").inc(num_answered)
            if counted.encoder is not None:
                metrics.encoders.count_native(counted.encoder, "embeddings", num_answered, num_tokens=num_tokens)
            if counted.statistics_key is not None:
                statistics = self._state.inferences.add(counted.statistics_key)
                statistics.num_successes += num_answered
                statistics.success_s += seconds
                statistics.last_inference_ms = max(statistics.last_inference_ms, last_ms)

    def _log_turn(self) -> None:
        if self._door is not None:
            self._log(self._door.take_records(), 200)

    def _log(self, records: list[tuple[str, str, float]], status: int) -> None:
        lines = [
            {
                "request_id": request_id,
                "method": "POST",
                "handler": handler,
                "status": status,
                "duration_s": round(seconds, 4),
            }
            for handler, request_id, seconds in records
        ]
        log_many(_request_log, logging.INFO, "request", lines)

    def _watch_gathering(self) -> None:
        if self._loop is not None:
            self._loop.call_later(WHOLE_WITHIN_S / 2, self._look_at_gathering)

    def _look_at_gathering(self) -> None:
        if self._door is not None and self._door.expire(WHOLE_WITHIN_S):
            self._watch_gathering()


def _do_nothing() -> None:
    """Where nobody is told of anything."""


def _entry(lease: StandingLease, codec: DoorCodec, counts: DoorCounts) -> DoorEntry:
    return DoorEntry(counts=counts, model=lease.plain, codec=codec, timeout_s=lease.timeout_s)


def _predict_codec(signature: wire.Signature | None, card: ModelCard) -> DoorCodec | None:
    """None: of a signature that native code does not read."""
    if signature is None:
        return None
    try:
        return predict_codec(
            inputs=_inputs(signature),
            takes_values=signature.takes_values,
            takes_images=card.type == "image-classification",
            name=card.id,
            version=card.version,
        )
    except ValueError:
        return None


def _inputs(signature: wire.Signature) -> list[tuple[str, str, Sequence[int], bool]]:
    return [(spec.name, spec.datatype, spec.shape, spec.is_optional) for spec in signature.inputs]
