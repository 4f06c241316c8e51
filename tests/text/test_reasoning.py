"""Reasoning told from the answer: whole, by character, and cut at every offset; and where an output begins."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.text.chat_template import ChatTemplate
from headway.text.reasoning import ReasoningState, ReasoningStyle, choose_reasoning
from headway.text.tokenizer import Tokenizer
from oracles import llama_cpp_sources

OPEN, CLOSED, UNOPENED = ReasoningState.OPEN, ReasoningState.CLOSED, ReasoningState.UNOPENED
STYLE = ReasoningStyle("qwen3", "<think>\n", frozenset())


def split(state: ReasoningState, pieces: list[str], *, is_cut: bool = False) -> tuple[str, str]:
    splitter = STYLE.make_splitter(state)
    found = [*(splitter.push(piece) for piece in pieces), splitter.end(is_cut)]
    return "".join(each.reasoning for each in found), "".join(each.text for each in found)


def split_anyhow(state: ReasoningState, output: str, *, is_cut: bool = False) -> tuple[str, str]:
    whole = split(state, [output], is_cut=is_cut)
    cuts = [list(output), *([output[:place], output[place:]] for place in range(1, len(output)))]
    for pieces in cuts:
        assert split(state, pieces, is_cut=is_cut) == whole, pieces
    return whole


@pytest.mark.parametrize(
    ("state", "output", "reasoning", "text"),
    [
        (UNOPENED, "<think>\nWell,\n\nyes.\n</think>\n\nFine.\n", "Well,\n\nyes.", "Fine.\n"),
        (UNOPENED, "\n<think>a</think>b", "a", "b"),
        (UNOPENED, "No thought.</think>", "", "No thought.</think>"),
        (UNOPENED, "\n\nIndented <think>", "", "\n\nIndented <think>"),
        (UNOPENED, "<thin", "", "<thin"),
        (UNOPENED, "<think>", "", ""),
        (OPEN, "Well.\n</think>\n\nFine.", "Well.", "Fine."),
        (OPEN, "<think>\nonce more</think>Fine.", "once more", "Fine."),
        (OPEN, "\n\n</think>\n\n  Fine.", "", "  Fine."),
        (OPEN, "a < b </thin> c </ think></think><think>d</think>", "a < b </thin> c </ think>", "<think>d</think>"),
        (OPEN, "never ends\n", "never ends\n", ""),
        (CLOSED, "Fine. <think>a</think>\n", "", "Fine. <think>a</think>\n"),
        (CLOSED, "", "", ""),
    ],
)
def test_reasoning_and_text_are_told_apart_however_the_output_is_cut(
    state: ReasoningState, output: str, reasoning: str, text: str
) -> None:
    assert split_anyhow(state, output) == (reasoning, text)


@pytest.mark.parametrize("length", range(1, len("</think>")))
def test_half_an_end_tag_is_in_no_field_where_the_output_was_cut(length: int) -> None:
    half = "</think>"[:length]
    assert split_anyhow(OPEN, f"I was\n{half}", is_cut=True) == ("I was\n", "")
    assert split_anyhow(UNOPENED, f"<think>\nI was{half}", is_cut=True) == ("I was", "")
    # A model that stops there by itself has written it.
    assert split_anyhow(OPEN, f"I was{half}") == (f"I was{half}", "")


def test_what_is_known_is_given_at_once() -> None:
    splitter = STYLE.make_splitter(OPEN)
    assert splitter.push("Well") == ("Well", "")
    assert splitter.is_reasoning
    assert splitter.push("\n</th") == ("", "")
    assert splitter.push("e end") == ("\n</the end", "")
    assert splitter.push("</think>\nF") == ("", "F")
    assert not splitter.is_reasoning
    assert splitter.push("ine </think>") == ("", "ine </think>")


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "\n", " ", "é", "text"]), max_size=12),
    st.sampled_from(list(ReasoningState)),
    st.booleans(),
)
def test_nothing_but_tags_and_line_breaks_around_them_is_lost(
    output: list[str], state: ReasoningState, is_cut: bool
) -> None:
    text = "".join(output)
    found = split(state, [text], is_cut=is_cut)
    assert split(state, list(text), is_cut=is_cut) == split(state, output, is_cut=is_cut) == found
    if not is_cut:
        lost = len(text) - len(found[0]) - len(found[1])
        tags = text.count("<think>") + text.count("</think>")
        assert lost <= tags * len("</think>") + sum(text.count(each) for each in ("\n", " "))
        assert "".join(found).count("é") == text.count("é")


def style_of(name: str, tokenizer: Tokenizer) -> tuple[ReasoningStyle, ChatTemplate]:
    template = (llama_cpp_sources() / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    style = choose_reasoning(template, tokenizer)
    assert style is not None
    return style, ChatTemplate(template)


@pytest.mark.parametrize(
    ("name", "switches", "state"),
    [
        ("Qwen-Qwen3-0.6B", {}, UNOPENED),
        ("Qwen-Qwen3-0.6B", {"enable_thinking": True}, UNOPENED),
        ("Qwen-Qwen3-0.6B", {"enable_thinking": False}, CLOSED),
        ("Qwen3.5-4B", {}, OPEN),
        ("Qwen3.5-4B", {"enable_thinking": False}, CLOSED),
        ("Qwen-QwQ-32B", {"enable_thinking": True}, OPEN),
        ("HuggingFaceTB-SmolLM3-3B", {}, UNOPENED),
        ("HuggingFaceTB-SmolLM3-3B", {"enable_thinking": False}, CLOSED),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"enable_thinking": True}, OPEN),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"enable_thinking": False}, CLOSED),
        ("Bielik-11B-v3.0-Instruct", {}, UNOPENED),
        ("Bielik-11B-v3.0-Instruct", {"enable_thinking": True}, OPEN),
        ("GLM-4.6", {"enable_thinking": False}, CLOSED),
        ("MiniMax-M2", {}, OPEN),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", {}, OPEN),
        ("deepseek-ai-DeepSeek-V3.1", {"enable_thinking": True}, OPEN),
        ("deepseek-ai-DeepSeek-V3.1", {"enable_thinking": False}, CLOSED),
    ],
)
def test_the_rendered_prompt_says_where_the_output_begins(
    demo: Tokenizer, name: str, switches: dict[str, Any], state: ReasoningState
) -> None:
    style, template = style_of(name, demo)
    messages = [{"role": "user", "content": "Hi </think> <think>"}]
    assert style.state(template.render(messages, **switches).text) is state


def test_a_deepseek_template_that_opens_nothing_leaves_it_to_be_understood() -> None:
    style = ReasoningStyle("deepseek_r1", "", frozenset())
    assert style.state("<｜User｜>Hi<｜Assistant｜>") is OPEN
    assert style.state("<｜User｜>Hi<｜Assistant｜></think>") is CLOSED


@pytest.mark.parametrize(
    ("continued", "state"),
    [
        ("<think>\nWell", OPEN),
        ("<think>\nWell.\n</think>\n\nFi", CLOSED),
        ("Fine, and", CLOSED),
        ("", UNOPENED),
    ],
)
def test_a_message_that_is_continued_says_it_by_its_own_text(continued: str, state: ReasoningState) -> None:
    assert STYLE.state(f"<|im_start|>assistant\n{continued}", continued) is state


@pytest.mark.parametrize(
    ("name", "opening"),
    [
        # The template never opens a block: the model does.
        ("Qwen-Qwen3-0.6B", "<think>\n"),
        ("HuggingFaceTB-SmolLM3-3B", "<think>\n"),
        ("GLM-4.6", "<think>\n"),
        ("Kimi-K2-Thinking", "<think>\n"),
        # The template opens it where there shall be one.
        ("Qwen3.5-4B", ""),
        ("Bielik-11B-v3.0-Instruct", ""),
        ("MiniMax-M2", ""),
        ("deepseek-ai-DeepSeek-V3.1", ""),
        # Reasoning is an exception there, or the template does not know it.
        ("ibm-granite-granite-3.3-2B-Instruct", ""),
        ("LFM2.5-Instruct", ""),
    ],
)
def test_a_block_is_opened_for_models_that_open_it_themselves(demo: Tokenizer, name: str, opening: str) -> None:
    assert style_of(name, demo)[0].opening == opening
