"""One frozen config a room. cli/ resolves them once (flags, HEADWAY_*, the YAML file); none is written back."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["int8", "int4"]
KVCacheDtype = Literal["auto", "float16", "bfloat16", "int8"]
ExecutorName = Literal["auto", "native", "torch"]
SchedulingPolicy = Literal["fcfs", "priority", "sjf", "fair"]
BatchingMode = Literal["continuous", "dynamic", "static"]
EvictionPolicy = Literal["lru", "lfu", "cost"]
ModelType = Literal[
    "text-generation",
    "text-classification",
    "token-classification",
    "zero-shot-classification",
    "embedding",
    "image-classification",
    "tensor",
    "python",
]


def default_cache_dir() -> Path:
    """XDG_CACHE_HOME/headway, or ~/.cache/headway."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "headway"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where models come from."""

    cache_dir: Path
    """Downloads and the demo model."""
    revision: str | None = None
    """Of a hub repository."""
    max_source_bytes: int = 512 * 1024**3
    """What a download, and an unpacked archive, may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one LLM is loaded and run. Travels to the worker as Load.options."""

    dtype: Dtype = "auto"
    """What weights are computed with; auto: bfloat16 where the machine multiplies it natively, else float32."""
    quantization: Quantization | None = None
    """Makes matrices of a 16- or 32-bit model 8 or 4 bits wide as they are loaded; None: as the file has them."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """What the native executor keeps K and V in; auto: float16. int8 has a scale for each token and head."""
    executor: ExecutorName = "auto"
    device: str = "auto"
    """cpu, or cuda:N for the torch executor; auto: a GPU that torch can use, else the CPU (executor/device)."""
    enforce_eager: bool = False
    """On a GPU: each step runs op by op; nothing is captured at the start."""
    tensor_parallel_size: int = 1
    """Processes that compute the model together, each a part of every matrix (executor/shard); torch only."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: the model's own."""
    max_num_seqs: int = 64
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens a step."""
    step_target_s: float = 0.08
    """How long a step with running streams should take at most: only so much of new prompts joins it. 0: any time."""
    block_size: int = 16
    """Tokens a block of the KV cache."""
    kv_cache_memory: int | float | None = None
    """Bytes (int), or a fraction of the memory that is available (float, up to 1); None: the smaller of 25% of it and
    max_num_seqs x max_model_len."""
    memory_limit: int | None = None
    """Bytes that the model may take of its device's memory, if that is less than what is available; None: all of it."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enable_kv_cache: bool = True
    """False: every token computes its whole sequence again, to be compared with."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Who goes first (scheduler/policy)."""
    scheduling_ageing_s: float = 30.0
    """What a wait of so long is worth: one level of priority, or 1,000 tokens. With fcfs: nothing."""
    batching: BatchingMode = "continuous"
    """Whether requests join a batch that runs (scheduler/batching)."""
    max_queue_delay_ms: float = 50.0
    """How long a batch waits to be full, where it is not continuous."""
    force_tokens: bool = True
    """Tokens that a constraint leaves no choice about are not sampled one by one."""
    warm_prefix: str | None = None
    """A file of prefixes that are computed at the start and kept (engine/warm_prefix)."""
    warm_chat_template: str | None = None
    """What its messages are rendered with, as TextConfig.chat_template."""
    seed: int | None = None
    """Seeds of requests that have none are drawn from it; None: from the system."""
    threads: int | None = None
    """Compute threads; None: the cores that the process may use (affinity and cgroup quota)."""
    strict: bool = True
    """Missing and unexpected tensors are an error; False: loads what matches and says what did not."""
    max_preemptions: int = 1000
    """A sequence that is taken off more often ends with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """How a model's prompts are made from text."""

    chat_template: str | None = None
    """A template, or a file that holds one; None: the model's own."""
    generation_config: Literal["auto", "headway"] | str = "auto"
    """auto: sampling defaults from the model's generation_config.json; headway: ours; else a folder that has one."""
    tool_call_parser: str = "auto"
    """A dialect of text/tool_calls; auto: the one that the chat template tells."""
    reasoning_parser: str = "auto"
    """A style of text/reasoning; auto: the one that the chat template tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Residency: how long to wait for workers and when to start them again."""

    load_timeout_s: float = 600.0
    stall_timeout_s: float = 120.0
    """A worker that makes no progress for so long while it has work is killed; not before ten times what a step of what
    is open may take, by what steps took."""
    restart_delays_s: tuple[float, ...] = (0.0, 1.0, 2.0, 5.0, 15.0, 60.0)
    """After the n-th failure in a row, when a worker died that had been ready; the last one repeats. One that served
    resets the count."""
    reload_delays_s: tuple[float, ...] = (1.0, 2.0, 5.0, 15.0, 60.0)
    """The same when it was the load that failed: what failed a moment ago would fail again."""
    max_queued_requests: int = 4096
    """Requests that may wait: for a model to become ready, or, each choice counted, for a place in its batch."""
    memory_limit: int | float | None = None
    """What all residents may take: bytes (int), or a fraction of the machine's or cgroup's memory (float, up to 1);
    None: 80% of it."""
    gpu_memory_limit: int | float | None = None
    """The same of each GPU."""
    expects_more: bool = False
    """A catalog's models come beside the first: it is estimated, and not given all that there is."""
    max_spares: int | None = None
    """Processes that wait for the next cold model, one of a kind, their framework imported (service/spare_keeper).
    None: two, if memory_limit is 4 GiB or more."""
    max_models: int | None = None
    """Residents at once; None: as many as the memory holds."""
    eviction: EvictionPolicy = "cost"
    """Who goes first when memory is wanted (service/eviction)."""
    queue_timeout_s: float | None = None
    """How long a request waits for a model to become ready; None: as long as its own time-out lets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP door."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    """Of the Open Inference Protocol over gRPC, on the same host; 0: one that is free; None: no gRPC."""
    api_keys: tuple[str, ...] = ()
    """Any of them opens every route but health and version; empty: no key is asked for."""
    admin_api_keys: tuple[str, ...] = ()
    """Only these open what changes the catalog, loads and unloads (server/paths.is_admin), and they open all else too;
    empty: that needs no more than api_keys."""
    max_body_bytes: int = 16 * 1024 * 1024
    response_store_bytes: int = 64 * 1024 * 1024
    """What responses are kept in for next turns (previous_response_id); 0: none is kept."""
    max_stored_responses: int = 10_000
    max_unsent_bytes: int = 256 * 1024
    """A stream with more unread than this is not scheduled."""
    slow_reader_timeout_s: float = 30.0
    """... and is aborted when it has not read for so long."""
    native_door: bool = True
    """Plain inference requests are read and answered by native code (server/native_door)."""
    drain_timeout_s: float = 30.0
    """How long streams may finish after SIGTERM."""
    allowed_origins: tuple[str, ...] = ()
    """Origins for CORS beside localhost."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, without ports, that a Host header may have (server/hosts); empty, or with *: any."""
    allowed_media_domains: tuple[str, ...] = ()
    """Where images are fetched from by URL (server/media); empty: from anywhere on the public internet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferConfig:
    """How a model that is no language model is called."""

    max_batch_size: int = 1
    """Requests that are computed together at most, where the model can (Signature.can_batch)."""
    batch_delay_s: float = 0.0
    """How long a request waits for others to join its batch."""
    instances: int = 1
    """Processes of this model; a request goes to the one with the fewest."""
    concurrency: int | None = None
    """Requests at work at once over all instances; the others wait. None: any number."""
    timeout_s: float | None = None
    """Of a request that names none."""
    max_retries: int = 0
    """How often a call that failed on its way (a worker that died, a server that was not reached) is made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyConfig:
    """What the pool knows of a model before it is loaded, and how long it stays."""

    expected_bytes: int | None = None
    """Measured at an earlier load, or told by its owner; None: estimated from its files."""
    expected_load_s: float | None = None
    is_pinned: bool = False
    """Loaded from the beginning and never evicted."""
    idle_timeout_s: float | None = None
    """Unloaded when it was not asked for so long; None: when its memory is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogConfig:
    """Where a server's entries come from. Without a model and a file: from the user's own database."""

    is_served: bool = False
    """Beside a model that is named."""
    database_url: str | None = None
    """Of SQLite or PostgreSQL; None: catalog.db in the user's data folder."""
    models_file: Path | None = None
    """JSON or YAML that is read once instead of a database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Another name for a model, with defaults of its own; explicit fields of a request win."""

    name: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """SamplingParams fields (core/sampling.DEFAULTABLE and max_tokens)."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Switches of the chat template: enable_thinking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One served model."""

    source: str
    """A GGUF file, a Hugging Face folder, a hub id, or demo; of other frameworks (service/frameworks) what they load: a
    file, a folder, an archive or a URL."""
    served_names: tuple[str, ...] = ()
    """The first is the id; the others are aliases. Empty: made from the source."""
    predictor: str = "headway.predictors.headway:HeadwayPredictor"
    engine: EngineConfig = field(default_factory=EngineConfig)
    text: TextConfig = field(default_factory=TextConfig)
    framework: str = "headway"
    """A name of service/frameworks."""
    type: ModelType = "text-generation"
    version: str = ""
    """"": the source has no versions; else one of the catalog's, of which several may be served under one id."""
    is_default: bool = True
    """Of its versions: the one that the id alone means."""
    description: str = ""
    interpreter: str | None = None
    """The Python of its process: a path, or the name of an environment made by `headway env create`; None: this one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The predictor's own (Load.options), where the framework is not headway."""
    infer: InferConfig = field(default_factory=InferConfig)
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    presets: tuple[Preset, ...] = ()
    sha256: str | None = None
    """Of the source, if it is one file: another one is refused."""
