"""TritonClient: a model on a server of the Open Inference Protocol, Triton foremost (worker/resident.TensorClient).

Loading it: put it into the server's repository (where options.repository says so), tell the server to load it, wait
until it is ready, read what it takes. Closing it: tell the server to unload it, wait until that is done, take it away.
What it was not told to load it does not unload.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import httpx2
import msgspec

import headway_wire as wire
from headway.config import ModelConfig
from headway.core.infer import Inferred, InferRequest
from headway.errors import DeadlineExceeded, HeadwayError, InvalidRequest, ShuttingDown, UpstreamFailed
from headway.service.remote.options import TritonOptions, read_api_key, read_options, server_url
from headway.service.remote.places import Places
from headway.service.remote.triton_config import read_config
from headway.service.remote.triton_repository import put_model, remove_model
from headway.service.remote.upstream import Upstream
from headway.service.remote.v2_tensors import pack_request, unpack_answer
from headway.worker.infer_check import check_infer
from headway.worker.resident import ClientSettings, ModelGone

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_UNLOAD_S = 30.0


class _Metadata(msgspec.Struct):
    """GET /v2/models/NAME."""

    platform: str = ""
    inputs: list[wire.TensorSpec] = []
    outputs: list[wire.TensorSpec] = []


class _Indexed(msgspec.Struct):
    """One entry of the repository's index."""

    name: str
    state: str = ""


