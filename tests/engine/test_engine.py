import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway_wire as wire
from headway.errors import InvariantBroken, UnsupportedModel

LONG = list(range(1, 31))
"""A prompt of 30 tokens; the fake model goes on for more than 10 before it says an end token."""


def test_sequences_join_and_leave_at_each_step(make_rig):
    rig = make_rig(max_num_seqs=2)
    ignoring = {"ignore_eos": True}
    rig.submit("A", [1, 2, 3], max_tokens=3, **ignoring)
    told = []

    def step() -> None:
        told.append({(e.request_id, len(e.token_ids), e.finish_reason) for e in rig.step().events})

    step()
    rig.submit("B", [4, 5], max_tokens=4, **ignoring)
    step()
    rig.submit("C", [6, 7, 8, 9], max_tokens=3, **ignoring)
    step()
    rig.submit("D", [9], max_tokens=2, **ignoring)
    for _ in range(4):
        step()
    assert told == [
        {("A", 1, None)},
        {("A", 1, None), ("B", 1, None)},
        {("A", 1, "length"), ("B", 1, None)},
        {("B", 1, None), ("C", 1, None)},
        {("B", 1, "length"), ("C", 1, None)},
        {("C", 1, "length"), ("D", 1, None)},
        {("D", 1, "length")},
    ]
    for name, prompt, num in [("A", [1, 2, 3], 3), ("B", [4, 5], 4), ("C", [6, 7, 8, 9], 3), ("D", [9], 2)]:
        assert rig.output(name) == rig.expect(prompt, num, ends=())
    rig.check_idle()


def test_two_requests_of_two_and_three_choices_share_four_rows_and_come_back_in_order(make_rig):
    rig = make_rig(max_num_seqs=4)
    rig.submit("AB", [1, 2], n=2, max_tokens=3, ignore_eos=True)
    rig.submit("CDE", [3, 4], n=3, max_tokens=3, ignore_eos=True)
    told = [[(e.request_id, e.choice) for e in rig.step().events] for _ in range(6)]
    first = [("AB", 0), ("AB", 1), ("CDE", 0), ("CDE", 1)]
    assert told == [first] * 3 + [[("CDE", 2)]] * 3
    assert rig.output("AB", 1) == rig.expect([1, 2], 3, ends=())
    assert [rig.output("CDE", choice) for choice in range(3)] == [rig.expect([3, 4], 3, ends=())] * 3
    rig.check_idle()


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("num_blocks", [9, 20, 64])
def test_answers_do_not_depend_on_batch_chunks_cache_or_preemption(make_rig, is_cached, is_chunked, num_blocks):
    rig = make_rig(
        num_blocks=num_blocks,
        max_model_len=36,
        max_num_batched_tokens=8,
        enable_prefix_caching=is_cached,
        enable_chunked_prefill=is_chunked,
    )
    rng = random.Random(num_blocks)
    prompts = [[rng.randint(1, 2) for _ in range(rng.randint(1, 20))] for _ in range(12)]
    for number, prompt in enumerate(prompts):
        assert isinstance(rig.submit(str(number), prompt, n=1 + number % 3, max_tokens=16), wire.Accepted)
        for _ in range(number % 3):
            rig.step()
    rig.run()
    for number, prompt in enumerate(prompts):
        for choice in range(1 + number % 3):
            assert rig.output(str(number), choice) == rig.expect(prompt, 16)
    if num_blocks == 9:
        assert rig.engine.stats().values["preemptions_total"] > 0
    rig.check_idle()


def test_a_prompt_that_was_seen_is_cached_and_says_so(make_rig):
    rig = make_rig()
    for name in ("cold", "warm"):
        rig.submit(name, LONG, max_tokens=5, ignore_eos=True)
        rig.run()
    assert {event.num_cached_tokens for event in rig.events("cold")} == {0}
    assert {event.num_cached_tokens for event in rig.events("warm")} == {28}  # 7 blocks of 4
    assert rig.output("cold") == rig.output("warm") == rig.expect(LONG, 5, ends=())
    stats = rig.engine.stats().values
    assert (stats["prefix_cache_queries_total"], stats["prefix_cache_hits_total"]) == (60, 28)
    rig.check_idle()


