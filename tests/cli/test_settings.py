"""One field is one flag, one variable, one YAML key and one place in a config."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from headway.cli.fields import CONFIGS, Flag, env_name, flag_name, flag_of
from headway.cli.options import ALL_GROUPS, make_command, model_argument, setting_options, split_settings
from headway.cli.refused import REFUSED
from headway.cli.resolve import misspelt_variables, resolve_settings
from headway.cli.settings import Configs, Settings
from headway.errors import InvalidConfig
from headway.server.hosts import LOCAL_HOSTS

# field: (as text, as YAML has it, what lands in the config). Each differs from the default.
VALUES: dict[str, tuple[str, Any, Any]] = {
    "model": ("org/name", "org/name", "org/name"),
    "served_model_name": ("a,b", ["a", "b"], ("a", "b")),
    "revision": ("v2", "v2", "v2"),
    "cache_dir": ("/tmp/models", "/tmp/models", Path("/tmp/models")),
    "non_strict": ("true", True, False),
    "predictor": ("a.b:C", "a.b:C", "a.b:C"),
    "dtype": ("half", "float16", "float16"),
    "quantization": ("int4", "int4", "int4"),
    "kv_cache_dtype": ("int8", "int8", "int8"),
    "executor": ("torch", "torch", "torch"),
    "device": ("cuda:1", "cuda:1", "cuda:1"),
    "tensor_parallel_size": ("3", 3, 3),
    "enforce_eager": ("true", True, True),
    "max_model_len": ("4K", "4K", 4096),
    "max_num_seqs": ("8", 8, 8),
    "max_num_batched_tokens": ("1k", 1000, 1000),
    "step_target": ("0.2", 0.2, 0.2),
    "block_size": ("32", 32, 32),
    "kv_cache_memory": ("30%", 0.3, 0.3),
    "enable_prefix_caching": ("false", False, False),
    "enable_chunked_prefill": ("false", False, False),
    "enable_kv_cache": ("false", False, False),
    "force_tokens": ("false", False, False),
    "warm_prefix": ("prefixes.jsonl", "prefixes.jsonl", "prefixes.jsonl"),
    "scheduling_policy": ("fair", "fair", "fair"),
    "scheduling_ageing": ("1m", 60, 60.0),
    "batching": ("static", "static", "static"),
    "max_queue_delay_ms": ("2s", 2000, 2000.0),
    "seed": ("7", 7, 7),
    "threads": ("3", 3, 3),
    "stall_timeout": ("30s", 30, 30.0),
    "load_timeout": ("5m", 300, 300.0),
    "chat_template": ("chat.jinja", "chat.jinja", "chat.jinja"),
    "generation_config": ("headway", "headway", "headway"),
    "tool_call_parser": ("hermes", "hermes", "hermes"),
    "reasoning_parser": ("none", "none", "none"),
    "max_source_size": ("1GiB", 1073741824, 1073741824),
    "catalog": ("true", True, True),
    "database_url": ("sqlite:////x/c.db", "sqlite:////x/c.db", "sqlite:////x/c.db"),
    "models_file": ("models.yaml", "models.yaml", Path("models.yaml")),
    "host": ("::1", "::1", "::1"),
    "port": ("9001", 9001, 9001),
    "api_key": ("k1,k2", ["k1", "k2"], ("k1", "k2")),
    "admin_api_key": ("a1,a2", ["a1", "a2"], ("a1", "a2")),
    "insecure": ("true", True, True),
    "grpc_port": ("8001", 8001, 8001),
    "native_door": ("false", False, False),
    "max_queued_requests": ("3", 3, 3),
    "memory_limit": ("2GiB", 2147483648, 2147483648),
    "gpu_memory_limit": ("0.5", 0.5, 0.5),
    "max_models": ("3", 3, 3),
    "max_spares": ("3", 3, 3),
    "eviction": ("lru", "lru", "lru"),
    "queue_timeout": ("30s", 30, 30.0),
    "response_store": ("1MiB", 1048576, 1048576),
    "drain_timeout": ("0", 0, 0.0),
    "max_body_size": ("1MiB", 1048576, 1048576),
    "allowed_origins": ("https://a.example", ["https://a.example"], ("https://a.example",)),
    "allowed_hosts": ("Headway.lan,::1", ["Headway.lan", "::1"], (*LOCAL_HOSTS, "headway.lan")),
    "allowed_media_domains": ("a.example,b.example", ["a.example", "b.example"], ("a.example", "b.example")),
    "log_format": ("json", "json", "json"),
    "log_level": ("debug", "debug", "debug"),
}
# Has an effect only beside these.
BESIDE: dict[str, dict[str, str]] = {
    "max_queue_delay_ms": {"batching": "static"},
    "scheduling_ageing": {"scheduling_policy": "fair"},
}
# Decided by Headway, or told only in a program of one's own.
WITHOUT_FLAG = {
    "engine.max_preemptions",
    "engine.memory_limit",
    "engine.warm_chat_template",
    "pool.expects_more",
    "pool.restart_delays_s",
    "pool.reload_delays_s",
    "server.max_stored_responses",
    "server.max_unsent_bytes",
    "server.slow_reader_timeout_s",
    "model.engine",
    "model.text",
    # Of models of a catalog, or of other frameworks.
    "model.framework",
    "model.type",
    "model.version",
    "model.is_default",
    "model.description",
    "model.interpreter",
    "model.options",
    "model.infer",
    "model.residency",
    "model.presets",
    "model.sha256",
}


def flag(name: str) -> Flag:
    return flag_of(Settings.model_fields[name].metadata)


def landed(configs: Configs, name: str) -> Any:
    to = flag(name).to
    if not to:
        return getattr(configs, name)
    config, field = to.split(".")
    places = {
        "model": configs.model,
        "engine": configs.model.engine,
        "text": configs.model.text,
        "pool": configs.pool,
        "server": configs.server,
        "checkpoint": configs.checkpoint,
        "catalog": configs.catalog,
    }
    return getattr(places[config], field)


def parse(args: list[str]) -> Settings:
    """Through a command as serve's is made."""
    seen: list[dict[str, Any]] = []
    command = make_command(seen.append, [model_argument(), *setting_options(ALL_GROUPS)], help_text="Serve.")
    command.main(args, standalone_mode=False)
    flags, config, rest = split_settings(seen[0])
    assert rest == {}
    return resolve_settings(flags, config)


