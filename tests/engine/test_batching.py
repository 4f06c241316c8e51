"""The same answers whatever the batching, the policy and the cache: the fake model says what is right."""

import itertools
import random

import pytest

import headway_wire as wire
from headway.errors import InvalidConfig, InvalidRequest
from headway.testing.fake_clock import FakeClock

LONG = list(range(1, 31))
MODES = {
    "dynamic": {"batching": "dynamic"},
    "static": {"batching": "static"},
    "static, whole prompts": {"batching": "static", "enable_chunked_prefill": False},
    "no KV cache": {"enable_kv_cache": False},
    "no KV cache, whole": {"enable_kv_cache": False, "enable_chunked_prefill": False},
    "no KV cache, static": {"enable_kv_cache": False, "batching": "static"},
    "priority": {"scheduling_policy": "priority"},
    "sjf": {"scheduling_policy": "sjf"},
    "fair": {"scheduling_policy": "fair"},
    "fair, dynamic": {"scheduling_policy": "fair", "batching": "dynamic"},
    "sjf, static": {"scheduling_policy": "sjf", "batching": "static"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_blocks", [9, 64])
def test_answers_do_not_depend_on_batching_policy_or_cache_and_none_is_lost(make_rig, mode, num_blocks):
    rig = make_rig(
        num_blocks=num_blocks,
        max_model_len=36,
        max_num_batched_tokens=8,
        max_queue_delay_ms=0.0,
        scheduling_ageing_s=1.0,
        **MODES[mode],
    )
    rng = random.Random(num_blocks)
    prompts = [[rng.randint(1, 2) for _ in range(rng.randint(1, 20))] for _ in range(12)]
    for number, prompt in enumerate(prompts):
        priority = rng.randint(-2, 2) if MODES[mode].get("scheduling_policy") == "priority" else 0
        named = {"priority": priority, "tenant": rng.choice("ABC"), "cache_salt": rng.choice(("", "x", "y"))}
        assert isinstance(rig.submit(str(number), prompt, n=1 + number % 3, max_tokens=16, **named), wire.Accepted)
        for _ in range(number % 3):
            rig.step()
        if number == 5:
            rig.engine.abort(wire.Abort(request_id="3"))
        if number == 7:
            rig.engine.hold(wire.Hold(request_id="6", is_held=True))
    rig.run()
    rig.engine.hold(wire.Hold(request_id="6", is_held=False))
    rig.run()
    for number, prompt in enumerate(prompts):
        for choice in range(1 + number % 3):
            if number != 3:
                assert rig.output(str(number), choice) == rig.expect(prompt, 16)
    rig.check_idle()


def test_static_rows_that_ended_are_computed_and_counted_until_the_last_one_ends(make_rig):
    rig = make_rig(batching="static", max_queue_delay_ms=0.0, max_model_len=20)
    rig.submit("short", [1, 2, 3], max_tokens=2, ignore_eos=True)
    rig.submit("long", [4, 5], max_tokens=10, ignore_eos=True)
    rig.submit("full", LONG[:14], max_tokens=6, ignore_eos=True)  # ends where its row of the token matrix does
    rig.run()
    for name, prompt, num in [("short", [1, 2, 3], 2), ("long", [4, 5], 10), ("full", LONG[:14], 6)]:
        assert rig.output(name) == rig.expect(prompt, num, ends=())
    # The limit of 16 tokens a step: 3 + 2 + 11 in the first, then "full" is a step behind. The last step is the 10th:
    # "short" ends in the second, "full" in the seventh.
    stats = rig.engine.stats().values
    assert stats["steps_total"] == 10
    assert stats["padding_tokens_total"] == 8 + 3
    assert stats["sampled_tokens_total"] == 2 + 10 + 6
    assert len(rig.executor.steps[-1].context_lens) == 3
    rig.check_idle()


def test_a_row_that_pads_tells_nothing_and_is_gone_after_an_abort_of_the_others(make_rig):
    rig = make_rig(batching="static", max_queue_delay_ms=0.0)
    rig.submit("short", [1, 2, 3], max_tokens=1, ignore_eos=True)
    rig.submit("long", [4, 5], max_tokens=90, ignore_eos=True)
    for _ in range(5):
        rig.step()
    assert len(rig.events("short")) == 1
    rig.engine.abort(wire.Abort(request_id="long"))
    rig.run()
    assert rig.output("short") == rig.expect([1, 2, 3], 1, ends=())
    rig.check_idle()


def test_a_step_that_fails_ends_the_open_ones_and_not_the_row_that_pads(make_rig):
    rig = make_rig(batching="static", max_queue_delay_ms=0.0)
    rig.submit("short", [1, 2, 3], max_tokens=1, ignore_eos=True)
    rig.submit("long", [4, 5], max_tokens=90, ignore_eos=True)
    rig.step()

    def fail(step):
        raise RuntimeError("no")

    rig.executor.before_step = fail
    rig.step()
    assert rig.output("short") == rig.expect([1, 2, 3], 1, ends=())
    assert rig.events("long")[-1].finish_reason == "error"
    rig.executor.before_step = lambda step: None
    rig.check_idle()


@pytest.mark.parametrize("batching", ["dynamic", "static"])
def test_a_batch_leaves_by_the_engine_s_clock_and_says_when(make_rig, batching):
    clock = FakeClock()
    rig = make_rig(batching=batching, max_queue_delay_ms=250.0, now=clock.now)
    assert rig.engine.wait_s() is None
    rig.submit("A", [1, 2], max_tokens=2, ignore_eos=True)
    assert not rig.engine.has_work()
    assert rig.engine.wait_s() == 0.25
    clock.advance(0.1)
    rig.submit("B", [3, 4], max_tokens=1, ignore_eos=True)
    assert rig.engine.wait_s() == pytest.approx(0.15)
    clock.advance(0.15)
    assert rig.engine.has_work()
    assert {event.request_id for event in rig.step().events} == {"A", "B"}
    rig.run()
    rig.check_idle()


def test_a_closed_queue_leaves_at_once(make_rig):
    rig = make_rig(batching="static", max_queue_delay_ms=60_000.0)
    rig.submit("A", [1, 2], max_tokens=2)
    assert not rig.engine.has_work()
    rig.engine.close_queue()
    rig.run()
    assert rig.output("A") == rig.expect([1, 2], 2)


def test_without_a_kv_cache_each_token_computes_its_whole_sequence(make_rig):
    rig = make_rig(enable_kv_cache=False)
    rig.submit("A", LONG[:5], max_tokens=4, ignore_eos=True)
    rig.run()
    assert rig.output("A") == rig.expect(LONG[:5], 4, ends=())
    assert rig.engine.stats().values["computed_tokens_total"] == 5 + 6 + 7 + 8
    with_cache = make_rig()
    with_cache.submit("A", LONG[:5], max_tokens=4, ignore_eos=True)
    with_cache.run()
    assert with_cache.engine.stats().values["computed_tokens_total"] == 5 + 1 + 1 + 1


def test_another_salt_finds_nothing_and_the_same_one_does(make_rig):
    rig = make_rig(num_blocks=64)
    salts = ["", "A", "B", "A", "", "B"]
    for number, salt in enumerate(salts):
        rig.submit(str(number), LONG, max_tokens=2, ignore_eos=True, cache_salt=salt)
        rig.run()
    assert [rig.events(str(number))[0].num_cached_tokens for number in range(6)] == [0, 0, 0, 28, 28, 28]
    assert rig.engine.stats().values["num_cached_blocks"] == 3 * 7
    rig.check_idle()


def test_choices_of_a_salted_request_compute_its_prompt_once(make_rig):
    rig = make_rig(max_num_batched_tokens=64)
    rig.submit("A", LONG, n=3, max_tokens=4, ignore_eos=True, cache_salt="s")
    rig.run()
    assert rig.engine.stats().values["computed_tokens_total"] == 30 + 2 * 2 + 3 * 3


def test_pinned_prefixes_are_computed_once_and_stay_whatever_comes(make_rig):
    rig = make_rig(num_blocks=16, max_model_len=60)
    other = [40, 41, 42, 43, *LONG[:4]]
    assert rig.engine.pin_prefixes([LONG[:10], LONG[:13], other]) == 3 + 2  # the first two share two blocks
    stats = rig.engine.stats().values
    assert (stats["num_pinned_blocks"], stats["computed_tokens_total"], stats["accepted_total"]) == (5, 0, 0)
    for number in range(8):  # each fills most of the rest
        rig.submit(str(number), [50 + number - 49 + index for index in range(20)], max_tokens=20, ignore_eos=True)
        rig.run()
    rig.submit("warm", LONG[:14], max_tokens=2, ignore_eos=True)
    rig.submit("salted", LONG[:14], max_tokens=2, ignore_eos=True, cache_salt="s")
    rig.run()
    assert rig.events("warm")[0].num_cached_tokens == 12
    assert rig.events("salted")[0].num_cached_tokens == 0
    assert rig.output("warm") == rig.output("salted") == rig.expect(LONG[:14], 2, ends=())
    stats = rig.engine.stats().values
    assert (stats["num_pinned_blocks"], stats["num_used_blocks"]) == (5, 5)
    rig.engine.check()


def test_a_request_that_would_need_pinned_blocks_is_refused_with_what_is_left(make_rig):
    rig = make_rig(num_blocks=16, max_model_len=64)
    rig.engine.pin_prefixes([LONG[:16]])
    refused = rig.submit("A", LONG, max_tokens=20)
    assert isinstance(refused, wire.Refused)
    assert "holds 48" in refused.error.message  # 16 blocks less 4, of 4 tokens
    assert isinstance(rig.submit("B", LONG, max_tokens=18), wire.Accepted)
    rig.run()
    assert rig.output("B") == rig.expect(LONG, 18)


def test_a_prefix_that_this_model_cannot_compute_is_refused(make_rig):
    rig = make_rig(max_model_len=20)
    with pytest.raises(InvalidRequest, match="the prompt has 20 tokens and the model's context is 20"):
        rig.engine.pin_prefixes([LONG[:20]])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"scheduling_ageing_s": 0.0}, "scheduling_ageing_s is 0.0"),
        ({"max_queue_delay_ms": -1.0, "batching": "static"}, "max_queue_delay_ms is -1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(make_rig, config, words):
    with pytest.raises(InvalidConfig, match=words):
        make_rig(**config)


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_batches_are_as_large_as_there_are_rows_and_the_last_one_is_the_rest(make_rig, mode):
    rig = make_rig(batching=mode, max_queue_delay_ms=60_000.0, max_num_batched_tokens=64)
    for number in range(10):
        rig.submit(str(number), [1, 2, number], max_tokens=3, ignore_eos=True)
    rig.engine.close_queue()
    rig.run()
    sizes = [len(step.context_lens) for step in rig.executor.steps]
    assert [size for size, _ in itertools.groupby(sizes)] == [4, 2]
    assert len(sizes) == 9
    for number in range(10):
        assert rig.output(str(number)) == rig.expect([1, 2, number], 3, ends=())