def test_the_choices_of_a_request_compute_its_prompt_once(make_rig):
    rig = make_rig(max_num_batched_tokens=64)
    rig.submit("A", LONG, n=3, max_tokens=4, ignore_eos=True)
    rig.run()
    # The prompt; 2 tokens of it for each of the others; 3 of the 4 output tokens of each.
    assert rig.engine.stats().values["computed_tokens_total"] == 30 + 2 * 2 + 3 * 3
    assert [rig.output("A", choice) for choice in range(3)] == [rig.expect(LONG, 4, ends=())] * 3


def test_choices_that_wait_hold_the_prompt_once(make_rig):
    rig = make_rig(max_num_seqs=2)
    rig.submit("A", LONG, n=4, max_tokens=3, ignore_eos=True)
    sequences = list(rig.engine._requests["A"])
    assert len({id(sequence.token_ids) for sequence in sequences}) == 1
    rig.run()
    assert len({id(sequence.token_ids) for sequence in sequences}) == 4
    assert [rig.output("A", choice) for choice in range(4)] == [rig.expect(LONG, 3, ends=())] * 4
    rig.check_idle()


def test_each_row_knows_its_seed_choice_and_end_tokens(make_rig):
    rig = make_rig()
    rig.submit("A", [1, 2, 3], n=2, seed=-5, stop_token_ids=[9], max_tokens=2)
    rig.step()
    assert [
        (row["seed"], row["choice"], row["end_token_ids"], row["num_prompt_tokens"])
        for row in (rig.sampler.rows[0], rig.sampler.rows[1])
    ] == [(-5, 0, {0, 9}, 3), (-5, 1, {0, 9}, 3)]
    drawn = []
    for _ in range(2):
        rig = make_rig(seed=42)
        rig.submit("A", [1], max_tokens=1)
        rig.submit("B", [1], max_tokens=1)
        rig.step()
        drawn.append((rig.sampler.rows[0]["seed"], rig.sampler.rows[1]["seed"]))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]
    assert all(-(2**63) <= seed < 2**63 for seed in drawn[0])


def test_a_choice_ends_by_an_end_token_a_stop_token_or_its_length(make_rig):
    rig = make_rig(max_model_len=200)
    tokens = rig.expect(LONG, 6, ends=())[0]
    asked, prompt = tokens[3], [7] * 3
    while rig.expect(prompt, 8)[1] != "stop":  # one that ends by itself
        prompt.append(len(prompt) % 49 + 1)
    rig.submit("end", prompt, max_tokens=8)
    rig.submit("ignored", prompt, max_tokens=8, ignore_eos=True)
    rig.submit("asked", LONG, max_tokens=6, stop_token_ids=[asked], ignore_eos=True)
    rig.submit("length", LONG, max_tokens=2, ignore_eos=True)
    rig.run()
    assert rig.output("end") == rig.expect(prompt, 8)
    assert rig.output("end")[0][-1] == 0
    assert rig.events("end")[-1].stop_reason is None
    assert rig.output("ignored") == (rig.expect(prompt, 8, ends=())[0], "length")
    assert rig.output("asked") == rig.expect(LONG, 6, ends=(asked,))
    assert rig.events("asked")[-1].stop_reason == asked
    assert rig.output("length") == (tokens[:2], "length")
    rig.check_idle()


def test_without_max_tokens_a_choice_has_the_rest_of_the_context_or_of_the_pool(make_rig):
    for num_blocks, total in [(64, 40), (8, 32)]:
        rig = make_rig(num_blocks=num_blocks, max_model_len=40)
        rig.submit("A", LONG, ignore_eos=True)
        rig.run()
        assert rig.output("A") == rig.expect(LONG, total - 30, ends=())


