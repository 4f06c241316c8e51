"""The fakes keep their word."""

import pytest

import headway_wire as wire
from headway.testing.fake_clock import FakeClock
from headway.testing.script import FIRST_WORD_ID, Reply, Script, say, token_ids, words
from headway.testing.scripted_engine import GATE_PREFIX, LOGPROB, ScriptedPredictor
from headway.testing.scripted_text import make_text


def test_calls_come_in_order_each_at_its_own_time() -> None:
    clock, calls = FakeClock(0.0), list[tuple[str, float]]()
    clock.call_at(2.0, lambda: calls.append(("late", clock.now())))
    clock.call_at(1.0, lambda: clock.call_at(1.5, lambda: calls.append(("asked for by a call", clock.now()))))
    clock.call_at(1.0, lambda: calls.append(("second of one time", clock.now())))
    clock.call_at(1.2, lambda: calls.append(("cancelled", 0.0))).cancel()
    assert clock.num_timers == 3
    clock.advance(1.9)
    assert calls == [("second of one time", 1.0), ("asked for by a call", 1.5)]
    clock.advance(0.1)
    assert calls[2:] == [("late", 2.0)]
    assert clock.num_timers == 0


def test_the_vocabulary_is_bytes_then_control_tokens_then_words() -> None:
    script = Script(words=[b"zz"], reply=Reply(tokens=[b"a", b"\xf0\x9f", b"zz", b"bc"]))
    assert words(script) == [b"zz", b"\xf0\x9f", b"bc"]
    assert token_ids(script, [b"a", b"\xf0\x9f", b"zz"]) == [97, FIRST_WORD_ID + 1, FIRST_WORD_ID]
    tokenizer = make_text(script).tokenizer
    assert [tokenizer.token_bytes(token_id) for token_id in (0, 97, 255, 256, 261, 262)] == [
        b"\x00",
        b"a",
        b"\xff",
        b"<|end|>",
        b"zz",
        b"\xf0\x9f",
    ]
    # Text is always its bytes, so that a prompt's length is known.
    assert tokenizer.encode("zzbc") == list(b"zzbc")


def play(script: Script, *messages: wire.Down, max_steps: int = 50) -> list[wire.TokenEvent]:
    predictor, events = ScriptedPredictor(), list[wire.TokenEvent]()
    predictor.script = script
    for message in messages:
        list(predictor.handle(message))  # type: ignore[arg-type]
    for _ in range(max_steps):
        if not predictor.has_work():
            break
        events += [event for step in predictor.step() if isinstance(step, wire.Step) for event in step.events]
    return events


def submit(prompt: str = "hi", **sampling: object) -> wire.Submit:
    return wire.Submit(
        request_id="r",
        prompt_token_ids=list(prompt.encode()),
        sampling=wire.Sampling(**sampling),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("reply", "sampling", "said", "end"),
    [
        (say("ab"), {}, [97, 98, 256], ("stop", 256)),
        (Reply(), {}, [256], ("stop", 256)),
        (say("ab"), {"max_tokens": 2}, [97, 98], ("length", None)),
        (say("ab"), {"max_tokens": 3}, [97, 98, 256], ("stop", 256)),
        (say("ab", tokens_per_step=5), {}, [97, 98, 256], ("stop", 256)),
        (say("ab"), {"ignore_eos": True, "max_tokens": 5}, [97, 98, 97, 98, 97], ("length", None)),
        (say("ab"), {"min_tokens": 4, "max_tokens": 9}, [97, 98, 97, 98, 256], ("stop", 256)),
        (say("ab"), {"stop_token_ids": [97]}, [97], ("stop", 97)),
        (say("ab"), {"stop_token_ids": [97], "min_tokens": 1, "max_tokens": 9}, [97, 98, 256], ("stop", 256)),
        (say("ab", is_endless=True), {"max_tokens": 3}, [97, 98, 97], ("length", None)),
        (say("ab", error_at=1), {}, [97], ("error", None)),
    ],
)
def test_sampling_is_followed_where_it_is_exact(
    reply: Reply, sampling: dict[str, object], said: list[int], end: tuple[str, int | None]
) -> None:
    events = play(Script(reply=reply), submit(**sampling))
    assert [token_id for event in events for token_id in event.token_ids] == said
    assert [(event.finish_reason, event.stop_reason) for event in events if event.finish_reason] == [end]


def test_a_gate_and_a_hold_stop_one_request_and_cost_no_steps() -> None:
    script = Script(reply=say("ab", gates={1: "g"}))
    assert len(play(script, submit())) == 1
    assert len(play(script, submit(), wire.Hold(request_id=GATE_PREFIX + "g", is_held=False))) == 3
    assert play(script, submit(), wire.Hold(request_id="r", is_held=True)) == []
    released = [wire.Hold(request_id="r", is_held=True), wire.Hold(request_id="r", is_held=False)]
    assert len(play(script, submit(), *released)) == 1


def test_the_first_key_in_the_prompt_chooses_the_reply() -> None:
    script = Script(reply=say("z"), replies={"b": say("1"), "a": say("2")})
    said = [play(script, submit(prompt))[0].token_ids for prompt in ("xay", "ab", "c")]
    assert said == [[ord("2")], [ord("1")], [ord("z")]]


def test_logprobs_are_known() -> None:
    event = play(Script(reply=say("a")), submit(logprobs=2))[0]
    assert event.logprobs == [wire.TokenLogprobs(LOGPROB, [97, 98], [LOGPROB, LOGPROB - 1])]
