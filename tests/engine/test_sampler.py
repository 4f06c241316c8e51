"""The sampler against a plain float64 reference written here, against transformers' processors, and at its edges."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import headway_wire as wire
from headway.engine.sampler import Sampled, Sampler
from headway.errors import InvariantBroken

NUM_ROWS = 24
EPSILON = 1e-6
"""Of probability: how near to a border a draw may fall to either side of it (float32 sums against float64)."""


def make_sampler(vocab_size: int, *, num_rows: int = NUM_ROWS, max_model_len: int = 64, threads: int = 1) -> Sampler:
    return Sampler(max_num_seqs=num_rows, vocab_size=vocab_size, max_model_len=max_model_len, threads=threads)


def make_logits(num_rows: int, vocab_size: int, *, spread: float = 4.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((num_rows, vocab_size)) * spread).astype(np.float32)


def sample_rows(sampler: Sampler, logits: np.ndarray, num_tokens: int = 0) -> Sampled:
    n = len(logits)
    return sampler.sample(logits, np.arange(n, dtype=np.int32), np.full(n, num_tokens, dtype=np.int32))


def sample_one(logits: list[float], tokens: list[int] | None = None, num_prompt: int = 0, **fields: Any) -> Sampled:
    """One row over a small vocabulary; `tokens` are prompt and output so far."""
    tokens = tokens or []
    sampler = make_sampler(len(logits), num_rows=1)
    sampler.token_ids[0, : len(tokens)] = tokens
    end_token_ids = fields.pop("end_token_ids", ())
    sampling = wire.Sampling(**({"temperature": 0} | fields))
    sampler.set_row(0, sampling, seed=1, choice=0, end_token_ids=end_token_ids, num_prompt_tokens=num_prompt)
    return sample_rows(sampler, np.array([logits], dtype=np.float32), len(tokens))


def noise(seed: int, choice: int, position: int) -> float:
    """numpy's Philox counts up before it draws, hence position - 1."""
    key = seed % 2**64 | choice << 64
    bits = np.random.Philox(key=key, counter=(position - 1) % 2**256).random_raw()
    return (int(bits) >> 11) * 2.0**-53


def reference_logits(logits: np.ndarray, sampling: wire.Sampling, prompt: list[int], output: list[int]) -> np.ndarray:
    x = logits.astype(np.float64)
    width = len(x)
    for token, bias in sampling.logit_bias.items():
        x[token] += bias
    for token in {t for t in prompt + output if 0 <= t < width}:
        x[token] = x[token] / sampling.repetition_penalty if x[token] > 0 else x[token] * sampling.repetition_penalty
    for token, count in Counter(t for t in output if 0 <= t < width).items():
        x[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return x


def reference_probabilities(x: np.ndarray, sampling: wire.Sampling) -> np.ndarray:
    p = np.exp((x - x.max()) / sampling.temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-x[i], i))
    kept = [i for i in order if p[i] >= sampling.min_p * p.max()]
    if sampling.top_k > 0:
        kept = kept[: sampling.top_k]
    total = p[kept].sum()
    before = np.concatenate([[0.0], np.cumsum(p[kept])[:-1]]) / total
    kept = [i for i, mass in zip(kept, before, strict=True) if mass < sampling.top_p]
    out = np.zeros_like(p)
    out[kept] = p[kept] / p[kept].sum()
    return out


def is_drawn(token: int, probabilities: np.ndarray, u: float) -> bool:
    """Whether u falls to `token` in the distribution function, or so near beside it that rounding may decide."""
    high = np.cumsum(probabilities)[token]
    low = high - probabilities[token]
    return bool(probabilities[token] > 0 and low - EPSILON <= u <= high + EPSILON)


WAYS = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 17},
    "top_k of one": {"top_k": 1},
    "top_k of all": {"top_k": 1003},
    "top_k over the vocabulary": {"top_k": 5000},
    "top_p": {"top_p": 0.9},
    "top_p tiny": {"top_p": 1e-9},
    "top_p nearly one": {"top_p": 0.999999},
    "min_p": {"min_p": 0.05},
    "min_p of one": {"min_p": 1.0},
    "top_k and top_p": {"top_k": 50, "top_p": 0.8},
    "min_p and top_p": {"min_p": 0.001, "top_p": 0.7},
    "everything": {"temperature": 1.5, "top_k": 200, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3,
                   "presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {5: 4.0, 1002: -3.0}},
    "repetition": {"repetition_penalty": 2.0},
    "repetition under one": {"repetition_penalty": 0.5},
    "presence and frequency": {"presence_penalty": 2.0, "frequency_penalty": -2.0},
    "bias": {"logit_bias": {0: 10.0, 700: 100.0, 701: 99.5}},
}  # fmt: skip