def test_logprobs_come_with_the_tokens_of_those_who_asked(make_rig):
    rig = make_rig()
    for name, num in [("none", None), ("zero", 0), ("two", 2)]:
        rig.submit(name, LONG, max_tokens=3, logprobs=num, ignore_eos=True)
    rig.run()
    assert {event.logprobs is None for event in rig.events("none")} == {True}
    for name, num in [("zero", 0), ("two", 2)]:
        entries = [entry for event in rig.events(name) for entry in event.logprobs]
        assert [len(entry.top_ids) for entry in entries] == [num] * 3
        assert [entry.logprob for entry in entries] == [-0.5] * 3
    assert [event.logprobs[0].top_ids[0] for event in rig.events("two")] == rig.output("two")[0]


REFUSALS = [
    ({"prompt": []}, "InvalidRequest", "prompt", "at least 1"),
    ({"prompt": [3, 50]}, "InvalidRequest", "prompt", "the token id 50; the vocabulary has ids 0 to 49"),
    ({"prompt": [-1]}, "InvalidRequest", "prompt", "the token id -1"),
    ({"stop_token_ids": [2, 50]}, "InvalidRequest", "stop_token_ids", "50"),
    ({"logit_bias": {50: 1.0}}, "InvalidRequest", "logit_bias", "50"),
    ({"prompt": [1] * 100}, "ContextLengthExceeded", "prompt", "100 tokens and the model's context is 100"),
    ({"prompt": [1] * 60, "max_tokens": 41}, "ContextLengthExceeded", "max_tokens", "together 101.* context is 100"),
    ({"prompt": [1] * 80}, "ContextLengthExceeded", "prompt", "80 tokens.*whole KV cache holds 80"),
    ({"prompt": [1] * 70, "max_tokens": 11}, "ContextLengthExceeded", "max_tokens", "up to 81.* holds 80"),
    ({"max_tokens": 0}, "InvalidRequest", "max_tokens", "max_tokens is 0"),
    ({"n": 0}, "InvalidRequest", "n", "n is 0"),
    ({"temperature": float("nan")}, "InvalidRequest", "temperature", "nan"),
    ({"min_tokens": 5, "max_tokens": 4}, "InvalidRequest", "min_tokens", "over max_tokens 4"),
]


@pytest.mark.parametrize(("fields", "kind", "param", "words"), REFUSALS)
def test_what_can_not_run_is_refused_and_leaves_nothing(make_rig, fields, kind, param, words):
    rig = make_rig(num_blocks=20, max_model_len=100)  # 80 tokens in the pool
    sampling = {name: value for name, value in fields.items() if name != "prompt"}
    submit = wire.Submit(
        request_id="A", prompt_token_ids=fields.get("prompt", [1, 2]), sampling=wire.Sampling(**sampling)
    )
    answer = rig.engine.submit(submit)
    assert isinstance(answer, wire.Refused)
    assert (answer.request_id, answer.error.kind, answer.error.param) == ("A", kind, param)
    assert re.search(words, answer.error.message)
    rig.check_idle()
    assert rig.engine.stats().values["refused_total"] == 1


def test_a_prompt_as_long_as_context_and_pool_allow_is_answered(make_rig):
    rig = make_rig(num_blocks=20, max_model_len=100)
    prompt = [1 + index % 49 for index in range(79)]
    rig.submit("A", prompt, max_tokens=1)
    rig.run()
    assert rig.output("A") == rig.expect(prompt, 1)
    rig.check_idle()


def test_the_limit_of_a_request_does_not_depend_on_how_many_may_run(make_rig):
    rig = make_rig(num_blocks=75, max_model_len=200, max_num_seqs=8)  # a pool of 300 tokens
    long = [1 + index % 49 for index in range(190)]
    rig.submit("long", long, max_tokens=10, ignore_eos=True)
    rig.run()
    assert rig.output("long") == rig.expect(long, 10, ends=())
    for number in range(8):
        rig.submit(str(number), [number + 1] * 30, max_tokens=10, ignore_eos=True)
    rig.run()
    for number in range(8):
        assert rig.output(str(number)) == rig.expect([number + 1] * 30, 10, ends=())
    rig.check_idle()


