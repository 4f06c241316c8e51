"""LocalService: models in processes of this machine, behind service/protocol.Service."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from headway.checkpoint.web_file import shown_source
from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.embedding import Embedded, EmbedRequest, Scored, ScoreRequest
from headway.core.infer import Inferred, InferRequest
from headway.core.request import ChatPrompt, GenerateRequest, Prompt
from headway.errors import ModelNotFound, ModelNotReady, UnsupportedFeature
from headway.observe.clock import Clock, SystemClock
from headway.service.encoding import embed, score
from headway.service.events import Drain, Keep
from headway.service.frameworks import run_of
from headway.service.inference import infer, signature
from headway.service.loader import Loader, ProcessLoader
from headway.service.names import Name, model_id
from headway.service.protocol import GenerateStream, ModelCard, ModelState
from headway.service.remote.base import as_text_client
from headway.service.residents import Residents
from headway.service.roster import Roster
from headway.service.served_model import ServedModel
from headway.service.standing_lease import StandingLease, StandingLeases
from headway.worker.client import WorkerClient
from headway.worker.given_answer import take_given_answer
from headway.worker.prompt import prepare_request, tokenize_prompt
from headway.worker.trace import make_trace

_STATES: Mapping[str, ModelState] = {"fetching": "loading", "loading": "loading", "ready": "ready", "failed": "failed"}

_T = TypeVar("_T")


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
        keeps_first: bool = True,
    ) -> None:
        """Raises InvalidConfig for a name that two have, and for limits that can not be.

        Args:
            models: those that are served from the beginning.
            pool: the budget, the policy, how long to wait.
            server: what its streams may have unread.
            checkpoint: where models' files come from.
            loader: None: real processes.
            clock: None: the system's.
            keeps_first: start() loads the first model, as it does those that are pinned.
        """
        self._clock = clock or SystemClock()
        self.roster = Roster(models)
        self._residents = Residents(
            self.roster.models,
            loader=loader or ProcessLoader(checkpoint),
            pool=pool,
            server=server,
            clock=self._clock,
        )
        self.roster.attach(self._residents)
        self.standing_leases = StandingLeases(self._residents, self._clock)
        self.roster.on_change = self.standing_leases.stop
        self._residents.pool.on_posted = self.standing_leases.follow_pool
        self._keeps_first = keeps_first
        self._is_started = False

    def on_measured(self, tell: Callable[[ServedModel, int, float], None]) -> None:
        """`tell` is called with the bytes of a ready model and the seconds of its load, when those were looked at."""
        self._residents.on_measured = tell

    def models(self) -> list[ModelCard]:
        """A card for each name, aliases and presets too."""
        return [self._make_card(name, meaning) for name, meaning in self.roster.names.listed()]

    def card(self, model: str) -> ModelCard:
        """See the protocol."""
        return self._make_card(model, self.roster.find(model))

    def is_ready(self) -> tuple[bool, str]:
        """Ready if a model is, or if none has to be before one is asked for; and nothing is being shut down."""
        state = self._residents.pool.state
        if state.is_draining:
            return False, "shutting down"
        if any(residency.status == "ready" for residency in state.models.values()):
            return True, ""
        if not self._is_started:
            return False, "not started"
        kept = [model for model in self.roster.models if self._residents.residency(model).is_awaited]
        return not kept, "; ".join(self._describe(model) for model in kept)

    async def generate(self, request: GenerateRequest) -> GenerateStream:
        """A lease, then ids, then the worker's word. Raises HeadwayError: then nothing runs and nothing is leased."""
        name = self.roster.find(request.model)
        if name.preset is not None:
            request = replace(request, prompt=_with_switches(request.prompt, name))
        return await self._ask(request.model, lambda model: self._generate(model, request))

    async def _generate(self, model: ServedModel, request: GenerateRequest) -> GenerateStream:
        timeout_s = request.sampling.timeout_s
        deadline = None if timeout_s is None else self._clock.now() + timeout_s
        while True:
            lease = await self._residents.lease(model, deadline)
            remote = as_text_client(lease.client)
            if remote is not None:
                return await remote.generate(request, lease.release, deadline=deadline)
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
        given = take_given_answer()
        if isinstance(given, Exception):
            raise given
        return await self._ask(request.model, lambda model: embed(self._residents, model, request))

    async def score(self, request: ScoreRequest) -> Scored:
        """See the protocol."""
        return await self._ask(request.model, lambda model: score(self._residents, model, request))

    async def infer(self, request: InferRequest) -> Inferred:
        """See the protocol."""
        return await self._ask(
            request.model, lambda model: infer(self._residents, model, request, self._clock, self.infer)
        )

    def standing_lease(self, name: str) -> StandingLease | None:
        """See service/standing_lease.LeasingService."""
        model = self._find(name)
        is_kept = model.config.residency.idle_timeout_s != 0
        return self.standing_leases.of(model) if is_kept else None

    def on_lease_stop(self, tell: Callable[[], None]) -> Callable[[], None]:
        """See service/standing_lease.LeasingService."""
        return self.standing_leases.listen(tell)

    async def signature(self, model: str) -> Mapping[str, Any]:
        """See the protocol."""
        return await self._ask(model, lambda served: signature(self._residents, served))

    async def load(self, model: str) -> ModelCard:
        """See the protocol."""
        served = self._find(model)
        if self._residents.residency(served).status == "failed":
            self._residents.change(served, served.config)  # who asks for just this need not wait for the next try
        await self._residents.load(served)
        return self.card(model)

    async def unload(self, model: str) -> ModelCard:
        """See the protocol."""
        await self._residents.unload(self._find(model))
        return self.card(model)

    async def watch(self, model: str) -> AsyncIterator[ModelCard]:
        """See the protocol."""
        async for _ in self._residents.watch(self._find(model)):
            card = self.card(model)
            yield card
            if card.state in ("ready", "failed"):
                return

    async def tokenize(self, model: str, prompt: Prompt) -> list[int]:
        """The ids that generate() would send."""
        name = self.roster.find(model)
        text = await self._residents.text(name.model)
        return (await tokenize_prompt(text, _with_switches(prompt, name))).token_ids

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
        """The preset's sampling defaults, before the model's own; of one on another server no own: it has its own."""
        name = self.roster.find(model)
        preset = {} if name.preset is None else name.preset.sampling
        if run_of(name.model.config).kind == "remote":
            return preset
        text = await self._residents.text(name.model)
        own = {key: value for key, value in text.generation_defaults.items() if key != "max_tokens"}
        return {**own, **preset}

    def stats(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """See the protocol."""
        models = {model.id: self._residents.stats(model) for model in self._residents.models.values()}
        return {"models": models, "pool": {"pool": self._residents.pool_stats()}}

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
        """Starts the first model, and those that are pinned; they are kept resident from now on. Again: nothing."""
        self._is_started = True
        for index, model in enumerate(self.roster.models):
            if model.config.residency.is_pinned or (self._keeps_first and index == 0):
                self._residents.pool.post(Keep(model.id))
        self._residents.begin_spares()

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

    async def _ask(self, name: str, call: Callable[[ServedModel], Awaitable[_T]]) -> _T:
        """call() with what the name means: again where another model took its place before there was a lease."""
        while True:
            model = self._find(name)
            try:
                return await call(model)
            except ModelNotFound:
                if self._find(name) is model:
                    raise

    def _find(self, name: str) -> ServedModel:
        return self.roster.find(name).model

    def _make_card(self, name: str, meaning: Name) -> ModelCard:
        model = meaning.model
        residency = self._residents.residency(model)
        opened = model.opened
        max_model_len = model.info.get("max_model_len")
        config = model.config
        return ModelCard(
            id=name,
            created=opened.created if opened else model.created,
            state=_STATES.get(residency.status, "cold"),
            max_model_len=max_model_len if isinstance(max_model_len, int) else None,
            root=shown_source(config.source),
            error=residency.error,
            phases=self._residents.phases(model),
            info=model.info,
            framework=config.framework,
            type=config.type,
            version=config.version,
            description=config.description,
            kind=meaning.kind if meaning.kind in ("alias", "preset") else "model",
            model=model_id(config),
            num_bytes=self._residents.num_bytes(model),
            over_limit_bytes=self._residents.over_limit_bytes(model),
            num_leases=residency.num_leases,
            is_pinned=config.residency.is_pinned,
            retry_at_s=max(0.0, residency.retry_at - self._clock.now()) if residency.status == "failed" else None,
            fraction=model.fraction if residency.status == "loading" else None,
            update_error=model.update_error,
        )

    def _describe(self, model: ServedModel) -> str:
        residency = self._residents.residency(model)
        if residency.status == "loading" and model.phases:
            percent = "" if model.fraction is None else f" {model.fraction:.0%}"
            return f"model {model.id} is loading: {next(reversed(model.phases))}{percent}"
        reason = f": {residency.error.message}" if residency.error else ""
        return f"model {model.id} is {residency.status}{reason}"


def _with_switches(prompt: Prompt, name: Name) -> Prompt:
    """A chat rendered by way of a preset has the preset's switches, where it does not set them itself."""
    if name.preset is None or not isinstance(prompt, ChatPrompt):
        return prompt
    return replace(prompt, template_kwargs={**name.preset.template_kwargs, **prompt.template_kwargs})
