"""A row's result depends on that row alone: the same bits whatever the company, the threads and the instruction set."""

import os
import threading
import warnings
from typing import Any

import numpy as np
import pytest

from headway import _native
from headway.engine.sampler import Sampled, Sampler
from headway.errors import InvalidConfig


def bits_of(sampled: Sampled, i: int) -> tuple[bytes, ...]:
    """All of row i, without the padding that follows what it asked for."""
    asked = sampled.top_ids[i] >= 0
    return (
        sampled.token_ids[i].tobytes(),
        sampled.is_finite[i].tobytes(),
        sampled.logprobs[i].tobytes(),
        sampled.top_ids[i][asked].tobytes(),
        sampled.top_logprobs[i][asked].tobytes(),
    )


def all_bits(sampled: Sampled) -> list[tuple[bytes, ...]]:
    return [bits_of(sampled, i) for i in range(len(sampled.token_ids))]


def test_the_batch_has_rows_of_every_kind(batch: Any) -> None:
    sampled = batch.sample(list(range(48)), threads=1)
    assert np.flatnonzero(~sampled.is_finite).tolist() == [5]
    assert len(set(sampled.token_ids.tolist())) > 20
    assert sampled.top_ids.shape[1] == 20


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_alone_is_the_same_as_in_a_batch(batch: Any, isa: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_ISA", isa)
    together = all_bits(batch.sample(list(range(48)), threads=threads))
    backwards = all_bits(batch.sample(list(range(47, -1, -1)), threads=threads, row_of=lambda m: 47 - m))
    assert backwards[::-1] == together
    for member in range(48):
        assert all_bits(batch.sample([member], threads=1, row_of=lambda _: 9)) == [together[member]]


def test_instruction_sets_and_threads_give_the_same_bits(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for isa in _native.available_isas():
        monkeypatch.setenv("HEADWAY_ISA", isa)
        results += [all_bits(batch.sample(list(range(48)), threads=threads)) for threads in (1, 2)]
    assert all(result == results[0] for result in results)


def test_an_instruction_set_can_be_forced_and_a_missing_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    available = _native.available_isas()
    assert available[0] == "plain"
    monkeypatch.delenv("HEADWAY_ISA", raising=False)
    assert _native.chosen_isa() == available[-1]
    for isa in available:
        monkeypatch.setenv("HEADWAY_ISA", isa)
        assert _native.chosen_isa() == isa
    for wrong in {"sse9", "AVX2", "avx512"} - set(available):
        monkeypatch.setenv("HEADWAY_ISA", wrong)
        with pytest.raises(ValueError, match=f"'{wrong}'.*plain"):
            _native.chosen_isa()
        with pytest.raises(InvalidConfig, match="HEADWAY_ISA"):
            Sampler(max_num_seqs=1, vocab_size=8, max_model_len=8, threads=1)


@pytest.mark.parametrize("start", [0, 1, 2**64 - 2])
def test_noise_is_numpys_philox(start: int) -> None:
    """numpy counts up before it draws."""
    key = [2**64 - 1, 12345]
    right = np.random.Philox(key=key[0] | key[1] << 64, counter=(start - 1) % 2**256).random_raw(4)
    assert _native.philox4x64([start, 0, 0, 0], key) == right.tolist()


def test_two_callers_at_once_do_not_disturb_each_other(batch: Any) -> None:
    sampler = Sampler(max_num_seqs=48, vocab_size=5003, max_model_len=96, threads=2)
    for m in range(48):
        sampler.token_ids[m] = batch.token_ids[m]
        sampler.set_row(m, batch.sampling[m], seed=m, choice=0, end_token_ids=(), num_prompt_tokens=20)
    rows = np.arange(48, dtype=np.int32)
    right = all_bits(sampler.sample(batch.logits, rows, batch.num_tokens))
    results: list[list[tuple[bytes, ...]]] = []

    def call() -> None:
        results.extend(all_bits(sampler.sample(batch.logits, rows, batch.num_tokens)) for _ in range(5))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [right] * 15


def test_a_forked_process_samples_without_the_threads_that_stayed_behind(batch: Any) -> None:
    sampler = Sampler(max_num_seqs=48, vocab_size=5003, max_model_len=96, threads=2)
    rows = np.arange(48, dtype=np.int32)
    right = sampler.sample(batch.logits, rows, batch.num_tokens).token_ids
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of just this
        child = os.fork()
    if child == 0:
        same = (sampler.sample(batch.logits, rows, batch.num_tokens).token_ids == right).all()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_arrays_of_another_type_or_layout_are_not_taken_by_copy() -> None:
    """A copy of an output would be filled and thrown away."""
    native = _native.Sampler(np.zeros((2, 8), np.int32), np.zeros((2, 1), np.int32), 16, 1)
    inputs = [np.zeros((2, 16), np.float32), np.arange(2, dtype=np.int32), np.zeros(2, np.int32)]
    outputs: list[Any] = [np.empty(2, np.int32), np.empty(2, bool), np.empty(2, np.float32)]
    tops: list[Any] = [np.empty((2, 0), np.int32), np.empty((2, 0), np.float32)]
    native.sample(*inputs, *outputs, *tops)
    for i, wrong in [(0, np.empty(2, np.int64)), (0, np.empty(4, np.int32)[::2]), (2, np.empty(2, np.float64))]:
        broken = [*outputs[:i], wrong, *outputs[i + 1 :]]
        with pytest.raises(TypeError):
            native.sample(*inputs, *broken, *tops)
    with pytest.raises(ValueError, match="shape"):
        native.sample(*inputs, np.empty(3, np.int32), *outputs[1:], *tops)