def test_a_request_id_is_refused_while_it_is_open_and_free_afterwards(make_rig):
    rig = make_rig()
    rig.submit("A", [1, 2], max_tokens=2, ignore_eos=True)
    answer = rig.submit("A", [3], max_tokens=1)
    assert isinstance(answer, wire.Refused)
    assert "'A' is in use" in answer.error.message
    rig.run()
    assert rig.output("A") == rig.expect([1, 2], 2, ends=())
    assert isinstance(rig.submit("A", [1, 2], max_tokens=2), wire.Accepted)


def test_an_abort_ends_a_request_wherever_it_is_and_no_other(make_rig):
    rig = make_rig(max_num_seqs=2)
    for name in ("running", "held", "queued", "other"):
        rig.submit(name, LONG, max_tokens=8, ignore_eos=True)
    rig.step()
    rig.step()
    rig.engine.hold(wire.Hold(request_id="held", is_held=True))
    for name in ("running", "held", "queued", "unknown"):
        for _ in range(2):  # the second is ignored
            rig.engine.abort(wire.Abort(request_id=name, reason="disconnect"))
    assert len(rig.engine._requests) == 1
    events = {event.request_id: event for event in rig.step().events if event.finish_reason}
    assert events.keys() == {"running", "held", "queued"}
    assert {(event.finish_reason, event.stop_reason) for event in events.values()} == {("abort", "disconnect")}
    rig.run()
    assert rig.output("other") == rig.expect(LONG, 8, ends=())
    rig.engine.abort(wire.Abort(request_id="other"))
    rig.check_idle()
    assert rig.engine.stats().values["finished_abort_total"] == 3


def test_one_choice_can_be_ended_with_the_reason_that_the_parent_saw(make_rig):
    rig = make_rig()
    rig.submit("A", [1, 2, 3], n=2, max_tokens=5, ignore_eos=True)
    rig.step()
    rig.engine.abort(wire.Abort(request_id="A", choice=1, finish_reason="stop", reason="\n"))
    rig.run()
    assert rig.output("A", 0) == rig.expect([1, 2, 3], 5, ends=())
    assert rig.output("A", 1) == (rig.expect([1, 2, 3], 1, ends=())[0], "stop")
    assert rig.events("A", 1)[-1].stop_reason == "\n"
    rig.engine.abort_all("shutdown")
    rig.check_idle()


def test_a_held_request_gets_nothing_until_it_goes_on(make_rig):
    rig = make_rig()
    rig.submit("A", [1, 2, 3], max_tokens=3, ignore_eos=True)
    rig.submit("B", [4, 5], max_tokens=3, ignore_eos=True)
    rig.step()
    rig.engine.hold(wire.Hold(request_id="A", is_held=True))
    rig.run()
    assert len(rig.events("A")) == 1
    assert rig.output("B") == rig.expect([4, 5], 3, ends=())
    assert not rig.engine.has_work()
    rig.engine.hold(wire.Hold(request_id="A", is_held=False))
    rig.engine.hold(wire.Hold(request_id="unknown", is_held=True))
    rig.run()
    assert rig.output("A") == rig.expect([1, 2, 3], 3, ends=())
    rig.check_idle()


def test_a_held_choice_learns_which_blocks_it_has_even_from_a_step_that_computes_nothing(make_rig):
    rig = make_rig(num_blocks=16, max_num_batched_tokens=32)
    prompt = [1, 2, 1, 2, 1, 2, 1, 2, 3]
    rig.submit("A", prompt, max_tokens=6, ignore_eos=True)
    rig.submit("B", prompt, max_tokens=6, ignore_eos=True)
    rig.step()  # both computed the prompt, so B's whole blocks gave way to A's
    rig.engine.hold(wire.Hold(request_id="B", is_held=True))
    rig.engine.abort(wire.Abort(request_id="A"))
    assert rig.step().num_tokens == 0
    rig.submit("C", [9] * 12, max_tokens=3, ignore_eos=True)  # takes the blocks that B had first
    rig.engine.hold(wire.Hold(request_id="B", is_held=False))
    rig.run()
    assert rig.output("B") == rig.expect(prompt, 6, ends=())
    rig.check_idle()


