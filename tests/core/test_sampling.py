"""What a request may say about its sampling: everything else is refused where it is said."""

import math
from typing import Any

import pytest

import headway_wire as wire
from headway.core.sampling import SamplingParams
from headway.errors import InvalidRequest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("n", 2.0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", math.inf),
        ("top_k", 5.0),
        ("top_k", -2),
        ("min_p", 1.1),
        ("seed", 1.5),
        ("seed", 2**63),
        ("presence_penalty", 2.1),
        ("frequency_penalty", None),
        ("repetition_penalty", 0.0),
        ("max_tokens", 0),
        ("max_tokens", 5.0),
        ("min_tokens", 1.0),
        ("min_tokens", -1),
        ("logprobs", 21),
        ("logprobs", 2.0),
        ("logit_bias", {1: "x"}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", 5),
        ("ignore_eos", 3),
        ("stop", ("a", 5)),
        ("stop", ("",)),
        ("stop", ("a" * 1025,)),
        ("stop", ("a",) * 17),
        ("skip_special_tokens", None),
        ("timeout_s", "1"),
        ("timeout_s", 0.0),
    ],
)
def test_a_value_that_can_not_be_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_what_is_accepted_can_be_sent() -> None:
    params = SamplingParams(n=2, temperature=1, top_p=1, top_k=-1, seed=-(2**63), logit_bias={3: 1}, max_tokens=5)
    fields = {name: getattr(params, name) for name in wire.Sampling.__struct_fields__}
    submit = wire.Submit(request_id="r", prompt_token_ids=[1], sampling=wire.Sampling(**fields))
    assert wire.decode_down(wire.encode(submit)) == submit


@pytest.mark.parametrize(("stop", "stops"), [("ab", ("ab",)), (("a", "b"), ("a", "b")), ((), ())])
def test_one_stop_string_need_not_be_in_a_list(stop: Any, stops: tuple[str, ...]) -> None:
    assert SamplingParams(stop=stop).stop == stops


def test_more_tokens_are_not_asked_for_than_there_may_be() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens is 6, over max_tokens 5"):
        SamplingParams(min_tokens=6, max_tokens=5)
