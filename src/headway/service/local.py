"""LocalService: models in processes of this machine, behind service/protocol.Service."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.embedding import Embedded, EmbedRequest, Scored, ScoreRequest
from headway.core.infer import Inferred, InferRequest
from headway.core.request import GenerateRequest, Prompt
from headway.errors import InvalidConfig, ModelNotFound, ModelNotReady, UnsupportedFeature
from headway.observe.clock import Clock, SystemClock
from headway.service.encoding import embed, score
from headway.service.events import Drain, Keep
from headway.service.frameworks import run_of
from headway.service.loader import Loader, ProcessLoader
from headway.service.protocol import GenerateStream, ModelCard, ModelState
from headway.service.remote.base import RemoteTextClient
from headway.service.residents import Residents, ServedModel
from headway.worker.client import WorkerClient
from headway.worker.prompt import prepare_request, tokenize_prompt
from headway.worker.trace import make_trace

_STATES: Mapping[str, ModelState] = {"cold": "cold", "loading": "loading", "ready": "ready", "failed": "failed"}


class LocalService:
    """The models of a configuration. Make it, start() it on a running loop, aclose() it on the same one."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        pool: PoolConfig,
        server: ServerConfig,
        checkpoint: CheckpointConfig,
        *,
        loader: Loader | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises InvalidConfig for no model, and for a name that two have."""
        self._clock = clock or SystemClock()
        self._names: dict[str, ServedModel] = {}
        served = []
        for config in models:
            names = config.served_names or (default_name(config.source),)
            served.append(ServedModel(names[0], config))
            self._add_names(names, served[-1])
        if not served:
            raise InvalidConfig("there is no model to serve: name one")
        self._residents = Residents(
            served,
            loader=loader or ProcessLoader(checkpoint),
            pool=pool,
            server=server,
            clock=self._clock,
        )

    def models(self) -> list[ModelCard]:
        """A card for each name, aliases too."""
        return [self._make_card(name, model) for name, model in self._names.items()]

    def is_ready(self) -> tuple[bool, str]:
        """Ready if a model is, and nothing is being shut down."""
        state = self._residents.pool.state
        if state.is_draining:
            return False, "shutting down"
        if any(residency.status == "ready" for residency in state.models.values()):
            return True, ""
        return False, "; ".join(self._describe(model) for model in self._residents.models.values())

    async def generate(self, request: GenerateRequest) -> GenerateStream:
        """A lease, then ids, then the worker's word. Raises HeadwayError: then nothing runs and nothing is leased."""
        model, timeout_s = self._find(request.model), request.sampling.timeout_s
        deadline = None if timeout_s is None else self._clock.now() + timeout_s
        while True:
            lease = await self._residents.lease(model, deadline)
            if isinstance(lease.client, RemoteTextClient):
                return await lease.client.generate(request, lease.release, deadline=deadline)
            try:
                worker = lease.worker
                worker.check_room(request.sampling.n)  # before the work of tokenising
                prepared = await prepare_request(await self._residents.text(model), request)
            except BaseException:
                lease.release(False)
                raise
            if not worker.ended.done():
                return await worker.submit(prepared, lease.release, deadline=deadline)
            # It died while the prompt was tokenised: nothing was asked of it, so the next one may be asked.
            lease.release(False)

    async def embed(self, request: EmbedRequest) -> Embedded:
        """See the protocol."""
        return await embed(self._residents, self._find(request.model), request)

    async def score(self, request: ScoreRequest) -> Scored:
        """See the protocol."""
        return await score(self._residents, self._find(request.model), request)

    async def infer(self, request: InferRequest) -> Inferred:
        """See the protocol."""
        raise UnsupportedFeature(f"{self._find(request.model).id} takes no tensors", param="model")

    async def signature(self, model: str) -> Mapping[str, Any]:
        """See the protocol."""
        raise UnsupportedFeature(f"{self._find(model).id} takes no tensors", param="model")

    async def load(self, model: str) -> ModelCard:
        """See the protocol."""
        served = self._find(model)
        (await self._residents.lease(served)).release(False)
        return self._make_card(model, served)

    async def unload(self, model: str) -> ModelCard:
        """See the protocol."""
        raise UnsupportedFeature(f"{self._find(model).id} can not be unloaded", param="model")

    async def tokenize(self, model: str, prompt: Prompt) -> list[int]:
        """The ids that generate() would send."""
        text = await self._residents.text(self._find(model))
        return (await tokenize_prompt(text, prompt)).token_ids

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        text = await self._residents.text(self._find(model))
        text.tokenizer.check_ids(token_ids, "tokens")
        return text.tokenizer.decode(token_ids)

    async def token_texts(self, model: str, token_ids: Sequence[int]) -> list[str]:
        """Each id decoded on its own."""
        text = await self._residents.text(self._find(model))
        text.tokenizer.check_ids(token_ids, "tokens")
        return [text.tokenizer.token_text(token_id) for token_id in token_ids]

    async def generation_defaults(self, model: str) -> Mapping[str, Any]:
        """The model's own sampling defaults; of one on another server none: it has its own."""
        if run_of(self._find(model).config).kind == "remote":
            return {}
        text = await self._residents.text(self._find(model))
        return text.generation_defaults

    def stats(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """See the protocol."""
        state = self._residents.pool.state
        models = {model.id: self._residents.stats(model) for model in self._residents.models.values()}
        pool = {
            "waiting_requests": float(len(state.waiting)),
            "leases": float(self._residents.pool.num_leases),
            "worker_starts_total": float(state.num_starts),
            "worker_restarts_total": float(state.num_restarts),
            "worker_failures_total": float(state.num_failures),
        }
        return {"models": models, "pool": {"pool": pool}}

    async def profile(self, model: str | None, num_steps: int, timeout_s: float) -> Mapping[str, Any]:
        """See the protocol."""
        served = next(iter(self._residents.models.values())) if model is None else self._find(model)
        if served.client is None:
            raise ModelNotReady(f"model {served.id} does not run: ask it something first")
        if not isinstance(served.client, WorkerClient):
            raise UnsupportedFeature(f"model {served.id} has no steps to record: it does not run on Headway's engine")
        return make_trace(served.id, await served.client.profile(num_steps, timeout_s))

    def worker_pids(self) -> Mapping[str, int]:
        """Process ids of the workers that are ready, by model id; of several instances the first."""
        clients = {model.id: model.client for model in self._residents.models.values()}
        return {name: client.pids[0] for name, client in clients.items() if client is not None and client.pids}

    async def start(self) -> None:
        """Starts the first model; it is kept resident from now on. Again: nothing."""
        self._residents.pool.post(Keep(next(iter(self._residents.models))))

    async def drain(self, timeout_s: float) -> None:
        """Takes nothing new; waits for what runs, then ends it with ShuttingDown."""
        self._residents.pool.post(Drain())
        await self._residents.wait_unused(self._clock.now() + timeout_s)
        for model in self._residents.models.values():
            if model.client is not None:
                model.client.shut_down_requests()

    async def aclose(self) -> None:
        """Ends every worker process; returns when they are gone."""
        self._residents.pool.post(Drain())
        await self._residents.close()

    def _add_names(self, names: Sequence[str], model: ServedModel) -> None:
        for name in names:
            if name in self._names:
                raise InvalidConfig(f"two models are named {name!r}: give one another name", param="served_model_name")
            self._names[name] = model

    def _find(self, name: str) -> ServedModel:
        model = self._names.get(name)
        if model is None:
            known = ", ".join(list(self._names)[:20])
            raise ModelNotFound(f"there is no model {name[:200]!r} here; there is: {known}", param="model")
        return model

    def _make_card(self, name: str, model: ServedModel) -> ModelCard:
        residency = self._residents.residency(model)
        opened = model.opened
        max_model_len = model.info.get("max_model_len")
        return ModelCard(
            id=name,
            created=opened.created if opened else model.created,
            state=_STATES.get(residency.status, "cold"),
            max_model_len=max_model_len if isinstance(max_model_len, int) else None,
            root=model.config.source,
            error=residency.error,
            phases=self._residents.phases(model),
            info=model.info,
        )

    def _describe(self, model: ServedModel) -> str:
        residency = self._residents.residency(model)
        if residency.status == "loading" and model.phases:
            percent = "" if model.fraction is None else f" {model.fraction:.0%}"
            return f"model {model.id} is loading: {next(reversed(model.phases))}{percent}"
        reason = f": {residency.error.message}" if residency.error else ""
        return f"model {model.id} is {residency.status}{reason}"


def default_name(source: str) -> str:
    """A model's name where none is given: a hub id and "demo" as they are, a path's last part without .gguf."""
    path = Path(source)
    looks_like_path = path.is_absolute() or source.startswith(".") or path.suffix == ".gguf" or len(path.parts) > 2
    is_path = looks_like_path or (source != "demo" and path.exists())
    return path.name.removesuffix(".gguf") if is_path else source
