"""From token events to text, by hand: ids 0 to 255 are bytes, 256 ends, words have ids from 261 on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.conftest import SCRIPT, join

import headway_wire as wire
from headway.core.output import TextDelta
from headway.core.sampling import SamplingParams
from headway.testing.script import END_TOKEN_ID, token_ids
from headway.text.tokenizer import Tokenizer
from headway.worker.assembler import ChoiceAssembler

END = ("stop", END_TOKEN_ID)
CONSTRAINED = {"constraint": wire.Constraint(grammar='start: /[a-z]+/ "]"')}


def play(
    tokenizer: Tokenizer, steps: list[list[bytes]], end: tuple[str, Any] | None, **sampling: Any
) -> tuple[ChoiceAssembler, list[TextDelta]]:
    """Pushes one event a step; the last one carries the end, and the end token if it is one."""
    assembler = ChoiceAssembler(tokenizer, SamplingParams(**sampling))
    deltas = []
    for place, tokens in enumerate(steps):
        ids = token_ids(SCRIPT, tokens)
        is_last = place == len(steps) - 1 and end is not None
        if is_last and end == END:
            ids.append(END_TOKEN_ID)
        reason, why = end if is_last and end else (None, None)
        logprobs = None
        if sampling.get("logprobs") is not None:
            logprobs = [wire.TokenLogprobs(-0.5, [7], [-1.0]) for _ in ids]
        deltas.append(assembler.push(wire.TokenEvent("r", 0, ids, logprobs, reason, why)))
    return assembler, [delta for delta in deltas if delta is not None]


@pytest.mark.parametrize(
    ("steps", "end", "sampling", "text", "num_tokens", "num_overshoot", "finish"),
    [
        # No stop string: all text, the end token counts and has no text.
        ([[b"a", b"b"], [b"c"]], END, {}, "abc", 4, 0, END),
        ([[b"a"], []], END, {}, "a", 2, 0, END),
        ([[b"a"]], ("length", None), {}, "a", 1, 0, ("length", None)),
        ([[b"a"], []], ("abort", "timeout"), {}, "a", 1, 0, ("abort", "timeout")),
        # The end token is special: asking for the stop in the output shows it only if special tokens are shown.
        ([[b"a"]], END, {"include_stop_str_in_output": True}, "a", 2, 0, END),
        (
            [[b"a"]],
            END,
            {"include_stop_str_in_output": True, "skip_special_tokens": False},
            "a<|end|>",
            2,
            0,
            END,
        ),
        ([[b"a"]], END, {"skip_special_tokens": False}, "a", 2, 0, END),
        # The last token of a grammar is text; an end token, and one of stop_token_ids, behind it is none.
        ([[b"a"], [b"b", b"]"]], ("stop", None), CONSTRAINED, "ab]", 3, 0, ("stop", None)),
        ([[b"a"]], END, CONSTRAINED, "a", 2, 0, END),
        ([[b"a"], [b"b"]], ("stop", 98), CONSTRAINED | {"stop_token_ids": [98]}, "a", 2, 0, ("stop", 98)),
        # One of stop_token_ids, b: it counts, its text is left out unless asked for.
        ([[b"a"], [b"b"]], ("stop", 98), {"stop_token_ids": [98]}, "a", 2, 0, ("stop", 98)),
        (
            [[b"a"], [b"b"]],
            ("stop", 98),
            {"stop_token_ids": [98], "include_stop_str_in_output": True},
            "ab",
            2,
            0,
            ("stop", 98),
        ),
        # A stop string inside and across tokens; what follows in the same and in later events is overshoot.
        ([[b"a"], [b",b"], [b",cd"]], None, {"stop": ("b,c",)}, "a,", 3, 0, ("stop", "b,c")),
        ([[b"a", b",b", b",cd", b"x"], [b"y"]], None, {"stop": ("b,c",)}, "a,", 3, 2, ("stop", "b,c")),
        ([[b"a", b",b", b",cd", b"x"]], END, {"stop": ("b,c",)}, "a,", 3, 2, ("stop", "b,c")),
        (
            [[b"a"], [b",b"], [b",cd"]],
            None,
            {"stop": ("b,c",), "include_stop_str_in_output": True},
            "a,b,c",
            3,
            0,
            ("stop", "b,c"),
        ),
        # The beginning of a stop string is held back, and released at the end.
        ([[b"a"], [b",b"]], END, {"stop": ("b,c",)}, "a,b", 3, 0, END),
        # Before min_tokens no stop string counts.
        ([[b"s"], [b"s"], [b"s"]], None, {"stop": ("s",), "min_tokens": 2, "max_tokens": 9}, "ss", 3, 0, ("stop", "s")),
        # A character over four bytes and two tokens, stopped at.
        ([[b"\xf0\x9f"], [b"\x91\x8b"], [b"x"]], None, {"stop": ("👋",)}, "", 2, 1, ("stop", "👋")),
        # An incomplete tail is flushed once.
        ([[b"a"], [b"\xf0\x9f"]], ("length", None), {}, "a�", 2, 0, ("length", None)),
        # A stop string that only the flush completes.
        ([[b"a"], [b"\xf0\x9f"]], ("length", None), {"stop": ("�",)}, "a", 2, 0, ("stop", "�")),
    ],
)
def test_text_counts_and_end(
    tokenizer: Tokenizer,
    steps: list[list[bytes]],
    end: Any,
    sampling: dict[str, Any],
    text: str,
    num_tokens: int,
    num_overshoot: int,
    finish: tuple[str, Any],
) -> None:
    assembler, deltas = play(tokenizer, steps, end, **sampling)
    assert join(deltas) == text
    assert (assembler.num_tokens, assembler.num_overshoot) == (num_tokens, num_overshoot)
    ends = [(delta.finish_reason, delta.stop_reason) for delta in deltas if delta.finish_reason is not None]
    assert ends == [finish]
    assert deltas[-1].finish_reason is not None
    assert sum(len(delta.token_ids) for delta in deltas) == num_tokens


def test_no_delta_holds_a_part_of_a_character(tokenizer: Tokenizer) -> None:
    _, deltas = play(tokenizer, [[b"\xf0\x9f"], [b"\x91\x8b"], []], END)
    assert [delta.text for delta in deltas] == ["", "👋", ""]


def test_bytes_of_the_logprobs_join_to_the_text(tokenizer: Tokenizer) -> None:
    _, deltas = play(tokenizer, [[b"\xf0\x9f"], [b"\x91\x8b", b"!"]], END, logprobs=1)
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert b"".join(entry.chosen.bytes for entry in entries).decode() == join(deltas) == "👋!"
    assert [entry.chosen.bytes for entry in entries] == [b"\xf0\x9f", b"\x91\x8b", b"!", b""]
    assert [entry.chosen.token for entry in entries] == ["�", "��", "!", "<|end|>"]
    # An alternative is spelled on its own, and has its bytes although nobody chose it.
    assert [(entry.top[0].token_id, entry.top[0].bytes, entry.top[0].logprob) for entry in entries] == [
        (7, b"\x07", -1.0)
    ] * 4


def test_logprobs_end_with_the_token_that_completed_the_stop(tokenizer: Tokenizer) -> None:
    _, deltas = play(tokenizer, [[b"a", b",b", b",cd", b"x"]], None, stop=("b,c",), logprobs=0)
    assert [entry.chosen.token for delta in deltas for entry in delta.logprobs] == ["a", ",b", ",cd"]


def test_an_end_from_this_side_releases_what_was_held_back(tokenizer: Tokenizer) -> None:
    assembler, deltas = play(tokenizer, [[b"a"], [b"b"]], None, stop=("bc",))
    assert join(deltas) == "a"
    end = assembler.end("abort", "timeout")
    assert end == TextDelta(0, "b", finish_reason="abort", stop_reason="timeout")
    assert assembler.end("abort", "again") is None
    assert assembler.push(wire.TokenEvent("r", 0, [1, 2], None, "abort")) is None
    assert (assembler.num_tokens, assembler.num_overshoot) == (2, 2)


@given(
    text=st.text(st.sampled_from("ab👋é"), max_size=20),
    stop=st.sampled_from([(), ("ab",), ("👋a", "bb"), ("b",)]),
    cuts=st.lists(st.integers(1, 4), max_size=30),
    num_ids=st.integers(0, 40),
)
def test_however_the_tokens_come_the_answer_is_the_same(
    tokenizer: Tokenizer, text: str, stop: tuple[str, ...], cuts: list[int], num_ids: int
) -> None:
    """Computed = billed + overshoot, and the text is the one that a search in the whole finds."""
    ids = list(text.encode())[:num_ids]
    assembler, deltas = ChoiceAssembler(tokenizer, SamplingParams(stop=stop)), list[TextDelta]()
    rest = list(ids)
    for cut in cuts:
        event, rest = rest[:cut], rest[cut:]
        deltas += filter(None, [assembler.push(wire.TokenEvent("r", 0, event))])
    deltas += filter(None, [assembler.push(wire.TokenEvent("r", 0, rest, None, "length"))])
    whole = bytes(ids).decode(errors="replace")
    ends = [(whole.find(one) + len(one), -len(one), one) for one in stop if one in whole]
    expected = whole if not ends else whole[: whole.find(min(ends)[2])]
    assert join(deltas) == expected
    assert assembler.num_tokens + assembler.num_overshoot == len(ids)
    assert [delta.finish_reason is not None for delta in deltas].count(True) == 1