@pytest.mark.parametrize("fields", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
def test_every_draw_is_the_references(fields: dict[str, Any], spread: float) -> None:
    vocab_size, num_prompt, num_output = 1003, 9, 7
    sampling = wire.Sampling(**fields)
    sampler = make_sampler(vocab_size)
    logits = make_logits(NUM_ROWS, vocab_size, spread=spread)
    tokens = np.random.default_rng(1).integers(0, 40, (NUM_ROWS, num_prompt + num_output))
    tokens[:, 3] = vocab_size + 7  # an added token that has no logit
    sampler.token_ids[:, : tokens.shape[1]] = tokens
    for row in range(NUM_ROWS):
        sampler.set_row(row, sampling, seed=row - 5, choice=row % 3, end_token_ids=(), num_prompt_tokens=num_prompt)
    sampled = sample_rows(sampler, logits, tokens.shape[1])
    assert sampled.is_finite.all()
    for row, token in enumerate(sampled.token_ids):
        prompt, output = tokens[row, :num_prompt].tolist(), tokens[row, num_prompt:].tolist()
        probabilities = reference_probabilities(reference_logits(logits[row], sampling, prompt, output), sampling)
        assert is_drawn(token, probabilities, noise(row - 5, row % 3, num_output)), f"row {row}: {token}"


@pytest.mark.parametrize("fields", [f for f in WAYS.values() if "temperature" not in f])
def test_greedy_is_the_largest_of_the_penalised_logits(fields: dict[str, Any]) -> None:
    sampling = wire.Sampling(**(fields | {"temperature": 0}))
    sampler = make_sampler(1003)
    logits = make_logits(NUM_ROWS, 1003)
    sampler.token_ids[:, :20] = tokens = np.argsort(-logits, axis=1)[:, :20]
    for row in range(NUM_ROWS):
        sampler.set_row(row, sampling, seed=0, choice=0, end_token_ids=(), num_prompt_tokens=10)
    sampled = sample_rows(sampler, logits, 20)
    for row, token in enumerate(sampled.token_ids):
        x = reference_logits(logits[row], sampling, tokens[row, :10].tolist(), tokens[row, 10:].tolist())
        assert x[token] == pytest.approx(x.max(), abs=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.02},
        {"temperature": 1.3, "top_k": 60, "top_p": 0.85},
        {"top_k": 60, "min_p": 0.05},
        {"repetition_penalty": 1.4, "temperature": 0.9, "top_p": 0.95},
    ],
)
def test_draws_fall_where_transformers_warpers_put_them(fields: dict[str, Any]) -> None:
    import torch
    from transformers import generation

    torch.set_num_threads(1)
    sampling = wire.Sampling(**fields)
    vocab_size = 2000
    logits = make_logits(NUM_ROWS, vocab_size, spread=3.0, seed=7)
    tokens = np.random.default_rng(2).integers(0, vocab_size, (NUM_ROWS, 12))
    warpers = [
        generation.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        generation.TemperatureLogitsWarper(sampling.temperature),
        generation.TopKLogitsWarper(sampling.top_k or vocab_size),
        generation.TopPLogitsWarper(sampling.top_p),
        generation.MinPLogitsWarper(sampling.min_p),
    ]
    scores = torch.from_numpy(logits.astype(np.float64))
    for warper in warpers:
        scores = warper(torch.from_numpy(tokens), scores)
    right = torch.softmax(scores, dim=-1).numpy()
    sampler = make_sampler(vocab_size)
    sampler.token_ids[:, :12] = tokens
    for row in range(NUM_ROWS):
        sampler.set_row(row, sampling, seed=row, choice=0, end_token_ids=(), num_prompt_tokens=12)
    sampled = sample_rows(sampler, logits, 12)
    for row, token in enumerate(sampled.token_ids):
        assert is_drawn(token, right[row], noise(row, 0, 0)), f"row {row}: {token}"


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], dtype=np.float32))
    num_draws, rows = 8000, 1000
    sampler = make_sampler(5, num_rows=rows)
    counts = np.zeros(5)
    for round_ in range(num_draws // rows):
        for row in range(rows):
            seed = round_ * rows + row
            sampler.set_row(row, wire.Sampling(), seed=seed, choice=0, end_token_ids=(), num_prompt_tokens=0)
        counts += np.bincount(sample_rows(sampler, np.tile(logits, (rows, 1))).token_ids, minlength=5)
    expected = np.exp(logits) * num_draws
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 18.47  # the 99.9th percentile with 4 degrees of freedom


def test_noise_differs_by_seed_choice_and_position_and_by_nothing_else() -> None:
    """Over equal logits a token is the noise itself."""
    vocab_size = 1 << 16
    sampler = make_sampler(vocab_size, num_rows=4)
    seen = {}
    for seed in (0, 1, -1, 2**63 - 1):
        for choice in (0, 1):
            sampler.set_row(2, wire.Sampling(), seed=seed, choice=choice, end_token_ids=(), num_prompt_tokens=3)
            for num_tokens in (3, 4, 60):
                for _ in range(2):
                    logits = np.zeros((1, vocab_size), dtype=np.float32)
                    sampled = sampler.sample(logits, np.array([2], np.int32), np.array([num_tokens], np.int32))
                    seen[seed, choice, num_tokens - 3] = int(sampled.token_ids[0])
                assert seen[seed, choice, num_tokens - 3] == int(noise(seed, choice, num_tokens - 3) * vocab_size)
    assert len(set(seen.values())) == len(seen) == 24


@pytest.mark.parametrize(
    ("logits", "tokens", "num_prompt", "fields", "right"),
    [
        ([1, 3, 3, 2], [], 0, {}, 1),  # ties by the lower id
        ([0, 0, 0], [], 0, {}, 0),
        ([-math.inf, -5, -math.inf], [], 0, {}, 1),
        ([1, 2], [], 0, {"temperature": 1e-6}, 1),  # as good as greedy
        ([5, 4, 1], [0], 1, {"repetition_penalty": 2}, 1),  # 2.5, 4, 1
        ([-1, -1.5, -9], [0], 1, {"repetition_penalty": 2}, 1),  # -2, -1.5, -9
        ([5, 4, 1], [0, 0], 1, {"repetition_penalty": 1.2}, 0),  # once however often: 4.17, 4, 1
        ([5, 4, 1], [9, -3, 2**31 - 1], 1, {"repetition_penalty": 9}, 0),  # ids outside the width
        ([5, 4, 1], [], 0, {"repetition_penalty": 9, "frequency_penalty": 2}, 0),  # nothing said yet
        ([5, 4.5, 1], [0, 0, 0], 3, {"frequency_penalty": 2, "presence_penalty": 2}, 0),  # the prompt does not count
        ([5, 4.5, 1], [1, 0, 0], 1, {"frequency_penalty": 0.3}, 1),  # 4.4, 4.5, 1
        ([5, 4.5, 1], [1, 0, 0], 1, {"presence_penalty": 0.4}, 0),  # 4.6, 4.5, 1
        ([5, 4, 1], [], 0, {"logit_bias": {0: -100}}, 1),
        ([5, 4, 1], [], 0, {"logit_bias": {2: 100}}, 2),
        ([5, 4, 1], [], 0, {"logit_bias": {99: 100, -1: 100, 2**40: 100}}, 0),
        ([5, 4, 1], [7, 7], 1, {"min_tokens": 2, "end_token_ids": {0, 50, -1}}, 1),  # one output token so far
        ([5, 4, 1], [7, 7, 7], 1, {"min_tokens": 2, "end_token_ids": {0}}, 0),  # two
        ([3e38, 4, 1], [0], 1, {"repetition_penalty": 1e-3}, 0),  # over float32: still the largest
        ([2.0], [], 0, {"temperature": 1.0, "top_k": 5, "top_p": 0.1}, 0),  # a vocabulary of one
    ],
)
def test_small_rows_by_hand(
    logits: list[float], tokens: list[int], num_prompt: int, fields: dict[str, Any], right: int
) -> None:
    sampled = sample_one(logits, tokens, num_prompt, **fields)
    assert sampled.is_finite[0]
    assert sampled.token_ids[0] == right


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_marked_and_its_neighbours_are_not(temperature: float) -> None:
    logits = make_logits(6, 100)
    logits[1, 99] = math.nan
    logits[2, 0] = math.inf
    logits[3, :] = -math.inf
    logits[4, 50] = -math.nan
    sampler = make_sampler(100, num_rows=6)
    for row in range(6):
        sampling = wire.Sampling(temperature=temperature, logprobs=3)
        sampler.set_row(row, sampling, seed=0, choice=0, end_token_ids=(), num_prompt_tokens=0)
    sampled = sample_rows(sampler, logits)
    assert sampled.is_finite.tolist() == [True, False, False, False, False, True]
    assert np.isfinite(sampled.logprobs[[0, 5]]).all()
    assert (sampled.top_ids[1:5] == -1).all()


def test_a_row_with_every_token_banned_is_not_finite() -> None:
    assert not sample_one([1, 2], min_tokens=1, end_token_ids={0, 1}).is_finite[0]


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_logprobs_are_the_log_softmax_of_the_raw_logits(temperature: float) -> None:
    vocab_size, asked = 997, [None, 0, 1, 5, 20]
    logits = make_logits(5, vocab_size)
    logits[3, 10:20] = logits[3].max() + 1  # ties: by the lower id
    sampler = make_sampler(vocab_size, num_rows=5)
    for row, logprobs in enumerate(asked):
        sampling = wire.Sampling(temperature=temperature, logprobs=logprobs, logit_bias={3: 50.0}, top_k=2)
        sampler.set_row(row, sampling, seed=0, choice=0, end_token_ids=(), num_prompt_tokens=0)
    sampled = sample_rows(sampler, logits)
    assert sampled.top_ids.shape == sampled.top_logprobs.shape == (5, 20)
    assert sampled.top_ids[3, :5].tolist() == [10, 11, 12, 13, 14]
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    exact -= logits.max(axis=1, keepdims=True)
    assert math.isnan(sampled.logprobs[0])
    for row, logprobs in enumerate(asked):
        if logprobs is None:
            continue
        assert sampled.logprobs[row] == pytest.approx(exact[row, sampled.token_ids[row]], abs=2e-6)
        assert sampled.top_ids[row, :logprobs].tolist() == np.argsort(-exact[row], kind="stable")[:logprobs].tolist()
        assert sampled.top_logprobs[row, :logprobs] == pytest.approx(np.sort(exact[row])[::-1][:logprobs], abs=2e-6)
        assert (sampled.top_ids[row, logprobs:] == -1).all()


def test_more_logprobs_than_tokens_are_padded() -> None:
    sampled = sample_one([0.0, 0.0], logprobs=4)
    assert sampled.top_ids[0].tolist() == [0, 1, -1, -1]
    assert sampled.top_logprobs[0].tolist() == pytest.approx([math.log(0.5)] * 2 + [-math.inf] * 2)


def test_an_empty_batch_gives_empty_arrays() -> None:
    sampled = sample_rows(make_sampler(10), np.empty((0, 10), dtype=np.float32))
    assert sampled.token_ids.shape == (0,)
    assert sampled.top_ids.shape == (0, 0)


@pytest.mark.parametrize(
    ("shape", "rows", "num_tokens"),
    [((1, 10), [24], [0]), ((1, 10), [-1], [0]), ((1, 10), [0], [65]), ((1, 10), [0], [-1]), ((1, 9), [0], [0]),
     ((2, 10), [0], [0]), ((1, 10), [0], [0, 0])],
)  # fmt: skip
def test_impossible_arrays_are_refused(shape: tuple[int, int], rows: list[int], num_tokens: list[int]) -> None:
    with pytest.raises(InvariantBroken):
        make_sampler(10).sample(np.zeros(shape, np.float32), np.array(rows, np.int32), np.array(num_tokens, np.int32))


def test_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="24"):
        make_sampler(10).set_row(24, wire.Sampling(), seed=0, choice=0, end_token_ids=(), num_prompt_tokens=0)
