"""docs/other-servers.md: its entries are such, every option is on the page, and its table of errors is the real one."""

import re
from pathlib import Path
from typing import Any

import pytest

from headway.server.errors import problem_of
from headway.service.catalog_form import read_entries
from headway.service.catalog_options import to_config
from headway.service.frameworks import run_of, vllm_mode
from headway.service.remote.options import OpenAIOptions, TritonOptions, VllmOptions, read_options
from headway.service.remote.refusal import refusal_of
from headway.service.remote.triton_config import TritonModelConfig, read_config

PAGE = (Path(__file__).parents[2] / "docs" / "other-servers.md").read_text()
OPTIONS: dict[str, Any] = {"openai": OpenAIOptions, "vllm": VllmOptions, "triton": TritonOptions}


def test_each_framework_has_an_entry_whose_options_are_there() -> None:
    blocks = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    configs = [to_config(entry) for block in blocks for entry in read_entries(block.encode(), place="the page")]
    assert [config.framework for config in configs] == list(OPTIONS)
    for config in configs:
        options = read_options(config, "m", OPTIONS[config.framework])
        assert run_of(config).kind == "remote"
        if isinstance(options, TritonOptions):
            read_config(options.config, "m")
    assert [vllm_mode(config) for config in configs if config.framework == "vllm"] == ["launch"]


@pytest.mark.parametrize("kind", [*OPTIONS.values(), TritonModelConfig])
def test_every_option_is_on_the_page(kind: Any) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE)) | set(re.findall(r'"(\w+)":', PAGE))
    assert set(kind.__struct_fields__) - named == set()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(500, 502), (502, 502), (404, 502), (401, 502), (403, 502), (302, 502), (429, 429), (503, 503), (504, 504)]
    + [(status, status) for status in (400, 413)]
    + [(422, 400)],
)
def test_statuses_are_told_as_the_page_says(theirs: int, ours: int) -> None:
    told = problem_of(refusal_of("it", theirs, {"retry-after": "9"}, b"words").error)
    assert told.status == ours
    assert ("retry-after" in told.headers) == (ours in (429, 503))
