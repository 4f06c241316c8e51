"""Standing leases: what requests on the native way (server/native_door) hold while they use a model.

One lease stands for all of them: it begins with a request that finds none, and ends once a look, some 20 times a second
while there are any, finds that no more came. What the pool is told of uses is what a lease each would have told.
Nobody else waits longer for it: as soon as the pool would grant no more, whoever offers the native way is told to stop,
and the lease ends with the last request that is open.
"""

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import headway_wire as wire
from headway._native import PlainModel
from headway.observe.clock import Clock, Timer
from headway.service.events import Used
from headway.service.lease import Lease
from headway.service.residents import Residents
from headway.service.served_model import ServedModel
from headway.worker.infer_client import InferClient
from headway.worker.resident import ResidentClient

LOOK_S = 0.05


@runtime_checkable
class PlainClient(ResidentClient, Protocol):
    """One whose model native code may ask."""

    @property
    def plain(self) -> PlainModel | None:
        """What native code knows the model by; None: it does not, or not yet."""
        ...

    def dispatch(self) -> None:
        """There may be places for requests that wait."""
        ...

    def watch_plain(self, now_s: float) -> None:
        """Has to be called several times a second while native code asks; `now_s`: of the system's monotonic clock."""
        ...


class StandingLease:
    """Of one model, as it is loaded now."""

    def __init__(self, leases: "StandingLeases", model: ServedModel, client: PlainClient, plain: PlainModel) -> None:
        self.model = model
        self.plain = plain
        """What native code knows the model by."""
        self._leases = leases
        self._client = client
        self._lease: Lease | None = None
        self._generation = 0
        self._num_seen = 0
        """Uses at the last look."""

    @property
    def signature(self) -> wire.Signature | None:
        """What it takes and gives; None: it takes texts."""
        return self._client.signature if isinstance(self._client, InferClient) else None

    @property
    def text_prompt(self) -> str | None:
        """Of an encoder: what it wants before a text; None: it is none, or its text is not open."""
        opened = self.model.opened
        encoder = None if opened is None or opened.text is None else opened.text.encoder
        return None if encoder is None else encoder.prompt("text")

    @property
    def timeout_s(self) -> float | None:
        """Of a request that names none."""
        return self.model.config.infer.timeout_s

    @property
    def is_current(self) -> bool:
        """Whether the model is still the one that is loaded."""
        return self.model.client is self._client

    def try_begin(self) -> bool:
        """A request comes, and there is no lease. False: none is to be had now."""
        if not self.is_current:
            return False
        lease = self._leases.residents.try_lease(self.model)
        if lease is None:
            return False
        self._lease, self._num_seen = lease, -1
        self._generation = self._leases.residents.residency(self.model).generation
        self._leases.hold(self)
        return True

    def look(self) -> None:
        """While it is held."""
        self._client.watch_plain(time.monotonic())
        num_uses = self.plain.num_uses
        if not self.plain.num_in_flight and (num_uses == self._num_seen or not self.is_free):
            self.end()
        self._num_seen = num_uses

    @property
    def is_free(self) -> bool:
        """Whether the pool would grant more leases."""
        return self.is_current and self._leases.residents.pool.is_free(self.model.id)

    def end(self) -> None:
        """Nothing is open on the native way."""
        lease, self._lease = self._lease, None
        num_uses, num_answered = self.plain.end_lease()
        self._leases.let_go(self)
        if lease is not None:
            if num_uses > 1:
                self._leases.residents.pool.post(Used(self.model.id, self._generation, num_uses - 1))
            lease.release(num_answered > 0)


@runtime_checkable
class LeasingService(Protocol):
    """A service some of whose models may be asked on the native way."""

    def standing_lease(self, name: str) -> StandingLease | None:
        """What requests for this name hold there; None: they have none now. Raises ModelNotFound."""
        ...

    def on_lease_stop(self, tell: Callable[[], None]) -> Callable[[], None]:
        """`tell` is called where something has changed: nothing may go natively before it is asked for again. Returns
        what ends that; to be called once."""
        ...


class StandingLeases:
    """Those of a service. All on the event loop's thread."""

    def __init__(self, residents: Residents, clock: Clock) -> None:
        self.residents = residents
        self._listeners: list[Callable[[], None]] = []
        self._clock = clock
        self._held: list[StandingLease] = []
        self._known: dict[str, StandingLease] = {}
        self._timer: Timer | None = None

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """See LeasingService.on_lease_stop."""
        self._listeners.append(tell)
        return lambda: self._listeners.remove(tell)

    def of(self, model: ServedModel) -> StandingLease | None:
        """From now on its requests may take the native way. None: it is not loaded, is to be no more, or is computed in
        another way."""
        client = model.client
        if not isinstance(client, PlainClient) or client.ended.done() or not self.residents.pool.is_free(model.id):
            return None
        plain = client.plain
        if plain is None:
            return None
        known = self._known.get(model.id)
        if known is None or known.model is not model or not known.is_current:
            known = self._known[model.id] = StandingLease(self, model, client, plain)
            plain.open(known.try_begin, client.dispatch)
        return known

    def hold(self, lease: StandingLease) -> None:
        """It has begun."""
        self._held.append(lease)
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.now() + LOOK_S, self._look)

    def let_go(self, lease: StandingLease) -> None:
        """It has ended."""
        if lease in self._held:
            self._held.remove(lease)

    def follow_pool(self) -> None:
        """The pool has decided something."""
        if any(not lease.is_free for lease in self._held):
            self.stop()

    def stop(self) -> None:
        """Something has changed: what comes next takes the Python way, and finds how it is."""
        for tell in self._listeners:
            tell()
        self._known = {name: lease for name, lease in self._known.items() if lease.is_current}
        for lease in list(self._held):
            if not lease.is_free:
                lease.look()

    def _look(self) -> None:
        self._timer = None
        for lease in list(self._held):
            lease.look()
        if self._held and self._timer is None:
            self._timer = self._clock.call_at(self._clock.now() + LOOK_S, self._look)
