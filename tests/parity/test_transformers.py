"""The torch executor's logits are transformers' within 1e-4 in float32, whatever way the tokens came."""

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.executor.fuse import ALL_FUSIONS
from headway.executor.torch import TorchExecutor
from headway.model import make_program

TOLERANCE = 1e-4
RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 128, size=size).tolist() for size in (37, 1, 16, 23)]


def write_tokenizer(folder):
    """The smallest that a checkpoint may have: only ids matter here."""
    Tokenizer(BPE(vocab={"a": 0}, merges=[])).save(str(folder / "tokenizer.json"))


def test_a_whole_prompt_gives_transformers_logits(pair, sequences_of):
    ours = pair.executor().execute(sequences_of(1).step({0: PROMPTS[0]}))
    np.testing.assert_allclose(ours, pair.logits(PROMPTS[0]), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("chunk", [1, 3, 4, 16])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(pair, sequences_of, chunk):
    executor, sequences = pair.executor(), sequences_of(1)
    parts = [PROMPTS[0][at : at + chunk] for at in range(0, len(PROMPTS[0]), chunk)]
    ours = np.concatenate([executor.execute(sequences.step({0: part})).copy() for part in parts])
    np.testing.assert_allclose(ours, pair.logits(PROMPTS[0]), atol=TOLERANCE, rtol=0)


def test_a_step_that_mixes_prompts_chunks_and_decodes_gives_each_its_own_logits(pair, sequences_of):
    executor, sequences = pair.executor(), sequences_of(4)
    executor.execute(sequences.step({0: PROMPTS[0][:-1], 2: PROMPTS[2][:5]}))
    ours = executor.execute(
        sequences.step({0: PROMPTS[0][-1:], 1: PROMPTS[1], 2: PROMPTS[2][5:], 3: PROMPTS[3]}, all_logits=False)
    )
    wanted = np.stack([pair.logits(prompt)[-1] for prompt in PROMPTS])
    np.testing.assert_allclose(ours, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("lengths", [(8, 5, 6, 7), (16, 9, 12, 3), (2, 1, 2, 4)])
def test_fresh_prompts_of_unequal_lengths_do_not_see_past_their_ends(pair, sequences_of, lengths):
    prompts = [RNG.integers(0, 128, size=size).tolist() for size in lengths]
    ours = pair.executor().execute(sequences_of(len(prompts)).step(dict(enumerate(prompts))))
    wanted = np.concatenate([pair.logits(prompt) for prompt in prompts])
    np.testing.assert_allclose(ours, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("left_out", [(), *((name,) for name in ALL_FUSIONS), ALL_FUSIONS])
def test_each_fusion_can_be_left_out(pair, sequences_of, left_out):
    kept = tuple(name for name in ALL_FUSIONS if name not in left_out)
    ours = pair.executor(fusions=kept).execute(sequences_of(1).step({0: PROMPTS[3]}))
    np.testing.assert_allclose(ours, pair.logits(PROMPTS[3]), atol=TOLERANCE, rtol=0)


def test_a_folder_that_transformers_saved_gives_its_logits(pair, sequences_of, tmp_path):
    pair.model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    program = make_program(checkpoint.shape)
    kv = KVStore(program.caches, num_blocks=64, block_size=4, dtype="float32")
    executor = TorchExecutor(program, checkpoint.weights, kv, dtype="float32", threads=1)
    ours = executor.execute(sequences_of(1).step({0: PROMPTS[3]}))
    np.testing.assert_allclose(ours, pair.logits(PROMPTS[3]), atol=TOLERANCE, rtol=0)
    assert program == make_program(pair.shape)
