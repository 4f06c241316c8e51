"""Every setting of a served model and its server, once: each field is a flag, a HEADWAY_* variable and a YAML key.

resolve.py reads them; Settings.to_configs() gives the rooms' frozen configs. Nothing is written back.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from headway.cli.fields import (
    CONFIGS,
    ENV_PREFIX,
    Automatic,
    Bytes,
    Count,
    DtypeName,
    Flag,
    Hosts,
    LogFormat,
    LogLevel,
    Memory,
    Milliseconds,
    Names,
    Origins,
    Seconds,
    Text,
    default_of,
    flag_of,
)
from headway.config import (
    BatchingMode,
    CatalogConfig,
    CheckpointConfig,
    EngineConfig,
    EvictionPolicy,
    ExecutorName,
    KVCacheDtype,
    ModelConfig,
    PoolConfig,
    Quantization,
    SchedulingPolicy,
    ServerConfig,
    TextConfig,
    default_cache_dir,
)
from headway.engine.effects import check_effects
from headway.errors import InvalidConfig
from headway.server.hosts import callable_names, is_loopback


class Settings(BaseSettings):
    """What `headway serve` can be told. Made by resolve_settings."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    model: Annotated[Text | None, Flag("Model", "MODEL", "model.source")] = None
    """A GGUF file, a Hugging Face folder, a hub id (ORG/NAME or ORG/NAME:FILE.gguf), or demo."""
    served_model_name: Annotated[Names, Flag("Model", "NAME", "model.served_names")] = ()
    """Name in the API; more than one (repeated, or with commas) are aliases. Default: made from MODEL."""
    revision: Annotated[Text | None, Flag("Model", "REV", "checkpoint.revision")] = None
    """Branch, tag or commit of a hub repository."""
    cache_dir: Annotated[Path, Flag("Model", "FOLDER", "checkpoint.cache_dir")] = Field(
        default_factory=default_cache_dir
    )
    """Where downloads and the demo model are kept."""
    max_source_size: Annotated[Bytes, Flag("Model", "SIZE", "checkpoint.max_source_bytes")] = Field(
        default_of("checkpoint.max_source_bytes"), ge=1
    )
    """The most that a download, or an archive that is unpacked, may have."""
    non_strict: Annotated[bool, Flag("Model", "", "engine.strict")] = False
    """Load what matches when tensors are missing or unexpected, and say what did not."""
    predictor: Annotated[Text, Flag("Model", "MODULE:CLASS", "model.predictor")] = default_of("model.predictor")
    """What the model's process runs."""

    dtype: Annotated[DtypeName, Flag("Engine", "TYPE", "engine.dtype")] = default_of("engine.dtype")
    """auto, float32, bfloat16 or float16. auto: bfloat16 where the machine multiplies it natively, else float32."""
    quantization: Annotated[Quantization | None, Automatic, Flag("Engine", "TYPE", "engine.quantization")] = None
    """int8 or int4: make the weights of a 16- or 32-bit model so wide as they are loaded.
    Default: as the file has them."""
    kv_cache_dtype: Annotated[KVCacheDtype, Flag("Engine", "TYPE", "engine.kv_cache_dtype")] = default_of(
        "engine.kv_cache_dtype"
    )
    """auto, float16, bfloat16 or int8: what the KV cache is kept in. auto: float16, with torch what it computes with.
    int8 holds twice the tokens."""
    executor: Annotated[ExecutorName, Flag("Engine", "NAME", "engine.executor")] = default_of("engine.executor")
    """What computes the model."""
    device: Annotated[Text, Flag("Engine", "NAME", "engine.device")] = default_of("engine.device")
    """auto, cpu, cuda or cuda:N. auto: a GPU that PyTorch can use, else the CPU."""
    enforce_eager: Annotated[bool, Flag("Engine", "", "engine.enforce_eager")] = default_of("engine.enforce_eager")
    """On a GPU: run steps op by op, and capture none at the start."""
    tensor_parallel_size: Annotated[Count, Flag("Engine", "N", "engine.tensor_parallel_size")] = Field(
        default_of("engine.tensor_parallel_size"), ge=1, le=64
    )
    """Processes that share each layer's matrices and heads, on this machine. Over 1: with --executor torch only."""
    max_model_len: Annotated[Count | None, Automatic, Flag("Engine", "TOKENS", "engine.max_model_len")] = Field(
        None, ge=1
    )
    """Tokens of prompt and output together. Default: the model's own."""
    max_num_seqs: Annotated[Count, Flag("Engine", "N", "engine.max_num_seqs")] = Field(
        default_of("engine.max_num_seqs"), ge=1, le=65536
    )
    """Sequences that run at once."""
    max_num_batched_tokens: Annotated[Count, Flag("Engine", "TOKENS", "engine.max_num_batched_tokens")] = Field(
        default_of("engine.max_num_batched_tokens"), ge=1
    )
    """Tokens that one step computes at most."""
    step_target: Annotated[Seconds, Flag("Engine", "SECONDS", "engine.step_target_s")] = Field(
        default_of("engine.step_target_s"), ge=0
    )
    """How long a step with running answers should take: only so much of new prompts joins it. 0: any time."""
    block_size: Annotated[Count, Flag("Engine", "TOKENS", "engine.block_size")] = Field(
        default_of("engine.block_size"), ge=1, le=1024
    )
    """Tokens a block of the KV cache."""
    kv_cache_memory: Annotated[Memory | None, Automatic, Flag("Engine", "SIZE", "engine.kv_cache_memory")] = None
    """Memory of the KV cache: bytes (2GiB) or a fraction of what is available (0.3).
    Default: 25% of it, or what max-num-seqs x max-model-len can use, whichever is less."""
    enable_prefix_caching: Annotated[
        bool, Flag("Engine", "", "engine.enable_prefix_caching", "--no-enable-prefix-caching")
    ] = default_of("engine.enable_prefix_caching")
    """Keep the KV of prompts, for requests that begin alike."""
    enable_chunked_prefill: Annotated[
        bool, Flag("Engine", "", "engine.enable_chunked_prefill", "--no-enable-chunked-prefill", "--no-chunked-prefill")
    ] = default_of("engine.enable_chunked_prefill")
    """Cut long prompts into chunks, so that running answers go on."""
    enable_kv_cache: Annotated[bool, Flag("Engine", "", "engine.enable_kv_cache", "--no-kv-cache")] = default_of(
        "engine.enable_kv_cache"
    )
    """Keep the KV of what is computed. Without it every token computes its whole sequence: to compare with."""
    force_tokens: Annotated[bool, Flag("Engine", "", "engine.force_tokens", "--no-forced-tokens")] = default_of(
        "engine.force_tokens"
    )
    """Take tokens that a schema or grammar leaves no choice about as they are, many in a step. Without it each is
    sampled: to compare with."""
    warm_prefix: Annotated[Text | None, Flag("Engine", "FILE", "engine.warm_prefix")] = None
    """A file of prompts, one a line (text, or JSON with text, messages or token_ids), that are computed at the start
    and stay in the KV cache."""
    scheduling_policy: Annotated[SchedulingPolicy, Flag("Engine", "NAME", "engine.scheduling_policy")] = default_of(
        "engine.scheduling_policy"
    )
    """Who goes first: fcfs (as they come), priority (the request's, lower first), sjf (the least work left) or fair
    (the same tokens for each tenant)."""
    scheduling_ageing: Annotated[Seconds, Flag("Engine", "SECONDS", "engine.scheduling_ageing_s")] = Field(
        default_of("engine.scheduling_ageing_s"), gt=0
    )
    """What a wait of so long is worth, so that nobody waits for ever: one level of priority, or 1,000 tokens."""
    batching: Annotated[BatchingMode, Flag("Engine", "MODE", "engine.batching")] = default_of("engine.batching")
    """continuous: requests join as others leave. To compare with: dynamic (a batch leaves when it is full or has
    waited, and none joins it) and static (the same, and its rows are computed until the last one ends)."""
    max_queue_delay_ms: Annotated[Milliseconds, Flag("Engine", "MS", "engine.max_queue_delay_ms")] = Field(
        default_of("engine.max_queue_delay_ms"), ge=0
    )
    """How long a dynamic or static batch waits to be full."""
    seed: Annotated[Count | None, Automatic, Flag("Engine", "N", "engine.seed")] = Field(None, ge=0, le=2**63 - 1)
    """Where seeds of requests without one are drawn from. Default: the system's randomness."""
    threads: Annotated[Count | None, Automatic, Flag("Engine", "N", "engine.threads")] = Field(None, ge=1, le=4096)
    """Threads that compute. Default: the cores that the process may use."""
    stall_timeout: Annotated[Seconds, Flag("Engine", "SECONDS", "pool.stall_timeout_s")] = Field(
        default_of("pool.stall_timeout_s"), gt=0
    )
    """A model process that makes no progress for so long while it has work is killed and started again; one whose steps
    are known to take long gets ten times that."""
    load_timeout: Annotated[Seconds, Flag("Engine", "SECONDS", "pool.load_timeout_s")] = Field(
        default_of("pool.load_timeout_s"), gt=0
    )
    """How long a model may take to load."""

    memory_limit: Annotated[Memory | None, Automatic, Flag("Models", "SIZE", "pool.memory_limit")] = None
    """Memory of all loaded models together: bytes (12GiB) or a fraction of what the machine has (0.8).
    Default: 80% of it, or of the control group's."""
    gpu_memory_limit: Annotated[Memory | None, Automatic, Flag("Models", "SIZE", "pool.gpu_memory_limit")] = None
    """The same of each GPU."""
    max_models: Annotated[Count | None, Automatic, Flag("Models", "N", "pool.max_models")] = Field(None, ge=1)
    """Models that are loaded at once. Default: as many as fit."""
    max_spares: Annotated[Count | None, Automatic, Flag("Models", "N", "pool.max_spares")] = Field(None, ge=0)
    """Processes that wait without a model, their framework imported, for the next one that has to be loaded; 0: none.
    Default: 2, or none where --memory-limit is below 4 GiB."""
    eviction: Annotated[EvictionPolicy, Flag("Models", "NAME", "pool.eviction")] = default_of("pool.eviction")
    """Which unused model leaves when memory is wanted: cost (the least seconds of loading for its size), lru (the
    longest unused) or lfu (the least often used)."""

    chat_template: Annotated[Text | None, Flag("Text", "FILE", "text.chat_template")] = None
    """A file with a chat template (Jinja), or the template itself. Default: the model's own."""
    generation_config: Annotated[Text, Flag("Text", "WHICH", "text.generation_config")] = default_of(
        "text.generation_config"
    )
    """Sampling defaults. auto: the model's generation_config.json; headway: none; or a folder that has one."""
    tool_call_parser: Annotated[Text, Flag("Text", "NAME", "text.tool_call_parser")] = default_of(
        "text.tool_call_parser"
    )
    """How the model writes tool calls: hermes, llama3_json, mistral, qwen3_coder, pythonic or plain_json. auto: as its
    chat template does."""
    reasoning_parser: Annotated[Text, Flag("Text", "NAME", "text.reasoning_parser")] = default_of(
        "text.reasoning_parser"
    )
    """How the model marks its reasoning: qwen3, deepseek_r1 or none. auto: as its chat template does."""

    catalog: Annotated[bool, Flag("Models", "", "catalog.is_served")] = False
    """Serve the catalog's models beside MODEL. Without MODEL they are served anyway."""
    database_url: Annotated[Text | None, Flag("Models", "URL", "catalog.database_url")] = None
    """The catalog's database: sqlite:////path/to/catalog.db, or postgresql://USER:PASSWORD@HOST/NAME
    (HEADWAY_DATABASE_URL keeps a password out of `ps`). Default: catalog.db in ~/.local/share/headway."""
    models_file: Annotated[Path | None, Flag("Models", "FILE", "catalog.models_file")] = None
    """Serve the models of a JSON or YAML file ({"models": [...]}) without a database."""

    host: Annotated[Text, Flag("Server", "ADDRESS", "server.host")] = default_of("server.host")
    """Address to listen on. One that others can reach needs --api-key, or --insecure."""
    port: Annotated[Count, Flag("Server", "PORT", "server.port")] = Field(default_of("server.port"), ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    grpc_port: Annotated[Count | None, Flag("Server", "PORT", "server.grpc_port")] = Field(None, ge=0, le=65535)
    """Port for the Open Inference Protocol over gRPC (headway[grpc]); 0 takes a free one. Default: no gRPC."""
    api_key: Annotated[Names, Flag("Server", "KEY", "server.api_keys")] = ()
    """Key that requests must bring; repeated, or with commas, for more. HEADWAY_API_KEY keeps it out of `ps`."""
    admin_api_key: Annotated[Names, Flag("Server", "KEY", "server.admin_api_keys")] = ()
    """Key that alone may change the catalog, load and unload models (/admin, the repository of v2); repeated, or with
    commas, for more. Default: any --api-key may. HEADWAY_ADMIN_API_KEY keeps it out of `ps`."""
    insecure: Annotated[bool, Flag("Server", "")] = False
    """Listen on an address that others can reach without a key."""
    drain_timeout: Annotated[Seconds, Flag("Server", "SECONDS", "server.drain_timeout_s")] = default_of(
        "server.drain_timeout_s"
    )
    """How long running answers may go on after SIGTERM or Ctrl-C."""
    native_door: Annotated[bool, Flag("Server", "", "server.native_door", "--no-native-door")] = default_of(
        "server.native_door"
    )
    """Read and answer plain inference requests by native code; without it all of them in Python."""
    max_queued_requests: Annotated[Count, Flag("Server", "N", "pool.max_queued_requests")] = Field(
        default_of("pool.max_queued_requests"), ge=0
    )
    """Requests that may wait for the model or for a place in its batch; one more gets a 503 at once."""
    queue_timeout: Annotated[Seconds | None, Automatic, Flag("Server", "SECONDS", "pool.queue_timeout_s")] = Field(
        None, gt=0
    )
    """How long a request may wait for its model to be resident before it gets a 503. Default: as long as its own
    time-out lets it."""
    max_body_size: Annotated[Bytes, Flag("Server", "SIZE", "server.max_body_bytes")] = Field(
        default_of("server.max_body_bytes"), ge=1024
    )
    """The longest request body."""
    response_store: Annotated[Bytes, Flag("Server", "SIZE", "server.response_store_bytes")] = Field(
        default_of("server.response_store_bytes"), ge=0
    )
    """Memory for answers of /v1/responses, which next turns go on from (previous_response_id); 0 keeps none."""
    allowed_origins: Annotated[Origins, Flag("Server", "ORIGIN", "server.allowed_origins")] = ()
    """Web pages that may call the server (CORS), beside those on localhost; repeated, or with commas."""

    allowed_hosts: Annotated[Hosts, Flag("Server", "NAME", "server.allowed_hosts")] = ()
    """Names that the server may be called by (the Host header), beside localhost and --host; repeated, or with commas;
    * for any. Default: on localhost without --api-key no others, else any."""
    allowed_media_domains: Annotated[Hosts, Flag("Server", "NAME", "server.allowed_media_domains")] = ()
    """Where images that a request names by URL are fetched from; repeated, or with commas. Default: from anywhere on
    the public internet, and never from this machine or its network."""

    log_format: Annotated[LogFormat, Flag("Logs", "FORMAT")] = "auto"
    """auto (console on a terminal, else json), console or json."""
    log_level: Annotated[LogLevel, Flag("Logs", "LEVEL")] = "info"
    """debug, info, warning or error."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment: no .env file, no secrets folder. resolve.py adds the YAML file."""
        return init_settings, env_settings

    def to_configs(self, *, needs_model: bool = True) -> "Configs":
        """The frozen configs of the rooms.

        Args:
            needs_model: False: without a model there is a catalog to serve (Configs.has_model).

        Raises:
            InvalidConfig: no model is named, or settings that exclude each other or have no effect together.
        """
        if self.model is None and needs_model:
            raise InvalidConfig(
                "no model is named: headway serve demo, or a GGUF file, a Hugging Face folder or a hub id",
                param="model",
            )
        self._check()
        made: dict[str, dict[str, Any]] = {name: {} for name in CONFIGS}
        for name, field in type(self).model_fields.items():
            to = flag_of(field.metadata).to
            if to:
                config, key = to.split(".")
                made[config][key] = getattr(self, name)
        made["server"]["allowed_hosts"] = callable_names(self.host, self.allowed_hosts, has_key=bool(self.api_key))
        made["pool"]["expects_more"] = self.catalog or self.database_url is not None or self.models_file is not None
        made["engine"]["strict"] = not self.non_strict
        made["engine"]["warm_chat_template"] = self.chat_template if self.warm_prefix else None
        engine = EngineConfig(**made["engine"])
        check_effects(engine)
        made["model"]["source"] = self.model or ""
        model = ModelConfig(**made["model"], engine=engine, text=TextConfig(**made["text"]))
        return Configs(
            model=model,
            pool=PoolConfig(**made["pool"]),
            server=ServerConfig(**made["server"]),
            checkpoint=CheckpointConfig(**made["checkpoint"]),
            catalog=CatalogConfig(**made["catalog"]),
            log_format=self.log_format,
            log_level=self.log_level,
        )

    def _check(self) -> None:
        if self.models_file is not None and (self.catalog or self.database_url is not None):
            other = "--catalog" if self.catalog else "--database-url"
            raise InvalidConfig(
                f"--models-file and {other} both say which models there are: leave one of them out", param="models_file"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise InvalidConfig(
                f"--max-num-seqs is {self.max_num_seqs}, over --max-num-batched-tokens {self.max_num_batched_tokens}: "
                "each running sequence needs a token of every step; raise the second or lower the first",
                param="max_num_seqs",
            )
        if self.batching != "continuous" and self.max_queue_delay_ms >= self.stall_timeout * 1e3:
            raise InvalidConfig(
                f"--max-queue-delay-ms is {self.max_queue_delay_ms:g}, and after --stall-timeout {self.stall_timeout:g}"
                " s without a step the model's process counts as stalled: lower the first or raise the second",
                param="max_queue_delay_ms",
            )
        if not (is_loopback(self.host) or self.api_key or self.insecure):
            raise InvalidConfig(
                f"--host {self.host} can be reached by others, and no key is set: "
                "give --api-key (or HEADWAY_API_KEY), or --insecure if that is meant",
                param="host",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configs:
    """What serve hands to the rooms."""

    model: ModelConfig
    pool: PoolConfig
    server: ServerConfig
    checkpoint: CheckpointConfig
    catalog: CatalogConfig
    log_format: LogFormat
    log_level: LogLevel

    @property
    def has_model(self) -> bool:
        """Whether `model` is one: else there is only the catalog."""
        return bool(self.model.source)
