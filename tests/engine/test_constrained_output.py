"""Answers under a constraint, token by token what an independent reading of the expression allows, from the model that
is worked by hand."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.tiny_rig import TinyRig, closing, make_engine, regex_grammar, right_answer, text_of

import headway_wire as wire
from headway.core.sequence import Sequence
from headway.engine import constrained
from headway.engine.constrained import ConstrainedOutput, Growth
from headway.engine.constraint import PARAM
from headway.engine.engine import Engine
from headway.errors import InvalidRequest
from headway.testing.script import END_TOKEN_ID
from headway.testing.tiny_model import logits_by_hand, write_tiny_model

PATTERNS = [
    "abc",
    "[a-f]{3}-[0-9]{2,4}x?",
    "(one|only|other)( and (one|only|other))*",
    "x+",
    "[b-y]*",
    r"\{\"name\": \"[a-z]{1,12}\", \"age\": [0-9]{1,3}\}",
    "z|zz|zzz",
]
RECORD = PATTERNS[5]


def constraint(pattern: str, **fields: Any) -> wire.Constraint:
    return wire.Constraint(grammar=regex_grammar(pattern), **fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("constrained") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    engine = make_engine(folder)
    yield engine
    engine.close()


@pytest.fixture
def rig(engine: Engine) -> TinyRig:
    return TinyRig(engine)


@pytest.fixture(scope="module", params=["forced", "unforced", "late", "torch"])
def kind(request: pytest.FixtureRequest, folder: Path) -> Iterator[TinyRig]:
    """late: every mask is taken for a slow one, so that it is made before its step."""
    options: dict[str, dict[str, Any]] = {
        "forced": {},
        "unforced": {"force_tokens": False},
        "late": {},
        "torch": {"executor": "torch", "dtype": "float32"},
    }
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "late":
            patched.setattr(constrained, "SLOW_MASK_S", -1.0)
        yield from closing(make_engine(folder, **options[request.param]))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_answer_is_the_likeliest_that_the_expression_allows(kind: TinyRig, pattern: str) -> None:
    right = right_answer("hello", pattern)
    kind.submit(pattern, "hello", constraint(pattern))
    kind.run()
    output = kind.output(pattern)
    assert (text_of(output.token_ids), output.finish_reason) == (text_of(right.token_ids), right.finish_reason)
    assert output.token_ids == right.token_ids
    is_forcing = kind.engine._arrivals._forces_tokens
    assert output.num_forced == (right.num_forced if is_forcing else 0)


def test_forced_tokens_take_one_step_and_not_one_each(rig: TinyRig) -> None:
    rig.submit("a", "hello", constraint("Once upon a time [ab]"))
    rig.run()
    steps = [step for step in rig.steps if step.num_tokens]
    assert rig.text("a") == right_text("hello", "Once upon a time [ab]")
    assert len(steps) == 1, "prompt and forced tokens are one run, and the last token is the first that is sampled"
    assert rig.engine.stats().values["forced_tokens_total"] > 0


def right_text(prompt: str, pattern: str) -> str:
    return text_of(right_answer(prompt, pattern).token_ids)


@pytest.mark.parametrize("max_tokens", range(1, 24))
def test_max_tokens_cuts_an_answer_anywhere(rig: TinyRig, max_tokens: int) -> None:
    rig.submit("a", "hello", constraint(RECORD), max_tokens=max_tokens)
    rig.run()
    whole = right_answer("hello", RECORD)
    assert rig.output("a").token_ids == whole.token_ids[:max_tokens]
    is_whole = max_tokens >= len(whole.token_ids)
    assert rig.output("a").finish_reason == ("stop" if is_whole else "length")


@pytest.mark.parametrize("num_steps", [16, 64])
def test_log_probabilities_of_forced_tokens_are_told_as_those_of_sampled_ones(folder: Path, num_steps: int) -> None:
    """By hand within what bfloat16 gives; from forced and from sampled tokens bit for bit."""
    told = []
    for forces in (True, False):
        engine = make_engine(folder, force_tokens=forces, max_num_batched_tokens=num_steps)
        rig = TinyRig(engine)
        rig.submit("a", "hello", constraint(RECORD), logprobs=3, prompt_logprobs=2)
        rig.submit("b", "why", constraint("Once upon a [a-z]{3} there was"), logprobs=0)
        rig.submit("plain", "abc", None, logprobs=1, max_tokens=5)
        rig.wait("a", "b")
        prompts = []
        while engine.has_work():
            rig.step()
            prompts += engine.take_prompt_logprobs()
        assert [entry.logprob for message in prompts for entry in message.logprobs] == pytest.approx(
            [logprob_by_hand(list(b"hello"[:place]), b"hello"[place]) for place in range(1, 5)], abs=0.05
        )
        told.append({name: check_logprobs(rig, name, prompt) for name, prompt in (("a", "hello"), ("b", "why"))})
        assert rig.output("a").num_forced == (right_answer("hello", RECORD).num_forced if forces else 0)
        engine.close()
    assert told[0] == told[1]


def check_logprobs(rig: TinyRig, request_id: str, prompt: str) -> list[tuple[Any, ...]]:
    """One entry a token, each as worked by hand."""
    entries = []
    for event in rig.told(request_id):
        assert event.logprobs is not None
        assert len(event.logprobs) == len(event.token_ids)
        entries += zip(event.token_ids, event.logprobs, strict=True)
    context = list(prompt.encode())
    for token_id, entry in entries:
        assert entry.logprob == pytest.approx(logprob_by_hand(context, token_id), abs=0.05)
        context.append(token_id)
    return [(token_id, entry.logprob, *entry.top_ids, *entry.top_logprobs) for token_id, entry in entries]


def logprob_by_hand(context: list[int], token_id: int) -> float:
    logits = logits_by_hand(context)
    return logits[token_id] - math.log(sum(map(math.exp, logits)))


def test_a_trigger_makes_the_grammar_hold_from_its_first_character(rig: TinyRig) -> None:
    """Free, the model says the alphabet; where "def" has come, digits follow, and then it is free again."""
    rig.submit("a", "aab", constraint("def[0-9]{2}!", trigger="d[e]f"), max_tokens=12)
    rig.run()
    text = rig.text("a")
    assert text[:4] == "cdef"
    assert text[4:6].isdigit()
    assert text[6] == "!"
    assert text[7:] == "abcde", "after ! the model begins with a, and its next def would come later"
    assert rig.output("a").finish_reason == "length"


def test_max_matches_ends_an_answer_behind_its_last_match(rig: TinyRig) -> None:
    for most in (1, 2):
        rig.submit(str(most), "aab", constraint("def[0-9]{2}!", trigger="def", max_matches=most), max_tokens=60)
    rig.run()
    assert [rig.text(str(most)).count("!") for most in (1, 2)] == [1, 2]
    assert all(rig.text(str(most)).endswith("!") and rig.output(str(most)).finish_reason == "stop" for most in (1, 2))


def test_a_last_trigger_ends_an_answer_behind_the_match_that_it_begins(rig: TinyRig) -> None:
    for name, last in (("first", "def"), ("second", "abc"), ("none", "")):
        asked = wire.Constraint(grammar=regex_grammar("(def|abc)[0-9]{2}!"), trigger="def|abc", last_trigger=last)
        rig.submit(name, "aab", asked, max_tokens=40)
    rig.run()
    assert rig.text("first").count("!") == 1
    assert rig.text("second").count("!") == 2, "def first, and abc behind it"
    assert rig.text("none").count("!") > 2
    assert [rig.output(name).finish_reason for name in ("first", "second", "none")] == ["stop", "stop", "length"]


def test_a_match_that_the_grammar_cannot_begin_with_stays_free_text(rig: TinyRig) -> None:
    rig.submit("a", "aab", constraint("xyz[0-9]", trigger="def|xyz"), max_tokens=25)
    rig.run()
    assert rig.text("a")[:24] == "cdefghijklmnopqrstuvwxyz"
    assert rig.text("a")[24].isdigit()


def test_reasoning_is_free_until_its_end_and_then_the_grammar_holds(rig: TinyRig) -> None:
    rig.submit("a", "aab", constraint("[0-9]{3}", reasoning_end="hij"))
    rig.run()
    text = rig.text("a")
    assert text[:8] == "cdefghij"
    assert len(text) == 11
    assert text[8:].isdigit()
    assert rig.output("a").finish_reason == "stop"


@pytest.mark.parametrize(
    ("start", "text"),
    [("cd", "cdefghijklmnopqrs00!"), ("cde", "cdefghijklmnopqrs00!"), ("ce", "cdefghijk00!"), ("x", "cdefghijk00!")],
)
def test_a_trigger_inside_of_reasoning_is_none_where_the_output_begins_with_its_start(
    rig: TinyRig, start: str, text: str
) -> None:
    """The model goes on with the alphabet: it says both triggers, the first one before the end of the reasoning."""
    found = constraint("(hijk|rs)00!", trigger="hijk|rs", max_matches=1, reasoning_start=start, reasoning_end="mno")
    rig.submit("a", "aab", found, max_tokens=40)
    rig.run()
    assert (rig.text("a"), rig.output("a").finish_reason) == (text, "stop")


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_reasoning_over_its_budget_is_ended(rig: TinyRig, budget: int) -> None:
    rig.submit("a", "aab", constraint("(yes|no)", opening="<", reasoning_end="</think>", max_reasoning_tokens=budget))
    rig.submit("free", "aab", wire.Constraint(reasoning_end="</think>", max_reasoning_tokens=budget), max_tokens=20)
    rig.run()
    thought = ("<" + "abcde")[: max(budget, 1)]
    assert rig.text("a").startswith(f"{thought}</think>")
    assert rig.text("a").removeprefix(f"{thought}</think>") in ("yes", "no")
    assert rig.text("free") == "cdefg"[:budget] + "</think>" + "abcdefghijkl"[: 12 - budget]


@pytest.mark.parametrize("sampling", [{"min_tokens": 30}, {"ignore_eos": True}])
def test_an_answer_ends_with_its_grammar_whatever_else_is_wanted(rig: TinyRig, sampling: dict[str, Any]) -> None:
    for pattern in ("[b-y]", "[b-y]{2}", "z|zz"):
        rig.submit(pattern, "hello", constraint(pattern), max_tokens=40, **sampling)
    rig.run()
    for pattern, length in (("[b-y]", 1), ("[b-y]{2}", 2), ("z|zz", 2)):
        assert (len(rig.text(pattern)), rig.output(pattern).finish_reason) == (length, "stop")


def test_where_end_tokens_are_not_wanted_yet_a_match_that_could_end_goes_on(rig: TinyRig) -> None:
    """The model says z and wants to end there: <|end|> is its next token."""
    rig.submit("wants", "xxy", constraint("[a-z]*"))
    rig.submit("may not", "xxy", constraint("[a-z]*"), min_tokens=6)
    rig.submit("ignores", "xxy", constraint("[a-z]*"), ignore_eos=True, max_tokens=9)
    rig.run()
    assert rig.output("wants").token_ids == [ord("z"), END_TOKEN_ID]
    assert rig.text("may not")[0] == "z"
    assert len(rig.text("may not")) >= 6
    assert (len(rig.text("ignores")), rig.output("ignores").finish_reason) == (9, "length")


def test_stop_tokens_end_an_answer_also_where_they_are_forced(rig: TinyRig) -> None:
    rig.submit("a", "hello", constraint("Once upon"), stop_token_ids=[ord("u")])
    rig.run()
    assert rig.text("a") == "Once u"
    assert (rig.told("a")[-1].finish_reason, rig.told("a")[-1].stop_reason) == ("stop", ord("u"))


def test_other_masks_apply_inside_that_of_the_grammar(rig: TinyRig) -> None:
    rig.submit("allowed", "abc", constraint("[a-z]{3}"), allowed_token_ids=list(b"pq"))
    rig.submit("banned", "abc", constraint("[a-z]{3}"), bad_token_ids=[[ord("d")]])
    rig.submit("none", "abc", constraint("[0-9]{3}"), allowed_token_ids=list(b"pq"))
    rig.submit("forced", "abc", constraint("no"), bad_token_ids=[[ord("n")]])
    rig.run()
    assert set(rig.text("allowed")) <= set("pq")
    assert "d" not in rig.text("banned")
    for name, field in (("none", "allowed_token_ids"), ("forced", "bad_words")):
        error = rig.told(name)[-1].error
        assert error is not None
        assert (error.kind, error.param) == ("InvalidRequest", PARAM)
        assert f"{field} " in error.message


def test_each_choice_goes_its_own_way_through_the_grammar(rig: TinyRig) -> None:
    prompt = "a prompt of more than one block of tokens, "
    pattern = r"(left|right): [0-9]{4}\."
    rig.submit("n", prompt, constraint(pattern), n=4, temperature=3.0, seed=5, logprobs=1)
    rig.run()
    texts = [rig.text("n", choice) for choice in range(4)]
    assert len(set(texts)) > 1
    for choice, text in enumerate(texts):
        side, _, rest = text.partition(": ")
        assert side in ("left", "right")
        assert rest[:4].isdigit()
        assert rest[4:] == "."
        assert rig.output("n", choice).num_forced >= len("eft: .")


def test_what_is_held_or_aborted_in_the_middle_leaves_nothing(rig: TinyRig) -> None:
    for name in ("held", "gone", "stays"):
        rig.submit(name, "hello", constraint("[a-z]{20} and [0-9]{9}"), logprobs=0)
    rig.wait("held", "gone", "stays")
    rig.step()
    rig.engine.hold(wire.Hold(request_id="held", is_held=True))
    rig.engine.abort(wire.Abort(request_id="gone", reason="no reader"))
    for _ in range(5):
        rig.step()
    rig.engine.hold(wire.Hold(request_id="held", is_held=False))
    rig.run()
    assert rig.told("gone")[-1].finish_reason == "abort"
    assert rig.output("held") == rig.output("stays")
    assert rig.output("stays").token_ids == right_answer("hello", "[a-z]{20} and [0-9]{9}").token_ids


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_batches_that_wait_for_each_other_take_constrained_answers(folder: Path, batching: str) -> None:
    engine = make_engine(folder, batching=batching, max_queue_delay_ms=1.0)
    rig = TinyRig(engine)
    for number, pattern in enumerate(PATTERNS):
        rig.submit(str(number), "hello", constraint(pattern))
    rig.run()
    for number, pattern in enumerate(PATTERNS):
        assert rig.output(str(number)) == right_answer("hello", pattern)
    engine.close()


def test_a_queue_that_was_closed_is_open_again_for_who_comes_later(folder: Path) -> None:
    rig = TinyRig(make_engine(folder, batching="static", max_queue_delay_ms=600_000.0))
    rig.submit("first", "hello", None)
    rig.engine.close_queue()
    rig.run()
    rig.submit("later", "hello", constraint(PATTERNS[1]))
    rig.wait()
    assert not rig.engine.has_work()  # its batch has room for others, and they may come
    rig.engine.close_queue()
    rig.run()
    assert rig.output("later") == right_answer("hello", PATTERNS[1])
    rig.engine.close()


@pytest.mark.parametrize("options", [{"enable_kv_cache": False}, {"enable_chunked_prefill": False}])
def test_the_same_comes_without_a_cache_and_without_chunks(folder: Path, options: dict[str, Any]) -> None:
    engine = make_engine(folder, **options)
    rig = TinyRig(engine)
    for pattern in (RECORD, PATTERNS[1]):
        rig.submit(pattern, "hello", constraint(pattern))
    rig.run()
    for pattern in (RECORD, PATTERNS[1]):
        assert rig.output(pattern) == right_answer("hello", pattern)
    engine.close()


def test_steps_of_constrained_answers_can_be_recorded(rig: TinyRig) -> None:
    rig.submit("a", "hello", constraint(RECORD))
    rig.engine.profile(3)
    rig.run()
    steps = rig.engine.take_profile()
    assert steps is not None
    assert len(steps) == 3
    assert rig.engine.take_profile() is None
    assert rig.output("a") == right_answer("hello", RECORD)


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (InvalidRequest(f"{PARAM} cannot be enforced any further: too much", param=PARAM), "InvalidRequest", "tools"),
        (ValueError("a fault of the library"), "InternalError", "following the grammar"),
    ],
    ids=["refused", "fault"],
)
def test_a_grammar_that_fails_on_its_way_ends_its_own_answer_and_names_the_request_s_field(
    rig: TinyRig, monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: str, words: str
) -> None:
    grow = ConstrainedOutput.grow

    def fail(output: ConstrainedOutput, sequence: Sequence, *others: Any) -> Growth:
        if sequence.request_id == "fails":
            raise raised
        return grow(output, sequence, *others)

    monkeypatch.setattr(ConstrainedOutput, "grow", fail)
    for name in ("fails", "stays"):
        rig.submit(name, "hello", constraint("[a-z]{20}", param="tools"))
    rig.run()
    (event,) = rig.told("fails")
    assert event.finish_reason == "error"
    assert event.error is not None
    assert (event.error.kind, event.token_ids) == (kind, [])
    assert event.error.message.startswith(words)
    assert rig.output("stays").token_ids == right_answer("hello", "[a-z]{20}").token_ids
    rig.engine.check()
