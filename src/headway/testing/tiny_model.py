"""A Llama worked by hand: it goes on with the alphabet, and every token of its context shows in its logits.

The vocabulary is script.py's: ids 0 to 255 are bytes, then the control tokens; 261 in all. One layer, nine heads of 64.
The hidden vector, 576 numbers, has two halves: dimension t says "the last token is t", dimension 288 + t says "this
share of the context is t".

    embedding    row t is 1 at t
    attention    q = k = 0, so all scores are equal and each earlier token weighs the same, whatever its position;
                 v = the normed input's first half, o writes it to the second half: it adds the share of each token
    MLP          adds 0
    norms        1/24 everywhere: 24 is sqrt(576), so they divide by the vector's length
    head         row v is 8 at the token that v comes after, and 4 at 288 + v

So with t the last token and f(v) the share of v in the context, itself included,

    logit(v) = (8 if v = successor(t) else 0, plus 4 f(v)) / sqrt(1 + sum of f squared)

successor: a to b, ..., y to z, z to <|end|>; of everything else a.

Worked: the prompt "ab". t = b, f(a) = f(b) = 1/2, and the length is sqrt(1 + 1/4 + 1/4) = 1.224745.
logit(c) = 8 / 1.224745 = 6.531973; logit(a) = logit(b) = 2 / 1.224745 = 1.632993; the other 258 are 0. Greedy, "ab" is
continued by "cdefghijklmnopqrstuvwxyz" and <|end|>, and the probability of c is
686.75 / (686.75 + 2 * 5.12 + 258) = 0.7191.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.testing.script import CONTROL_TOKENS, END_TOKEN_ID
from headway.testing.scripted_text import CHAT_TEMPLATE
from headway.text.byte_alphabet import CHARACTER_OF_BYTE

VOCAB_SIZE = 256 + len(CONTROL_TOKENS)
HIDDEN_SIZE = 576
NUM_HEADS = 9
HEAD_DIM = 64
INTERMEDIATE_SIZE = 32
MAX_POSITION = 512
SECOND_HALF = 288
SUCCESSOR_LOGIT = 8.0
SHARE_LOGIT = 4.0

Float32 = npt.NDArray[np.float32]


def successor(token_id: int) -> int:
    """What the model says after `token_id`."""
    if ord("a") <= token_id < ord("z"):
        return token_id + 1
    return END_TOKEN_ID if token_id == ord("z") else ord("a")


def logits_by_hand(context: Sequence[int]) -> list[float]:
    """The logits after a context of at least one token, by the formula above."""
    shares = {token_id: count / len(context) for token_id, count in Counter(context).items()}
    length = math.sqrt(1.0 + sum(share * share for share in shares.values()))
    wanted = successor(context[-1])
    return [
        (SUCCESSOR_LOGIT * (token_id == wanted) + SHARE_LOGIT * shares.get(token_id, 0.0)) / length
        for token_id in range(VOCAB_SIZE)
    ]


def greedy_by_hand(context: Sequence[int], num_tokens: int) -> list[int]:
    """The likeliest continuation, the lowest id on ties, up to its end token."""
    said: list[int] = []
    while len(said) < num_tokens and END_TOKEN_ID not in said:
        logits = logits_by_hand([*context, *said])
        said.append(logits.index(max(logits)))
    return said


def tensors() -> dict[str, Float32]:
    """The weights under Hugging Face's names."""
    attention = "model.layers.0.self_attn."
    mlp = "model.layers.0.mlp."
    ones = np.eye(VOCAB_SIZE, dtype=np.float32)
    embed, head = (np.zeros((VOCAB_SIZE, HIDDEN_SIZE), np.float32) for _ in range(2))
    value, output = (np.zeros((HIDDEN_SIZE, HIDDEN_SIZE), np.float32) for _ in range(2))
    embed[:, :VOCAB_SIZE] = ones
    value[:VOCAB_SIZE, :VOCAB_SIZE] = ones
    output[SECOND_HALF : SECOND_HALF + VOCAB_SIZE, :VOCAB_SIZE] = ones
    head[:, SECOND_HALF : SECOND_HALF + VOCAB_SIZE] = SHARE_LOGIT * ones
    for token_id in range(VOCAB_SIZE):
        head[successor(token_id), token_id] = SUCCESSOR_LOGIT
    square = np.zeros((HIDDEN_SIZE, HIDDEN_SIZE), np.float32)
    wide = np.zeros((INTERMEDIATE_SIZE, HIDDEN_SIZE), np.float32)
    norm = np.full(HIDDEN_SIZE, 1.0 / math.sqrt(HIDDEN_SIZE), np.float32)
    return {
        "model.embed_tokens.weight": embed,
        "model.layers.0.input_layernorm.weight": norm,
        attention + "q_proj.weight": square,
        attention + "k_proj.weight": square,
        attention + "v_proj.weight": value,
        attention + "o_proj.weight": output,
        "model.layers.0.post_attention_layernorm.weight": norm,
        mlp + "gate_proj.weight": wide,
        mlp + "up_proj.weight": wide,
        mlp + "down_proj.weight": wide.T.copy(),
        "model.norm.weight": norm,
        "lm_head.weight": head,
    }


CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": INTERMEDIATE_SIZE,
    "num_hidden_layers": 1,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": MAX_POSITION,
    "rms_norm_eps": 1e-12,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": END_TOKEN_ID,
}


def write_tiny_model(folder: Path) -> Path:
    """Writes a Hugging Face folder of seven megabytes, made if need be; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": END_TOKEN_ID},
        "tokenizer.json": _tokenizer_json(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": CONTROL_TOKENS[0],
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors())
    return folder


def write_safetensors(path: Path, arrays: Mapping[str, Float32]) -> None:
    """Arrays as F32 (the format: eight bytes of header length, a JSON header, the bytes end to end)."""
    header: dict[str, Any] = {}
    start = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}
        start += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays.values():
            file.write(array.astype("<f4").tobytes())


def _tokenizer_json() -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {CHARACTER_OF_BYTE[byte]: byte for byte in range(256)}
    added = [
        {
            "id": 256 + place,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for place, token in enumerate(CONTROL_TOKENS)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