def test_a_sequence_that_is_preempted_too_often_ends_with_its_own_error(make_rig):
    rig = make_rig(num_blocks=5, max_model_len=20, max_preemptions=0, enable_prefix_caching=False)
    rig.submit("A", [1] * 7, max_tokens=13, ignore_eos=True)
    rig.submit("B", [2] * 4, max_tokens=8, ignore_eos=True)
    rig.run()
    assert rig.output("A") == rig.expect([1] * 7, 13, ends=())
    assert rig.output("B")[1] == "error"
    assert rig.events("B")[-1].error.kind == "PreemptionLimit"
    assert sum(step.num_preemptions for step in rig.steps) == 1
    rig.check_idle()


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (RuntimeError("secret"), "InternalError"),
        (MemoryError(), "OutOfMemory"),
        (UnsupportedModel("no"), "UnsupportedModel"),
    ],
)
def test_an_executor_that_fails_ends_the_sequences_of_that_step_and_the_engine_lives(make_rig, raised, kind):
    rig = make_rig(max_num_seqs=2)
    prompts = {"A": LONG, "B": LONG[:5], "C": LONG[:9]}
    for name, prompt in prompts.items():
        rig.submit(name, prompt, max_tokens=3, ignore_eos=True)
    rig.step()

    def fail(step) -> None:
        rig.executor.before_step = lambda step: None
        raise raised

    rig.executor.before_step = fail
    step = rig.step()
    assert step.num_tokens == 0
    assert {(e.request_id, e.finish_reason, e.error.kind) for e in step.events} == {
        ("A", "error", kind),
        ("B", "error", kind),
    }
    assert "secret" not in step.events[0].error.message
    rig.run()
    assert rig.output("C") == rig.expect(prompts["C"], 3, ends=())
    rig.submit("A", LONG, max_tokens=3, ignore_eos=True)
    rig.steps.clear()
    rig.run()
    assert rig.output("A") == rig.expect(LONG, 3, ends=())
    rig.check_idle()


def test_a_broken_invariant_is_fatal(make_rig):
    rig = make_rig()
    rig.submit("A", [1], max_tokens=3)

    def fail(step) -> None:
        raise InvariantBroken("what can not be")

    rig.executor.before_step = fail
    with pytest.raises(InvariantBroken):
        rig.engine.step()


def test_logits_that_are_not_finite_end_their_sequence_alone_and_their_blocks_are_not_shared(make_rig):
    rig = make_rig(max_num_batched_tokens=64)
    bad = [9] * 12
    rig.executor.is_poisoned = lambda tokens: tokens[:12] == bad and len(tokens) > 13
    rig.submit("good", LONG, max_tokens=6, ignore_eos=True)
    rig.submit("bad", bad, max_tokens=6, ignore_eos=True)
    rig.run()
    assert rig.output("good") == rig.expect(LONG, 6, ends=())
    tokens, reason = rig.output("bad")
    assert (tokens, reason) == (rig.expect(bad, 2, ends=())[0], "error")
    assert rig.events("bad")[-1].error.kind == "NonFiniteLogits"
    rig.executor.is_poisoned = lambda tokens: False
    rig.submit("again", bad, max_tokens=6, ignore_eos=True)
    rig.run()
    assert rig.output("again") == rig.expect(bad, 6, ends=())
    assert rig.events("again")[0].num_cached_tokens == 0
    rig.check_idle()


