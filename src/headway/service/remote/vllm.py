"""VllmClient: a model on vLLM's own server, which is elsewhere (options.mode url) or started here for it (launch).

A launched one listens on a free port of 127.0.0.1 with a key of its own, runs in the environment that the model's
interpreter names, is one resident (its processes' memory is charged), and is started again when it ends.
"""

import asyncio
import functools
import os
import secrets
import sys
from collections.abc import Mapping

import httpx2

import headway_wire as wire
from headway.config import ModelConfig
from headway.core.embedding import Embedded, EmbedRequest
from headway.core.request import GenerateRequest
from headway.errors import HeadwayError, ModelError, ShuttingDown, WorkerDied
from headway.service.frameworks import vllm_mode
from headway.service.remote.base import OnSettled
from headway.service.remote.openai import OpenAIClient
from headway.service.remote.options import VllmOptions, read_api_key, read_options, server_url
from headway.service.remote.stream import RemoteStream
from headway.worker.environments import find_interpreter
from headway.worker.launched import LaunchedServer, free_port, start_server
from headway.worker.resident import ClientSettings

_POLL_S = 0.1
_GRACE_S = 10.0
"""vLLM ends its engine's processes itself when it is asked to end."""


class VllmClient:
    """One model of one vLLM (worker/resident.ResidentClient). Make it on the running loop."""

    def __init__(self, name: str, model: ModelConfig, settings: ClientSettings) -> None:
        """Raises InvalidConfig for options that can not be used."""
        self.name = name
        self.ended: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()
        self._model = model
        self._settings = settings
        self._options = read_options(model, name, VllmOptions)
        self._server: LaunchedServer | None = None
        self._client: OpenAIClient | None = None
        if vllm_mode(model) == "url":
            url = server_url(self._options.url, model.source, name)
            self._client = self._make_client(url, read_api_key(self._options.api_key_env, name))

    async def load(self, message: wire.Load) -> wire.Ready:
        """Starts it, if it is to be launched, and looks whether it answers and has the model."""
        if self._client is None:
            self._client = await self._launch(message.source)
        return await self._client.load(message)

    async def generate(
        self, request: GenerateRequest, on_settled: OnSettled, *, deadline: float | None = None
    ) -> RemoteStream:
        """See base.RemoteTextClient."""
        return await self._loaded(on_settled).generate(request, on_settled, deadline=deadline)

    async def embed(self, request: EmbedRequest, on_settled: OnSettled) -> Embedded:
        """See base.RemoteTextClient."""
        return await self._loaded(on_settled).embed(request, on_settled)

    def stats(self) -> dict[str, float]:
        """As the client of any other server."""
        return {} if self._client is None else self._client.stats()

    def shut_down_requests(self) -> None:
        """Ends every open request with ShuttingDown."""
        if self._client is not None:
            self._client.shut_down_requests()

    async def close(self, grace_s: float = 2.0) -> None:
        """Closes the connections, and ends what was launched."""
        if self._client is not None:
            await self._client.close(grace_s)
        if not self.ended.done():
            self.ended.set_result(ShuttingDown(f"the server of model {self.name} was ended"))
        if self._server is not None:
            await self._server.close(max(grace_s, _GRACE_S))

    @property
    def pids(self) -> tuple[int, ...]:
        """The guard of what was launched; its children are the server's."""
        return () if self._server is None else (self._server.pid,)

    # within

    def _make_client(self, url: httpx2.URL, api_key: str | None) -> OpenAIClient:
        return OpenAIClient(self.name, self._model, self._settings, options=self._options, url=url, api_key=api_key)

    def _loaded(self, on_settled: OnSettled) -> OpenAIClient:
        """Raises WorkerDied where the server has just ended."""
        if self._client is None or self.ended.done():
            on_settled(False)
            raise WorkerDied(f"the server of model {self.name} ended; it is started again")
        return self._client

    async def _launch(self, source: str) -> OpenAIClient:
        self._settings.on_loading(wire.Loading(phase="build"))
        port, key = free_port(), secrets.token_hex(16)
        command = launch_command(self._model, self._options, source, self.name, port)
        environment = launch_environment(self._options, key)
        self._server = await start_server(self.name, command, environment)
        self._server.ended.add_done_callback(functools.partial(self._on_end, self._server))
        await self._wait_until_ready(self._server, port)
        return self._make_client(httpx2.URL(f"http://127.0.0.1:{port}/v1"), key)

    async def _wait_until_ready(self, server: LaunchedServer, port: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.start_timeout_s
        async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client:
            while not await _is_healthy(client, port):
                if server.ended.done():
                    raise ModelError(
                        f"vLLM {server.ended.result()} before it was ready. Its last words: {server.last_words[-1500:]}"
                    )
                if loop.time() >= deadline:
                    raise ModelError(
                        f"vLLM was not ready after {self._options.start_timeout_s:g} s (options.start_timeout_s)"
                    )
                await asyncio.wait({server.ended}, timeout=_POLL_S)

    def _on_end(self, server: LaunchedServer, ended: "asyncio.Future[str]") -> None:
        """It ended by itself, or was closed: then everybody has heard it."""
        if self.ended.done() or ended.cancelled():
            return
        error = WorkerDied(f"the server of model {self.name} {ended.result()}; it is started again")
        self._settings.on_lost()
        self.ended.set_result(error)
        if self._client is not None:
            self._client.fail_requests(error)


async def _is_healthy(client: httpx2.AsyncClient, port: int) -> bool:
    try:
        response = await client.get(f"http://127.0.0.1:{port}/health")
    except httpx2.HTTPError:
        return False
    return response.status_code == httpx2.codes.OK


def launch_command(model: ModelConfig, options: VllmOptions, source: str, name: str, port: int) -> list[str]:
    """vLLM's server in the model's interpreter. Raises InvalidConfig for an interpreter that there is not."""
    python = sys.executable if model.interpreter is None else find_interpreter(model.interpreter)
    return [
        # What `vllm serve` runs; its own command asks for the metadata of a package that vLLM's CPU build has not.
        python, "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", source,
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", options.model or name,
        *options.arguments,
    ]  # fmt: skip


def launch_environment(options: VllmOptions, key: str) -> Mapping[str, str]:
    """What it needs beside ours: its key, no word to anybody else, its KV cache, and threads where ours may run."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "VLLM_API_KEY": key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(options.threads or num_cores),
        **options.environment,
    }