class TritonClient:
    """One model of one server. Make it on the running loop."""

    def __init__(
        self,
        name: str,
        model: ModelConfig,
        settings: ClientSettings,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises InvalidConfig for options that can not be used."""
        self.name = name
        self.ended: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()
        """Done once it was closed."""
        self._settings = settings
        self._source = model.source
        self._task = model.type
        self._options = read_options(model, name, TritonOptions)
        self._config = read_config(self._options.config, name)
        self._model = self._options.model or name
        version = self._options.version
        self._path = f"v2/models/{quote(self._model, safe='')}" + (
            f"/versions/{quote(version, safe='')}" * bool(version)
        )
        self._upstream = Upstream(
            name,
            server_url(self._options.url, model.source, name),
            self._options,
            api_key=read_api_key(self._options.api_key_env, name),
            max_retries=model.infer.max_retries,
            clock=settings.clock,
            transport=transport,
        )
        self._places = Places(name, model.infer.concurrency, settings.max_queued)
        self._signature = wire.Signature(task=model.type, platform="")
        self._folder: Path | None = None
        self._is_loaded = False
        self._num_open = 0
        self._calls: set[asyncio.Task[Inferred]] = set()

    async def load(self, message: wire.Load) -> wire.Ready:
        """Makes the server ready for it. Raises UpstreamError, InvalidConfig."""
        self._tell("fetch")
        if self._options.repository is not None:
            self._folder = await asyncio.to_thread(self._put, self._options.repository)
        self._tell("build")
        if self._folder is not None or (self._options.loads and not await self._is_ready()):
            self._is_loaded = True  # even if it fails half way: then it is unloaded all the same
            await self._command("load")
        await self._wait_until_ready()
        self._signature = await self._read_signature()
        return wire.Ready(info=msgspec.to_builtins(self._signature))

    async def infer(
        self, request: InferRequest, on_settled: Callable[[bool], None], *, deadline: float | None = None
    ) -> Inferred:
        """See TensorClient. A caller who leaves closes the connection; the server may compute on, unseen."""
        self._num_open += 1
        has_served = False
        try:
            if self.ended.done():
                raise ModelGone
            check_infer(self._signature, _checked_form(request))
            inferred = await self._call(request, deadline)
            has_served = True
            return inferred
        finally:
            self._num_open -= 1
            on_settled(has_served)

    def stats(self) -> dict[str, float]:
        """Its open requests, and the connection's health."""
        return {"client_open_requests": float(self._num_open), **self._upstream.stats()}

    def shut_down_requests(self) -> None:
        """Ends every open request with ShuttingDown."""
        for call in self._calls:
            call.cancel()

    async def close(self, grace_s: float = 2.0) -> None:
        """Unloads what it loaded, and closes every connection."""
        self.shut_down_requests()
        if self._is_loaded:
            try:
                async with asyncio.timeout(_UNLOAD_S):
                    await self._unload()
            except (HeadwayError, TimeoutError) as error:
                # The server may be gone; what it still holds, an operator has to unload.
                logger.warning("%s: %s was not unloaded: %s", self.name, self._model, error)
        if self._folder is not None:
            await asyncio.to_thread(remove_model, self._folder)
        await self._upstream.aclose()
        if not self.ended.done():
            self.ended.set_result(ShuttingDown(f"the connection of model {self.name} was closed"))

    @property
    def pids(self) -> tuple[int, ...]:
        """None: it runs elsewhere."""
        return ()

    # within

    def _tell(self, phase: str) -> None:
        self._settings.on_loading(wire.Loading(phase=phase))

    async def _call(self, request: InferRequest, deadline: float | None) -> Inferred:
        """In a task of its own, which shut_down_requests() may end."""
        call = asyncio.create_task(self._ask(request, deadline))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if not call.cancelled():  # it is the caller who leaves
                call.cancel()
                raise
            raise ShuttingDown("the server shut down before the answer was there: try another one, or later") from None

    async def _ask(self, request: InferRequest, deadline: float | None) -> Inferred:
        """The request's own time-out is no fault of the server's: its breaker hears nothing of it."""
        left_s = None if deadline is None else max(0.0, deadline - self._settings.clock.now())
        headers, body = pack_request(request)
        try:
            async with asyncio.timeout(left_s):
                leave = await self._places.enter()
                try:
                    told, answer = await self._upstream.call(
                        "POST",
                        f"{self._path}/infer",
                        body=body,
                        headers=headers,
                        timeout_s=self._options.infer_timeout_s,
                        timeout_name="infer_timeout_s",
                    )
                finally:
                    leave()
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self._upstream.title} did not answer before the request's time-out was over: give it more"
            ) from None
        tensors = unpack_answer(self._upstream.title, told, answer)
        return Inferred(model=self.name, version=self._options.version, tensors=tensors)

    async def _command(self, act: str) -> None:
        """load or unload, by the repository's API."""
        await self._upstream.call(
            "POST",
            f"v2/repository/models/{quote(self._model, safe='')}/{act}",
            body=b"{}",
            headers={"content-type": "application/json"},
            timeout_s=self._options.load_timeout_s,
            timeout_name="load_timeout_s",
        )

    def _put(self, repository: str) -> Path:
        """Blocks."""
        source = Path(self._source).expanduser()
        return put_model(Path(repository).expanduser(), self._model, self._options.version, source, self._config)

    async def _is_ready(self) -> bool:
        """Whether it answers; servers say no by 400 or 404. Raises what else is wrong."""
        try:
            await self._get(f"{self._path}/ready")
        except InvalidRequest:
            return False
        except UpstreamFailed as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    async def _wait_until_ready(self) -> None:
        """Servers may answer the load before it is done."""
        deadline = asyncio.get_running_loop().time() + self._options.load_timeout_s
        while not await self._is_ready():
            is_late = asyncio.get_running_loop().time() >= deadline
            if is_late or not self._is_loaded:
                raise UpstreamFailed(f"{self._upstream.title} has no model {self._model!r} that is ready")
            await asyncio.sleep(_POLL_S)

    async def _read_signature(self) -> wire.Signature:
        answer = await self._get(self._path)
        try:
            metadata = msgspec.json.decode(answer, type=_Metadata)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamFailed(f"{self._upstream.title} told no metadata of {self._model!r}: {error}") from error
        return wire.Signature(
            task=self._task,
            platform=metadata.platform,
            inputs=metadata.inputs,
            outputs=metadata.outputs,
            takes_values=False,
            facts={"upstream": self._upstream.title, "upstream_model": self._model},
        )

    async def _unload(self) -> None:
        await self._command("unload")
        while await self._is_there():  # noqa: ASYNC110  it tells nobody when it is gone
            await asyncio.sleep(_POLL_S)

    async def _is_there(self) -> bool:
        """Whether the server still holds it, or is about to let go of it."""
        _, answer = await self._upstream.call(
            "POST", "v2/repository/index", body=b"{}", timeout_s=_UNLOAD_S, timeout_name="load_timeout_s"
        )
        try:
            entries = msgspec.json.decode(answer, type=list[_Indexed])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return any(entry.name == self._model and entry.state in ("READY", "UNLOADING") for entry in entries)

    async def _get(self, path: str) -> bytes:
        limit_s = self._options.load_timeout_s
        _, answer = await self._upstream.call("GET", path, timeout_s=limit_s, timeout_name="load_timeout_s")
        return answer


def _checked_form(request: InferRequest) -> wire.Infer:
    return wire.Infer(
        request_id=request.request_id,
        tensors=list(request.tensors),
        value=request.value,
        outputs=list(request.outputs),
    )
