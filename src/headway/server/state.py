"""What the routes of one app share: the service, the config, the metrics, kept responses, and whether it will end."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from headway.config import ServerConfig
from headway.errors import ModelNotReady
from headway.observe.clock import Clock, SystemClock
from headway.observe.metrics import Metrics
from headway.server.oip.statistics import InferenceStatistics
from headway.server.openai.responses.store import ResponseStore
from headway.service.protocol import Service
from headway.worker.given_answer import GIVEN_ANSWER

if TYPE_CHECKING:
    from headway.server.media import MediaFetcher
    from headway.server.native_door import NativeDoor
    from headway.service.catalog import Catalog


@dataclass(slots=True)
class ServerState:
    """One a server; is_draining and what the store keeps are all that changes."""

    service: Service
    config: ServerConfig
    metrics: Metrics
    catalog: "Catalog | None" = None
    """What is served by entries that may change; None: what is served stays."""
    clock: Clock = field(default_factory=SystemClock)
    is_draining: bool = False
    """Readiness is off, and new requests are refused."""
    responses: ResponseStore = field(init=False)
    inferences: InferenceStatistics = field(init=False)
    native_door: "NativeDoor | None" = None
    """The native way of inference requests, where there is one."""
    _media: "MediaFetcher | None" = None

    def __post_init__(self) -> None:
        self.inferences = InferenceStatistics(self.clock)
        self.responses = ResponseStore(self.config.response_store_bytes, self.config.max_stored_responses)

    @property
    def media(self) -> "MediaFetcher":
        """Made when it is first wanted: what it imports would delay the start."""
        from headway.server.media import MediaFetcher

        if self._media is None:
            domains = self.config.allowed_media_domains
            self._media = MediaFetcher(allowed_domains=domains, max_bytes=self.config.max_body_bytes)
        return self._media

    def arrival_s(self) -> float:
        """When the request came that the caller works for: now, but for what began on the native way."""
        given = GIVEN_ANSWER.get()
        return self.clock.now() if given is None else given.arrived_s

    def readiness(self) -> tuple[bool, str]:
        """Whether a request would be taken now, and why not."""
        return (False, "the server is shutting down") if self.is_draining else self.service.is_ready()

    def default_model(self) -> str:
        """For routes where the model may be left out: the first one. Raises ModelNotReady if there is none."""
        models = self.service.models()
        if not models:
            raise ModelNotReady("no model is served yet")
        return models[0].id


def state_of(request: Request) -> ServerState:
    """The state of the app that this request came to."""
    return cast(ServerState, request.app.state.headway)
