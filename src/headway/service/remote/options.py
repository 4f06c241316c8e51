"""Options of models on other servers (ModelConfig.options), checked where the client is made."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from headway.config import ModelConfig
from headway.errors import InvalidConfig
from headway.service.frameworks import VllmMode

if TYPE_CHECKING:
    import httpx2

Seconds = Annotated[float, Meta(gt=0.0, le=86400.0)]
Dialect = Literal["openai", "vllm"]


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of any server that is reached by HTTP."""

    url: str | None = None
    """Its address; None: the model's source is that."""
    api_key_env: str | None = None
    """The environment variable of this process that holds the key for it. The key itself has no place in options, which
    are kept and shown in clear."""
    connect_timeout_s: Seconds = 5.0
    breaker_failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """So many failures within breaker_window_s, and the server is left alone for breaker_open_s."""
    breaker_window_s: Seconds = 30.0
    breaker_open_s: Seconds = 15.0


class OpenAIOptions(ServerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a server with OpenAI's API; url is what the routes are under, mostly .../v1."""

    model: str | None = None
    """Its name there; None: the only one that is there."""
    dialect: Dialect = "openai"
    """vllm: it also takes vLLM's fields (top_k, structured_outputs, chat_template_kwargs, ...), as Headway does."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What a chat's limit is called; OpenAI's own newer models know the longer name alone."""
    include_usage: bool = True
    """It takes stream_options.include_usage; without that there are no counts of tokens."""
    first_token_timeout_s: Seconds = 300.0
    """From the request to its first event."""
    between_tokens_timeout_s: Seconds = 60.0


class VllmOptions(OpenAIOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of any OpenAI-compatible server, and how one is launched."""

    mode: VllmMode | None = None
    """None: url where the source or options.url is an address, else launch."""
    dialect: Dialect = "vllm"
    arguments: list[str] = []
    """More of `vllm serve`: ["--max-model-len", "4096"]."""
    environment: dict[str, str] = {}
    """More of its environment."""
    threads: Annotated[int, Meta(ge=1)] | None = None
    """Of computing on the CPU; None: the cores that this process may use."""
    kv_cache_gib: Annotated[int, Meta(ge=1)] = 1
    """Of vLLM's build for the CPU: its KV cache."""
    start_timeout_s: Seconds = 1800.0
    """Until it is ready: what it compiles may take minutes."""


class TritonOptions(ServerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a server of the Open Inference Protocol, Triton or another one; url is what /v2 is under."""

    model: str | None = None
    """Its name there; None: its name here."""
    version: str = ""
    """"": the server chooses."""
    repository: str | None = None
    """A folder that this process may write to, and that the server has as its model repository: the model's source, a
    file or a folder, is put there as a model, and taken away when it is unloaded. None: the model is there already."""
    config: dict[str, Any] = {}
    """With repository: fields of its config.pbtxt, by their names there (triton_config)."""
    loads: bool = True
    """It is loaded and unloaded by the server's repository API (--model-control-mode=explicit); False: only asked."""
    load_timeout_s: Seconds = 300.0
    infer_timeout_s: Seconds = 60.0
    """Of any request; one may name a shorter time-out."""


O = TypeVar("O", bound=ServerOptions)  # noqa: E741

KINDS: Mapping[str, type[ServerOptions]] = {"openai": OpenAIOptions, "vllm": VllmOptions, "triton": TritonOptions}
"""By the framework."""


def check_remote_options(framework: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidConfig that names the field; of other frameworks nothing is known here."""
    if framework in KINDS:
        _convert(options, KINDS[framework], f"options of framework {framework}")


def read_options(model: ModelConfig, name: str, kind: type[O]) -> O:
    """The options as `kind` has them. Raises InvalidConfig that names the field."""
    return _convert(model.options, kind, f"options of model {name}")


def _convert(options: Mapping[str, Any], kind: type[O], what: str) -> O:
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(kind.__struct_fields__)
        raise InvalidConfig(f"{what} can not be used: {error}; there are {fields}", param="options") from error


def server_url(given: str | None, source: str, name: str) -> "httpx2.URL":
    """The server's address, without a slash at its end. Raises InvalidConfig."""
    import httpx2  # who only checks options need not wait for it

    text = given or source
    try:
        url = httpx2.URL(text.rstrip("/"))
    except (httpx2.InvalidURL, ValueError) as error:
        raise _bad_url(name, text, str(error)) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise _bad_url(name, text, "it must begin with http:// or https:// and name a host")
    if url.userinfo:
        raise _bad_url(name, "***@" + url.host, "a key does not belong into it: name its variable by api_key_env")
    return url


def _bad_url(name: str, text: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"the address of model {name} is {text[:200]!r}: {why}", param="options.url")


def read_api_key(variable: str | None, name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key that the variable holds. Raises InvalidConfig where it holds none."""
    if variable is None:
        return None
    key = environment.get(variable, "").strip()
    if not key:
        raise InvalidConfig(
            f"options.api_key_env of model {name} is {variable[:100]!r}, and this process has no such variable: set it "
            "where the server is started",
            param="options.api_key_env",
        )
    return key
