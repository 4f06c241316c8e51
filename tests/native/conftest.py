"""A batch of rows that asks for everything at once, over one row the ways differ, in a vocabulary no multiple of 16."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import headway_wire as wire
from headway.engine.sampler import Sampled, Sampler

VOCAB_SIZE = 5003
NUM_ROWS = 48
MAX_MODEL_LEN = 96


@dataclass(frozen=True)
class Batch:
    """Rows of logits, tokens and settings; any of them can be sampled in any company."""

    logits: np.ndarray  # [NUM_ROWS, VOCAB_SIZE]
    token_ids: np.ndarray  # [NUM_ROWS, MAX_MODEL_LEN]
    num_tokens: np.ndarray  # [NUM_ROWS]
    sampling: list[wire.Sampling]

    def sample(self, members: list[int], *, threads: int, row_of: Callable[[int], int] = int) -> Sampled:
        """Samples `members` in this order in a new sampler, member m in the matrix row row_of(m)."""
        sampler = Sampler(max_num_seqs=NUM_ROWS, vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN, threads=threads)
        for m in members:
            sampler.token_ids[row_of(m)] = self.token_ids[m]
            sampler.set_row(
                row_of(m), self.sampling[m], seed=m, choice=m % 3, end_token_ids={2, 3}, num_prompt_tokens=20
            )
        rows = np.array([row_of(m) for m in members], dtype=np.int32)
        return sampler.sample(self.logits[members], rows, self.num_tokens[members])


def make_sampling(i: int) -> wire.Sampling:
    return wire.Sampling(
        temperature=(0.0, 0.7, 1.0, 1.8)[i % 4],
        top_p=(1.0, 0.9, 0.5)[i % 3],
        top_k=(0, 40, 1)[i // 3 % 3],
        min_p=(0.0, 0.02)[i // 5 % 2],
        repetition_penalty=(1.0, 1.3)[i // 2 % 2],
        presence_penalty=(0.0, 0.5)[i // 7 % 2],
        frequency_penalty=(0.0, -0.2)[i // 11 % 2],
        logit_bias={7: 3.0} if i % 5 == 0 else {},
        min_tokens=30 if i % 2 else 0,
        logprobs=(None, 0, 3, 20)[i // 4 % 4],
    )


@pytest.fixture
def batch() -> Batch:
    random = np.random.default_rng(11)
    logits = random.standard_normal((NUM_ROWS, VOCAB_SIZE)) * random.choice([0.0, 0.1, 1.0, 5.0], (NUM_ROWS, 1))
    logits[::3] = np.round(logits[::3])  # many equal values
    logits[::7, ::2] = -np.inf
    logits[5, 17] = np.nan
    return Batch(
        logits=logits.astype(np.float32),
        token_ids=random.integers(0, VOCAB_SIZE, (NUM_ROWS, MAX_MODEL_LEN)).astype(np.int32),
        num_tokens=random.integers(20, MAX_MODEL_LEN, NUM_ROWS).astype(np.int32),
        sampling=[make_sampling(i) for i in range(NUM_ROWS)],
    )
