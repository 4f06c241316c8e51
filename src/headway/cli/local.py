"""Answers of a model that is loaded for this command: the same service as behind `serve`, without the HTTP."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli import startup
from headway.cli.answers import Ask, Piece
from headway.cli.banner import unmatched_lines
from headway.cli.resolve import resolve_settings
from headway.cli.terminal import fetch_bar, note
from headway.core.request import ChatPrompt, GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams, sampling_defaults

if TYPE_CHECKING:
    from headway.cli.settings import Configs
    from headway.service.local import LocalService
    from headway.service.protocol import Service

DEFAULT_TEMPERATURE = 0.7
"""Where the model says none: at the API's 1.0 a small model rambles."""
_POLL_S = 0.05


def make_service(flags: Mapping[str, Any], config: Path | None) -> "Service":
    """The service of one model, not started. Blocks: downloads the model if need be.

    Raises HeadwayError: a wrong setting, or a model that can not be found or read.
    """
    from headway.observe.logs import set_up_logs

    # Nothing listens here, whatever the settings say of a host: no key is asked for.
    configs = resolve_settings(flags, config).model_copy(update={"host": "127.0.0.1"}).to_configs()
    set_up_logs(configs.log_format, "critical")  # the terminal belongs to the answers; faults are told once, as lines
    service, _ = open_service(configs)
    return service


def open_service(configs: "Configs") -> tuple["LocalService", bool]:
    """The service of the configured model, not started, and whether it can chat. Blocks: downloads if need be.

    Reads what is quickly read of the model's files and its text settings: what is wrong with them is told before a
    process loads or a port is open.

    Raises InvalidConfig, ModelError.
    """
    from headway.checkpoint.checkpoint import open_checkpoint
    from headway.checkpoint.sources import resolve_source
    from headway.service.loader import ProcessLoader, read_generation_defaults
    from headway.service.local import LocalService
    from headway.text.chat_template import make_chat_template

    model = configs.model
    with fetch_bar() as bar:
        checkpoint = open_checkpoint(resolve_source(model.source, configs.checkpoint, bar))
    read_generation_defaults(checkpoint.text, model.text.generation_config)
    has_chat = make_chat_template(checkpoint.text, model.text.chat_template) is not None
    # A revision is the named model's alone; that one is found already.
    loader = ProcessLoader(replace(configs.checkpoint, revision=None), {model.source: checkpoint})
    return LocalService([model], configs.pool, configs.server, configs.checkpoint, loader=loader), has_chat


class LocalAnswerer:
    """A started service with one model; made by start()."""

    def __init__(self, service: "Service", model: str) -> None:
        self._service = service
        self._model = model
        self._numbers = itertools.count(1)

    @classmethod
    async def start(cls, service: "Service") -> "LocalAnswerer":
        """Starts a service and waits until its first model answers. Raises HeadwayError if it can not be loaded."""
        await service.start()
        try:
            while not service.is_ready()[0]:
                card = service.models()[0]
                if card.state == "failed" and card.error is not None:
                    raise type(card.error)(f"{card.id} could not be loaded: {card.error.message}")
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await service.aclose()
            raise
        startup.end()
        card = service.models()[0]
        for line in unmatched_lines(card.info):
            note(line, style="yellow")
        return cls(service, card.id)

    @property
    def title(self) -> str:
        """The model's name."""
        return self._model

    async def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Streams the answer; closing aborts it."""
        defaults = await self._service.generation_defaults(self._model)
        given = {"temperature": DEFAULT_TEMPERATURE, **sampling_defaults(defaults), **ask.options}
        sampling = SamplingParams(**{**given, "stop": tuple(given.get("stop", ()))})
        prompt = ChatPrompt(ask.messages) if ask.prompt is None else TextPrompt(ask.prompt)
        request = GenerateRequest(f"cli-{next(self._numbers)}", self._model, prompt, sampling)
        async with await self._service.generate(request) as stream:
            async for delta in stream:
                if delta.reasoning:
                    yield Piece(delta.reasoning, is_reasoning=True)
                if delta.text:
                    yield Piece(delta.text)

    async def aclose(self) -> None:
        """Ends the model's process."""
        await self._service.aclose()