def on_command_line(name: str) -> list[str]:
    text = VALUES[name][0]
    if name == "model":
        return [text]
    if flag(name).metavar:
        return [flag_name(name), text]
    return [flag_name(name)] if text == "true" else [flag(name).off]


def test_the_table_of_this_test_has_every_field() -> None:
    assert set(VALUES) == set(Settings.model_fields)


def test_each_field_of_the_configs_is_set_by_one_setting_or_is_known_to_have_none() -> None:
    targets = [flag(name).to for name in Settings.model_fields if flag(name).to]
    assert len(targets) == len(set(targets))
    existing = {f"{config}.{field.name}" for config, kind in CONFIGS.items() for field in fields(kind)}
    assert set(targets) | WITHOUT_FLAG == existing
    assert not set(targets) & WITHOUT_FLAG


def test_every_field_is_described_and_collides_with_no_flag_that_is_refused() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert name.replace("_", "-") not in REFUSED


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"insecure"}))
@pytest.mark.parametrize("way", ["flag", "environment", "yaml", "yaml with underscores"])
def test_each_setting_reaches_its_config_by_each_way(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, in_yaml, value = VALUES[name]
    for other, needed in BESIDE.get(name, {}).items():
        monkeypatch.setenv(env_name(other), needed)
    args = [] if name == "model" else ["demo"]
    if way == "flag":
        args += on_command_line(name)
    elif way == "environment":
        monkeypatch.setenv(env_name(name), text)
    else:
        key = name if "underscores" in way else name.replace("_", "-")
        (tmp_path / "headway.yaml").write_text(yaml.safe_dump({key: in_yaml}))
        args += ["--config", str(tmp_path / "headway.yaml")]
    configs = parse(args).to_configs()
    assert landed(configs, name) == value
    default = resolve_settings({"model": "demo"})
    monkeypatch.delenv(env_name(name), raising=False)
    assert (
        landed(default.to_configs() if way != "environment" else resolve_settings({"model": "demo"}).to_configs(), name)
        != value
    )


def test_insecure_is_what_opens_a_door_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text("host: 0.0.0.0\nmodel: demo\ninsecure: true\n")
    assert parse(["--config", str(tmp_path / "h.yaml")]).to_configs().server.host == "0.0.0.0"


def test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headway.yaml"
    file.write_text("port: 1001\nmax-num-seqs: 2\nblock-size: 8\nmodel: in-file\n")
    monkeypatch.setenv("HEADWAY_CONFIG", str(file))
    monkeypatch.setenv("HEADWAY_PORT", "1002")
    monkeypatch.setenv("HEADWAY_MAX_NUM_SEQS", "3")
    settings = parse(["--port", "1003"])
    assert (settings.port, settings.max_num_seqs, settings.block_size, settings.threads) == (1003, 3, 8, None)
    assert settings.model == "in-file"


def test_repeated_flags_and_commas_are_both_lists() -> None:
    settings = parse(["demo", "--api-key", "a", "--api-key", "b,c", "--served-model-name", "x, y"])
    assert settings.api_key == ("a", "b", "c")
    assert settings.served_model_name == ("x", "y")


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "")
    monkeypatch.setenv("HEADWAY_PORT", "")
    settings = resolve_settings({"model": "demo"})
    assert (settings.api_key, settings.port) == ((), 8000)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "0"])
