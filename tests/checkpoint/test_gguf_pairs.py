"""Pairs for RoBERTa's and XLM-RoBERTa's rerankers in GGUF files: transformers' ids, transformers' scores.

The tokenizers are transformers' classes over small vocabularies; what frames a text is written by llama.cpp's own
reader of their files (gguf.SpecialVocab).
"""

import functools
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tests.checkpoint.test_gguf_encoders import with_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from headway import LLM
from headway.checkpoint.checkpoint import open_checkpoint
from headway.text.tokenizer import make_tokenizer
from oracles import convert_by_llama_cpp
from parity.encoders import reference_score, save_encoder

TEXTS = ["The cat sat on the mat.", "A dog ran to the store: 42!", "hello world, hello", "small kitten"]
VOCAB = 400
CONTROL, NORMAL, UNKNOWN, UNUSED = 3, 1, 2, 5
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def make_roberta() -> Any:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [*SPECIAL, "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(TEXTS * 5, trainer)
    made = json.loads(trained.to_str())["model"]
    return transformers.RobertaTokenizer(vocab=made["vocab"], merges=[tuple(merge) for merge in made["merges"]])


def make_xlm_roberta() -> Any:
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(TEXTS * 5, trainer)
    found = json.loads(trained.to_str())["model"]["vocab"]
    pieces = [(text, 0.0) for text in SPECIAL] + [(text, score) for text, score in found if text not in SPECIAL]
    return transformers.XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)])


MODELS = {"roberta-reranker": make_roberta, "xlm-roberta-reranker": make_xlm_roberta}


def write_tokenizer(library: Any, folder: Path, has_sep_key: bool, writer: gguf.GGUFWriter) -> None:
    """As the converter does for these two (conversion/bert.py)."""
    library.save_pretrained(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = [*library.convert_ids_to_tokens(range(len(library))), *(f"[PAD{i}]" for i in range(len(library), VOCAB))]
    kinds = {library.unk_token: UNKNOWN} | dict.fromkeys(set(library.all_special_tokens) - {library.unk_token}, CONTROL)
    is_unigram = model["type"] == "Unigram"
    writer.add_tokenizer_model("t5" if is_unigram else "gpt2")
    writer.add_tokenizer_pre("default" if is_unigram else "roberta-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(text, UNUSED if text.startswith("[PAD") else NORMAL) for text in tokens])
    if is_unigram:
        writer.add_token_scores([score for _, score in model["vocab"]] + [-10000.0] * (VOCAB - len(library)))
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
    special = gguf.SpecialVocab(folder, load_merges=not is_unigram, n_vocab=VOCAB)
    if not has_sep_key:
        del special.add_special_token["sep"]
    special.add_to_gguf(writer)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pairs")
    torch.set_num_threads(1)
    for name in MODELS:
        save_encoder(root / name, name, pooling=None, vocab_size=VOCAB)
    convert_by_llama_cpp([(root / name, root / f"{name}.gguf", False) for name in MODELS])
    return root


@pytest.mark.parametrize("has_sep_key", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_pairs_of_texts_have_transformers_ids_and_scores(
    root: Path, tmp_path: Path, name: str, has_sep_key: bool
) -> None:
    library = MODELS[name]()
    write = functools.partial(write_tokenizer, library, tmp_path, has_sep_key)
    path = with_tokenizer(root / f"{name}.gguf", tmp_path / "model.gguf", write)
    tokenizer = make_tokenizer(open_checkpoint(path).text)
    frame = tokenizer.pair
    assert frame is not None
    model = save_encoder(tmp_path / "again", name, pooling=None, vocab_size=VOCAB)
    wanted = []
    for first, second in zip(TEXTS, TEXTS[::-1], strict=True):
        ids = library(first, second)["input_ids"]
        cut = [tokenizer.encode(text, add_special_tokens=False) for text in (first, second)]
        assert [*frame.prefix, *cut[0], *frame.middle, *cut[1], *frame.suffix] == ids
        assert tokenizer.encode(first) == library(first)["input_ids"]
        wanted.append(reference_score(model, ids, [0] * len(ids)))
    assert len({round(score, 3) for score in wanted}) > 1
    with LLM(str(path), threads=1, executor="torch", dtype="float32") as llm:
        made = [output.score for output in llm.score(TEXTS, TEXTS[::-1])]
    np.testing.assert_allclose(made, wanted, atol=1e-5, rtol=0)
