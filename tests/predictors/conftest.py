"""A small random Llama on disk, as transformers saves it, and what transformers itself says greedily."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 300
END = 2


@dataclass(frozen=True)
class SmallModel:
    """The folder, and the oracle over the same weights."""

    path: Path
    oracle: LlamaForCausalLM

    def continuation(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
        """transformers' greedy output, the end token included."""
        output = self.oracle.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None if ignore_eos else END,
            pad_token_id=0,
        )
        return output[0, len(prompt) :].tolist()

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Log-softmax of the logits behind the last of these tokens."""
        with torch.inference_mode():
            return self.oracle(torch.tensor([list(token_ids)])).logits[0, -1].log_softmax(-1)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    """Two layers, grouped queries, untied; logits far enough apart that greedy choices are no matter of rounding."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=END,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    path = tmp_path_factory.mktemp("small_model")
    model.save_pretrained(path)
    alphabet = sorted(ByteLevel.alphabet())
    Tokenizer(BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[])).save(
        str(path / "tokenizer.json")
    )
    return SmallModel(path, model)


@pytest.fixture(scope="session")
def options() -> Callable[..., dict[str, object]]:
    """Load.options for the small model."""

    def make(**changed: object) -> dict[str, object]:
        defaults = {"threads": 1, "block_size": 4, "kv_cache_memory": 2**20, "dtype": "float32", "seed": 1}
        return {**defaults, "max_num_seqs": 4, "max_num_batched_tokens": 16, **changed}

    return make