def test_a_chunk_that_is_not_finite_ends_its_request_and_nobody_starts_from_it(make_rig):
    rig = make_rig(max_num_batched_tokens=8)
    bad = 49
    # A mask hides no NaN: tokens before the bad one are bad too if they are computed with it.
    rig.executor.is_poisoned = lambda token_ids: bad in token_ids
    rig.submit("bad", [*LONG[:6], bad, *LONG[6:20]], max_tokens=3, ignore_eos=True)
    rig.submit("other", [7], max_tokens=4, ignore_eos=True)
    rig.step()
    assert rig.output("bad") == ([], "error")
    assert rig.events("bad")[0].error.kind == "NonFiniteLogits"
    rig.submit("good", [*LONG[:6], 7, 8, 9], max_tokens=3, ignore_eos=True)
    rig.run()
    assert rig.output("good") == rig.expect([*LONG[:6], 7, 8, 9], 3, ends=())
    assert rig.events("good")[0].num_cached_tokens == 0
    assert rig.output("other") == rig.expect([7], 4, ends=())
    rig.check_idle()


def test_sampling_that_raises_for_one_row_ends_that_choice_alone(make_rig):
    rig = make_rig()
    rig.submit("good", LONG[:4], max_tokens=4, ignore_eos=True)
    rig.step()
    rig.submit("bad", LONG[:3], n=2, seed=666, max_tokens=4)
    rig.run()
    assert rig.output("good") == rig.expect(LONG[:4], 4, ends=())
    for choice in (0, 1):
        assert rig.output("bad", choice) == ([], "error")
        assert rig.events("bad", choice)[0].error.kind == "InternalError"
    rig.check_idle()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_choice_has_one_end_and_the_right_tokens_whatever_happens(make_rig, data):
    rig = make_rig(
        num_blocks=data.draw(st.integers(5, 16)),
        max_model_len=24,
        max_num_seqs=data.draw(st.integers(1, 4)),
        max_num_batched_tokens=data.draw(st.integers(4, 12)),
        enable_prefix_caching=data.draw(st.booleans()),
        enable_chunked_prefill=data.draw(st.booleans()),
    )
    prompts: dict[str, list[int]] = {}
    fails = iter(data.draw(st.lists(st.booleans(), max_size=20)))

    def fail_sometimes(step) -> None:
        if next(fails, False):
            raise RuntimeError("now and then")

    rig.executor.before_step = fail_sometimes
    for number in range(data.draw(st.integers(1, 8))):
        prompt = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=15))
        answer = rig.submit(
            str(number), prompt, n=data.draw(st.integers(1, 3)), max_tokens=data.draw(st.integers(1, 5))
        )
        if isinstance(answer, wire.Accepted):
            prompts[str(number)] = prompt
        for _ in range(data.draw(st.integers(0, 3))):
            rig.step()
        target = str(data.draw(st.integers(0, number)))
        act = data.draw(st.sampled_from(["none", "abort", "hold", "go on"]))
        if act == "abort":
            rig.engine.abort(wire.Abort(request_id=target, choice=data.draw(st.sampled_from([None, 0, 1]))))
        elif act != "none":
            rig.engine.hold(wire.Hold(request_id=target, is_held=act == "hold"))
        rig.engine.check()
    for name in prompts:
        rig.engine.hold(wire.Hold(request_id=name, is_held=False))
    rig.run()
    rig.check_idle()
    told = {(event.request_id, event.choice) for step in rig.steps for event in step.events}
    assert {request_id for request_id, _ in told} == prompts.keys()
    for request_id, choice in told:
        tokens, reason = rig.output(request_id, choice)
        right, right_reason = rig.expect(prompts[request_id], 24)
        assert tokens == right[: len(tokens)]
        assert reason in ("length", "abort", "error") or (tokens, reason) == (right, right_reason)


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "fair"])
def test_a_priority_without_effect_is_refused_and_names_the_flag(make_rig, policy):
    rig = make_rig(scheduling_policy=policy)
    answer = rig.submit("r", [1, 2], priority=3)
    assert isinstance(answer, wire.Refused)
    assert "priority is 3" in answer.error.message
    assert f"--scheduling-policy {policy}" in answer.error.message
    assert "--scheduling-policy priority" in answer.error.message
    assert isinstance(rig.submit("r", [1, 2], priority=0), wire.Accepted)


def test_a_priority_is_taken_by_its_policy(make_rig):
    rig = make_rig(scheduling_policy="priority")
    assert isinstance(rig.submit("r", [1, 2], priority=3), wire.Accepted)
