import pytest

from headway.cli.refused import REFUSED, advice_on, check_refused
from headway.errors import UnsupportedFeature

# From the flags that users of vLLM, SGLang and llama-server know.
TYPED = [
    ["-tp", "2"],
    ["--pipeline_parallel_size=2"],
    ["-pp", "2"],
    ["-dp", "2"],
    ["--pipeline-parallel-size", "2"],
    ["--data-parallel-size", "2"],
    ["--swap-space", "4"],
    ["--gpu-memory-utilization", "0.9"],
    ["--tokenizer", "x"],
    ["--trust-remote-code"],
    ["--enable-lora"],
    ["--lora-modules", "a=b"],
    ["--speculative-config", "{}"],
    ["--speculative-config.method", "ngram"],
    ["--enable-auto-tool-choice"],
    ["--enable-reasoning"],
    ["--cpu-offload-gb", "1"],
    ["--load-format", "auto"],
    ["--schedule-policy", "lpm"],
    ["--uvicorn-log-level", "info"],
    ["--disable-log-requests"],
    ["--disable-log-stats"],
    ["--max-logprobs", "20"],
    ["--enable-sleep-mode"],
    ["--shutdown-timeout", "3"],
    ["--root-path", "/x"],
    ["--ssl-keyfile", "x"],
    ["--middleware", "x"],
    ["--uds", "x"],
    ["--ctx-size", "4096"],
    ["-ngl", "99"],
    ["-hf", "a/b"],
]


@pytest.mark.parametrize("args", TYPED, ids=lambda args: args[0])
def test_a_flag_of_others_is_refused_by_name_with_what_to_do(args: list[str]) -> None:
    with pytest.raises(UnsupportedFeature) as refused:
        check_refused(["demo", *args])
    flag = args[0].partition("=")[0]
    assert refused.value.message.startswith(f"{flag} is not a flag of Headway: ")
    assert len(refused.value.message) > len(f"{flag} is not a flag of Headway: ") + 8


def test_what_is_no_flag_of_others_passes() -> None:
    check_refused(["demo", "--port", "1", "-v", "--", "--pipeline-parallel-size", "2"])
    check_refused(["pipeline-parallel-size", "-1", "-"])


def test_the_table_has_no_dashes_at_the_front_and_no_underscores() -> None:
    for name in REFUSED:
        assert not name.startswith("-")
        assert "_" not in name
        assert advice_on(f"--{name}") == REFUSED[name]