def test_a_host_that_others_reach_needs_a_key_or_insecure(host: str) -> None:
    with pytest.raises(InvalidConfig, match=r"--host .* --api-key .* --insecure"):
        resolve_settings({"model": "demo", "host": host}).to_configs()
    for opened in ({"api_key": ["k"]}, {"insecure": True}):
        assert resolve_settings({"model": "demo", "host": host, **opened}).to_configs().server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert resolve_settings({"model": "demo", "host": host}).to_configs().server.api_keys == ()


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, LOCAL_HOSTS),
        ({"host": "localhost"}, LOCAL_HOSTS),
        ({"host": "127.9.9.9"}, (*LOCAL_HOSTS, "127.9.9.9")),
        ({"host": "::1"}, LOCAL_HOSTS),
        ({"allowed_hosts": ["*"]}, ()),
        ({"allowed_hosts": ["a.lan", "*"]}, ()),
        ({"api_key": ["k"]}, ()),
        ({"api_key": ["k"], "allowed_hosts": ["a.lan"]}, (*LOCAL_HOSTS, "127.0.0.1", "a.lan")),
        ({"host": "0.0.0.0", "insecure": True}, ()),
        ({"host": "10.0.0.5", "insecure": True, "allowed_hosts": ["a.lan"]}, (*LOCAL_HOSTS, "10.0.0.5", "a.lan")),
    ],
)
def test_a_keyless_server_on_this_machine_is_called_by_its_own_names(
    flags: dict[str, Any], names: tuple[str, ...]
) -> None:
    allowed = resolve_settings({"model": "demo", **flags}).to_configs().server.allowed_hosts
    assert allowed == tuple(dict.fromkeys(names))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "x"}, r"^--port is 'x': it must be a whole number"),
        ({"port": "70000"}, r"^--port is 70000: it must be less than or equal to 65535"),
        ({"dtype": "int8"}, r"^--dtype is 'int8': it must be one of auto, float32, bfloat16, float16"),
        ({"quantization": "awq"}, r"^--quantization is 'awq': it must be one of int8, int4"),
        ({"kv_cache_dtype": "fp8"}, r"^--kv-cache-dtype is 'fp8': it must be one of auto, float16, bfloat16, int8"),
        ({"executor": "cuda"}, r"--executor is 'cuda': it must be one of auto, native, torch"),
        ({"kv_cache_memory": "5"}, r"--kv-cache-memory is '5': 5 bytes hold no cache"),
        ({"max_num_seqs": "0"}, r"--max-num-seqs is 0: it must be greater than or equal to 1"),
        ({"stall_timeout": "0"}, r"--stall-timeout is .*: it must be greater than 0"),
        ({"generation_config": " "}, r"--generation-config is ' ': it is empty"),
        ({"model": ""}, r"^MODEL is '': it is empty"),
        ({"enable_prefix_caching": "maybe"}, r"it must be true or false"),
        ({"api_key": ["secret,"]}, r"^--api-key: it has an empty entry$"),
        ({"admin_api_key": ["secret,"]}, r"^--admin-api-key: it has an empty entry$"),
        ({"allowed_origins": ["a.example"]}, r"--allowed-origins .*'a.example' is no origin such as https://"),
        ({"allowed_origins": ["http://a.example/"]}, r"'http://a.example/' is no origin"),
        (
            {"allowed_hosts": ["http://a.lan"]},
            r"--allowed-hosts .*'http://a.lan' is no host such as headway.lan, .* nor \*",
        ),
        ({"allowed_hosts": ["a.lan:8000"]}, r"'a.lan:8000' is no host .*without scheme and port"),
        ({"log_level": "loud"}, r"it must be one of debug, info, warning, error"),
        ({"port": "x", "threads": "y"}, r"^--threads is 'y'.*\n--port is 'x'"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag_and_what_fits(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        resolve_settings(flags)


def test_a_wrong_variable_is_named_as_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_MAX_NUM_SEQS", "many")
    with pytest.raises(InvalidConfig, match=r"^HEADWAY_MAX_NUM_SEQS is 'many'"):
        resolve_settings({})


def test_no_model_is_an_error_that_names_some() -> None:
    with pytest.raises(InvalidConfig, match="headway serve demo"):
        resolve_settings({}).to_configs()


def test_fewer_tokens_a_step_than_sequences_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidConfig, match=r"--max-num-seqs is 64, over --max-num-batched-tokens 32"):
        resolve_settings({"model": "demo", "max_num_batched_tokens": "32"}).to_configs()


def test_a_batch_must_not_wait_until_the_process_counts_as_stalled() -> None:
    flags = {"model": "demo", "batching": "static", "max_queue_delay_ms": "30s", "stall_timeout": "30"}
    with pytest.raises(InvalidConfig, match=r"--max-queue-delay-ms is 30000, and after --stall-timeout 30 s"):
        resolve_settings(flags).to_configs()


def test_chunked_prefill_has_a_short_name_too() -> None:
    assert parse(["demo", "--no-chunked-prefill"]).enable_chunked_prefill is False
    assert parse(["demo", "--no-enable-chunked-prefill"]).enable_chunked_prefill is False


def test_the_prefixes_are_rendered_with_the_template_that_requests_are() -> None:
    configs = resolve_settings({"model": "demo", "warm_prefix": "f", "chat_template": "t.jinja"}).to_configs()
    assert (configs.model.engine.warm_prefix, configs.model.engine.warm_chat_template) == ("f", "t.jinja")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prot: 1\n", r"prot, which is no setting of Headway; did you mean port\?"),
        ("max_nun_seqs: 1\n", r"did you mean max-num-seqs\?"),
        ("zzzzzz: 1\n", r"headway serve --help lists them"),
        ("pipeline-parallel-size: 2\n", r"pipeline-parallel-size.*: a model runs on this machine alone"),
        ("pipeline_parallel_size: 2\n", r"a model runs on this machine alone"),
        ("tensor-parallel-size: 0\n", r"tensor-parallel-size in .* is 0: "),
        ("port: 1\nport: 2\n", r"line 2, column 1: port stands twice"),
        ("max-num-seqs: 1\nmax_num_seqs: 2\n", r"max-num-seqs twice"),
        ("- port\n", r"not a list"),
        ("just text", r"not a str"),
        ("port: [1\n", r"line 2"),
        ("port: true\n", r"^port in .*headway.yaml is True: it must be a whole number"),
        ("api-key: 12345\n", r"^api-key in .*: it must be text, or a list of texts; put numbers in quotes$"),
        ("host: 1\n", r"host in .* is 1: it must be a valid string"),
        ("dtype: [float32]\n", r"it must be one of auto"),
        ("5: 1\n", r"the key 5"),
        ("x: !!python/object/apply:os.system [ls]\n", r"could not determine a constructor"),
        ("port: \x00\n", r"no YAML"),
        ("? [a, b]\n: 1\n", r"headway.yaml"),
    ],
)
def test_what_a_yaml_file_cannot_mean_is_an_error_with_its_place(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "headway.yaml"
    file.write_text(content)
    with pytest.raises(InvalidConfig, match=words):
        resolve_settings({}, file)


def test_a_yaml_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"nowhere.yaml cannot be read: No such file"):
        resolve_settings({}, tmp_path / "nowhere.yaml")
    with pytest.raises(InvalidConfig, match=r"cannot be read: Is a directory"):
        resolve_settings({}, tmp_path)


