"""What the service asks of a client of another server, beside worker/resident.ResidentClient.

Texts go as text: the other server has the template and the tokenizer. So the service hands over the request as the
door made it, with the lease's end, and prepares nothing.
"""

import asyncio
import functools
import importlib
from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

from headway.config import ModelConfig
from headway.core.embedding import Embedded, EmbedRequest
from headway.core.request import GenerateRequest
from headway.errors import InvalidConfig
from headway.service.frameworks import Framework
from headway.service.protocol import GenerateStream
from headway.worker.resident import ClientSettings, ResidentClient

OnSettled = Callable[[bool], None]
"""Called once, when the other server owes nothing more; whether it did what was asked."""


@runtime_checkable
class RemoteTextClient(Protocol):
    """A language model, or an encoder, on another server."""

    async def generate(
        self, request: GenerateRequest, on_settled: OnSettled, *, deadline: float | None = None
    ) -> GenerateStream:
        """Returns once the other server has taken it. Raises HeadwayError: then nothing runs, and it is settled.

        At `deadline` of the clock the stream ends with what it has.
        """
        ...

    async def embed(self, request: EmbedRequest, on_settled: OnSettled) -> Embedded:
        """A vector of each input. Raises HeadwayError."""
        ...


def as_text_client(client: ResidentClient) -> RemoteTextClient | None:
    """The client, if texts go to it as texts; None: its model is one of ours."""
    return cast(RemoteTextClient, client) if _takes_texts(type(client)) else None


@functools.cache
def _takes_texts(kind: type) -> bool:
    """Once a class: looking through a protocol's methods takes a tenth of a short request's time."""
    return issubclass(kind, RemoteTextClient)


async def make_remote(framework: Framework, model: ModelConfig, name: str, settings: ClientSettings) -> ResidentClient:
    """The client that `framework` names: its class is called with name, model and settings. Raises InvalidConfig."""
    module_name, _, class_name = framework.predictor.partition(":")
    try:
        # In a thread: the first one takes a while, and others are being answered.
        make = getattr(await asyncio.to_thread(importlib.import_module, module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(
            f"framework is {model.framework!r}, whose client {framework.predictor} can not be imported: {error}",
            param="framework",
        ) from error
    return cast(ResidentClient, make(name, model, settings))
