"""Rows whose tokens a bit mask bounds, and rows with tokens that are given: against logits masked by hand."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

import headway_wire as wire
from headway.engine.sampler import Sampled, Sampler
from headway.errors import InvariantBroken

VOCAB = 301  # no multiple of 32
NUM_ROWS = 6
PROMPT, OUTPUT = [7, 8, 9, 7], [1, 2, 3, 1, 2]
NUM_TOKENS = len(PROMPT + OUTPUT)
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.3, "top_k": 20, "logprobs": 3},
    {"temperature": 0.8, "top_p": 0.7, "min_p": 0.01},
    {"temperature": 1.0, "logit_bias": {5: 6.0, 11: -3.0}, "repetition_penalty": 1.2, "presence_penalty": 0.5},
]


def make_logits() -> np.ndarray:
    return (np.random.default_rng(3).standard_normal((NUM_ROWS, VOCAB)) * 3).astype(np.float32)


def make_sampler(**fields: Any) -> Sampler:
    sampler = Sampler(max_num_seqs=NUM_ROWS, vocab_size=VOCAB, max_model_len=32, threads=2)
    sampler.token_ids[:, :NUM_TOKENS] = PROMPT + OUTPUT
    for row in range(NUM_ROWS):
        sampler.set_row(
            row, wire.Sampling(**fields), seed=row, choice=0, end_token_ids=(), num_prompt_tokens=len(PROMPT)
        )
    return sampler


def draw(sampler: Sampler, logits: np.ndarray, num_tokens: int = NUM_TOKENS) -> Sampled:
    rows = np.arange(NUM_ROWS, dtype=np.int32)
    return sampler.sample(logits, rows, np.full(NUM_ROWS, num_tokens, np.int32))


def write_mask(sampler: Sampler, row: int, allowed: np.ndarray) -> None:
    """Bit i % 32 of word i / 32, as numpy packs them."""
    bits = np.zeros(sampler.masks.shape[1] * 32, np.uint8)
    bits[:VOCAB] = allowed
    sampler.masks[row] = np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_chooses_what_is_chosen_where_the_rest_is_minus_infinity(way: dict[str, Any]) -> None:
    allowed = np.random.default_rng(1).random((NUM_ROWS, VOCAB)) < 0.1
    allowed[:, 300] = True
    masked_rows = [0, 2, 3, 5]
    logits = make_logits()
    by_hand = logits.copy()
    sampler = make_sampler(**way)
    for row in masked_rows:
        by_hand[row, ~allowed[row]] = -np.inf
        write_mask(sampler, row, allowed[row])
        sampler.set_masked(row, True)
    ours, wanted = draw(sampler, logits), draw(make_sampler(**way), by_hand)
    assert ours.token_ids.tolist() == wanted.token_ids.tolist()
    assert all(allowed[row, ours.token_ids[row]] for row in masked_rows)
    if "logprobs" in way:  # they are of the logits as the model gave them
        raw = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
        np.testing.assert_allclose(ours.logprobs, raw[range(NUM_ROWS), ours.token_ids], atol=1e-5)
    for row in masked_rows:
        sampler.set_masked(row, False)
    assert draw(sampler, logits).token_ids.tolist() == draw(make_sampler(**way), logits).token_ids.tolist()


def test_a_mask_and_allowed_tokens_leave_what_both_allow_and_a_new_sequence_has_no_mask() -> None:
    sampler, logits = make_sampler(temperature=0.0, allowed_token_ids=[4, 40, 300]), make_logits()
    allowed = np.zeros((2, VOCAB), bool)
    allowed[0, [40, 41]] = True
    for row in range(2):
        write_mask(sampler, row, allowed[row])
        sampler.set_masked(row, True)
    made = draw(sampler, logits)
    assert made.token_ids[0] == 40
    assert made.is_finite.tolist() == [True, False, True, True, True, True]
    sampler.set_row(1, wire.Sampling(temperature=0.0), seed=0, choice=0, end_token_ids=(), num_prompt_tokens=4)
    assert draw(sampler, logits).token_ids[1] == logits[1].argmax()


def test_given_tokens_are_scored_and_what_is_behind_them_is_drawn() -> None:
    logits = make_logits()
    sampler = make_sampler(temperature=0.0, logprobs=2)
    for row in range(3):
        sampler.set_given(row, NUM_TOKENS)
    write_mask(sampler, 0, np.zeros(VOCAB, bool))
    sampler.set_masked(0, True)
    raw = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    made = draw(sampler, logits, NUM_TOKENS - 2)
    given = OUTPUT[-2]
    assert made.token_ids.tolist() == [given] * 3 + logits[3:].argmax(1).tolist()
    np.testing.assert_allclose(made.logprobs[:3], raw[:3, given], atol=1e-5)
    np.testing.assert_array_equal(made.top_ids, np.argsort(-logits, axis=1, kind="stable")[:, :2])
    drawn = draw(sampler, logits)
    assert drawn.token_ids[1:].tolist() == logits[1:].argmax(1).tolist()
    assert not drawn.is_finite[0]


def test_a_masked_row_waits_for_its_mask_and_the_others_do_not() -> None:
    sampler, logits = make_sampler(temperature=0.0), make_logits()
    sampler.close_masks()
    assert draw(sampler, logits).token_ids.tolist() == logits.argmax(1).tolist()
    sampler.set_masked(2, True)
    made: list[Sampled] = []
    thread = threading.Thread(target=lambda: made.append(draw(sampler, logits)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    write_mask(sampler, 2, np.arange(VOCAB) == 123)
    sampler.open_masks()
    thread.join(10)
    assert made[0].token_ids[2] == 123


def test_rows_and_numbers_that_are_not_there_are_refused() -> None:
    sampler = make_sampler()
    for wrong in (
        lambda: sampler.set_masked(NUM_ROWS, True),
        lambda: sampler.set_given(-1, 0),
        lambda: sampler.set_given(0, 33),
    ):
        with pytest.raises(InvariantBroken, match=r"row is|num_given is"):
            wrong()