def test_an_empty_yaml_file_and_an_empty_value_are_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "headway.yaml"
    for content in ("", "# nothing\n", "port:\nthreads: null\n"):
        file.write_text(content)
        assert resolve_settings({}, file).port == 8000


def test_a_misspelt_variable_is_told_and_others_are_left_alone() -> None:
    others = ["HEADWAY_PORT", "HEADWAY_DEBUG", "HEADWAY_CONFIG", "PATH", "SWAP_SPACE"]
    lines = misspelt_variables(["HEADWAY_MAX_NUM_SEQ", "HEADWAY_SWAP_SPACE", *others])
    assert lines == [
        "HEADWAY_MAX_NUM_SEQ is no setting of Headway and has no effect; did you mean HEADWAY_MAX_NUM_SEQS?",
        f"HEADWAY_SWAP_SPACE is no setting of Headway and has no effect; {REFUSED['swap-space']}",
    ]


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert resolve_settings({}).cache_dir == tmp_path / "headway"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/not/allowed")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolve_settings({}).cache_dir == tmp_path / "home" / ".cache" / "headway"
    assert "HEADWAY_CACHE_DIR" not in os.environ


def test_the_help_names_every_flag_in_full_on_a_narrow_terminal() -> None:
    command = make_command(lambda given: None, [model_argument(), *setting_options(ALL_GROUPS)], help_text="Serve.")
    text = command.get_help(typer.Context(command, terminal_width=80))
    for name in set(Settings.model_fields) - {"model"}:
        assert flag_name(name) in text
    assert "--no-enable-prefix-caching" in text
    assert "Default: 8000." in " ".join(text.split())
