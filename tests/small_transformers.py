"""Small random classifiers of transformers on disk, with a tokenizer of a few words."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

ALL_WORDS = "the cat sat on a mat in paris with anna smith this example is about up down sport politics . ##s ##ing"
WORDS = ALL_WORDS.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write_tokenizer(folder: Path) -> None:
    """BERT's kind; texts of at most 24 tokens."""
    tokenizer = Tokenizer(WordPiece({token: place for place, token in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=24,
    ).save_pretrained(folder)


def write_classifier(folder: Path, kind: str, labels: list[str], **changed: Any) -> None:
    """`kind` is transformers' class; `changed` are fields of its BertConfig."""
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.5,
        id2label=dict(enumerate(labels)),
        label2id={label: place for place, label in enumerate(labels)},
        **changed,
    )
    getattr(transformers, kind)(config).eval().save_pretrained(folder)
    write_tokenizer(folder)
