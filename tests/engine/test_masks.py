"""allowed_token_ids and bad_words in the native sampler: against logits masked by hand and transformers' processor,
alone and in a batch; and the log-probabilities of a prompt's own tokens."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import NoBadWordsLogitsProcessor

import headway_wire as wire
from headway.core.sampling import SamplingParams
from headway.engine.sampler import Sampled, Sampler
from headway.errors import InvalidRequest, InvariantBroken

VOCAB = 300
NUM_ROWS = 12
PROMPT, OUTPUT = [7, 8, 9, 7], [1, 2, 3, 1, 2]
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 0.8, "top_p": 0.7, "min_p": 0.01},
    {"temperature": 1.0, "logit_bias": {5: 6.0, 11: -3.0}, "repetition_penalty": 1.2, "presence_penalty": 0.5},
]


def make_logits(seed: int = 3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((NUM_ROWS, VOCAB)) * 3).astype(np.float32)


def make_sampler(sampling: list[wire.Sampling], prompt: list[int] = PROMPT, output: list[int] = OUTPUT) -> Sampler:
    sampler = Sampler(max_num_seqs=NUM_ROWS, vocab_size=VOCAB, max_model_len=32, threads=2)
    sampler.token_ids[:, : len(prompt) + len(output)] = prompt + output
    for row, each in enumerate(sampling):
        sampler.set_row(row, each, seed=row, choice=0, end_token_ids=(), num_prompt_tokens=len(prompt))
    return sampler


def draw(sampler: Sampler, logits: np.ndarray, rows: list[int], num_tokens: int = len(PROMPT + OUTPUT)) -> Sampled:
    at = np.array(rows, np.int32)
    return sampler.sample(logits, at, np.full(len(rows), num_tokens, np.int32))


@pytest.mark.parametrize("way", WAYS)
def test_masks_choose_what_is_chosen_where_the_rest_is_minus_infinity(way: dict[str, Any]) -> None:
    allowed = [5, 11, 12, 40, 41, 42, 43, 250, 299]
    bad = [[40], [2, 41], [1, 2, 42], [3, 2, 43], [9, 1, 2, 3, 1, 2, 250], [8, 12]]
    hidden = [token for token in range(VOCAB) if token not in allowed]
    # [40] is one token; [2, 41] and [1, 2, 42] go on from the output's end. The output does not end with 3 2 or 8, and
    # the 9 before it is the prompt's.
    hidden += [40, 41, 42]
    logits = make_logits()
    masked = logits.copy()
    masked[:, hidden] = -np.inf
    sampling = wire.Sampling(**way, allowed_token_ids=allowed, bad_token_ids=bad, logprobs=3)
    rows = list(range(NUM_ROWS))
    ours = draw(make_sampler([sampling] * NUM_ROWS), logits, rows)
    wanted = draw(make_sampler([wire.Sampling(**way)] * NUM_ROWS), masked, rows)
    assert ours.token_ids.tolist() == wanted.token_ids.tolist()
    assert set(ours.token_ids.tolist()) <= {5, 11, 12, 43, 250, 299}
    # Log-probabilities are of the logits as the model gave them.
    raw = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    np.testing.assert_allclose(ours.logprobs, raw[rows, ours.token_ids], atol=1e-5)
    np.testing.assert_array_equal(ours.top_ids, np.argsort(-logits, axis=1, kind="stable")[:, :3])


def test_bad_words_are_those_of_transformers() -> None:
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 6, size=size).tolist() for size in (1, 2, 2, 3, 3, 4, 5)]
    process = NoBadWordsLogitsProcessor(bad_words_ids=words, eos_token_id=None)
    num_banned = 0
    for seed in range(60):
        output = np.random.default_rng(seed).integers(0, 6, size=seed % 9).tolist()
        logits = make_logits(seed)[:1]
        logits[0, :6] += 20  # the words' own tokens are the likeliest
        wanted = process(torch.tensor([output or [0][:0]], dtype=torch.int64), torch.from_numpy(logits.copy()))
        sampler = make_sampler([wire.Sampling(temperature=0.0, bad_token_ids=words)], prompt=[], output=output)
        ours = draw(sampler, logits, [0], len(output))
        assert ours.token_ids.tolist() == [int(wanted.argmax())], output
        num_banned += int(wanted.argmax()) != int(logits.argmax())
    assert num_banned > 10


def test_a_row_with_masks_is_the_same_in_any_batch_and_changes_no_other() -> None:
    logits = make_logits()
    masks: list[dict[str, Any]] = [
        {"allowed_token_ids": [1, 2, 3]},
        {},
        {"bad_token_ids": [[int(logits[2].argmax())]]},
        {"allowed_token_ids": list(range(0, VOCAB, 2)), "bad_token_ids": [[2, 4], [6]]},
    ]
    sampling = [wire.Sampling(temperature=1.0, logprobs=2, **masks[row % 4]) for row in range(NUM_ROWS)]
    sampler = make_sampler(sampling)
    together = draw(sampler, logits, list(range(NUM_ROWS)))
    for row in range(NUM_ROWS):
        alone = draw(sampler, logits[row : row + 1], [row])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == together.logprobs[row]


def test_masks_that_leave_nothing_are_told_and_ids_outside_the_vocabulary_are_nothing() -> None:
    sampling = [
        wire.Sampling(temperature=0.0, allowed_token_ids=[4], bad_token_ids=[[2, 4]]),
        wire.Sampling(temperature=0.0, allowed_token_ids=[4, VOCAB, -1], bad_token_ids=[[VOCAB + 5], [2, -3]]),
    ]
    made = draw(make_sampler(sampling), make_logits()[:2], [0, 1])
    assert made.is_finite.tolist() == [False, True]
    assert made.token_ids.tolist() == [0, 4]


def test_a_prompts_own_tokens_have_the_log_softmax_of_the_raw_logits_whatever_the_sampling() -> None:
    prompt = [5, 250, 11, 11, 0, 299, 3, 3]
    logits = make_logits()[: len(prompt) - 1]
    hard = {"temperature": 2.0, "allowed_token_ids": [1], "repetition_penalty": 2.0, "logit_bias": {11: 50.0}}
    sampler = make_sampler([wire.Sampling(prompt_logprobs=4, logprobs=1, seed=1, **hard)], prompt=prompt, output=[])
    positions = np.arange(1, len(prompt), dtype=np.int32)
    made = sampler.sample(logits, np.zeros(len(positions), np.int32), positions)
    assert made.token_ids.tolist() == prompt[1:]
    raw = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    np.testing.assert_allclose(made.logprobs, raw[np.arange(len(raw)), prompt[1:]], atol=1e-5)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(made.top_ids, order)
    np.testing.assert_allclose(made.top_logprobs, np.take_along_axis(raw, order, 1), atol=1e-5)
    # Behind the prompt it is sampled, with as many as were asked for there.
    behind = draw(sampler, logits[:1], [0], len(prompt))
    assert behind.token_ids.tolist() == [1]
    assert behind.top_ids[0].tolist() == [order[0][0], -1, -1, -1]


def test_a_prompt_that_does_not_fit_the_matrix_and_a_row_of_nan_are_told() -> None:
    sampler = Sampler(max_num_seqs=1, vocab_size=VOCAB, max_model_len=4, threads=1)
    sampler.set_row(0, wire.Sampling(prompt_logprobs=0), seed=0, choice=0, end_token_ids=(), num_prompt_tokens=6)
    with pytest.raises(InvariantBroken, match="longer than the token matrix"):
        draw(sampler, make_logits()[:1], [0], 4)
    logits = make_logits()[:1]
    logits[0, 7] = np.nan
    assert not draw(sampler, logits, [0], 2).is_finite[0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": [4, 5], "bad_token_ids": [[5], [4], [6]]}, "no token is left"),
        ({"bad_token_ids": [[1], []]}, "empty list"),
        ({"bad_words": ["x"] * 129}, "129 texts, at most 128"),
        ({"bad_words": ["  "]}, "not space alone"),
        ({"bad_words": ["x" * 257]}, "257 characters; 1 to 256"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21; it must be at least 0 and at most 20"),
        ({"max_length": 1}, "max_length is 1; it must be at least 2"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; it must be at least 1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens is -2"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        SamplingParams(**fields)
