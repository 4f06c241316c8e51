"""A Program's own check, its text, and the shapes that an architecture refuses."""

import dataclasses

import pytest

from headway.errors import InvariantBroken, UnsupportedModel
from headway.model import describe, make_program
from headway.model.ops import Add, Linear, Logits, Mul, Norm, Scale
from small_shapes import like_llama

SHAPE = like_llama(
    vocab_size=50, hidden_size=16, num_layers=1, head_dim=8, intermediate_size=24, max_position=64, is_tied=False
)
LLAMA = make_program(SHAPE)


def test_a_layer_is_these_ops_in_this_order():
    names = [type(op).__name__ for op in LLAMA.ops]
    attention = ["Norm", "Linear", "Linear", "Linear", "Rope", "Rope", "Attention", "Linear", "Add"]
    mlp = ["Norm", "Linear", "Linear", "Activation", "Mul", "Linear", "Add"]
    assert names == ["Embed", *attention, *mlp, "SelectRows", "Norm", "Linear", "Logits"]


def test_weights_have_the_canonical_names_and_shapes():
    assert dict(LLAMA.weights) == {
        "embed.weight": (50, 16),
        "layers.0.attn_norm.weight": (16,),
        "layers.0.attn.q.weight": (32, 16),
        "layers.0.attn.k.weight": (16, 16),
        "layers.0.attn.v.weight": (16, 16),
        "layers.0.attn.o.weight": (16, 32),
        "layers.0.mlp_norm.weight": (16,),
        "layers.0.mlp.gate.weight": (24, 16),
        "layers.0.mlp.up.weight": (24, 16),
        "layers.0.mlp.down.weight": (16, 24),
        "final_norm.weight": (16,),
        "lm_head.weight": (50, 16),
    }


def test_a_tied_head_adds_no_weight():
    tied = make_program(dataclasses.replace(SHAPE, is_tied=True))
    assert set(LLAMA.weights) - set(tied.weights) == {"lm_head.weight"}


def broken(**changes):
    return dataclasses.replace(LLAMA, **changes)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (broken(ops=LLAMA.ops[1:]), "embedding"),
        (broken(ops=(LLAMA.ops[0], *LLAMA.ops)), "second time"),
        (broken(ops=LLAMA.ops[:-1]), "ends with Logits"),
        (broken(ops=()), "ends with Logits"),
        (broken(caches=()), "no cache 0"),
        (broken(caches=(dataclasses.replace(LLAMA.caches[0], v_dim=4),)), "cache"),
        (broken(weights={**LLAMA.weights, "spare.weight": (1,)}), "spare.weight"),
        (broken(weights={k: v for k, v in LLAMA.weights.items() if k != "embed.weight"}), "embed.weight"),
        (broken(weights={**LLAMA.weights, "layers.0.attn.q.weight": (32, 15)}), "attn.q.weight"),
        (broken(weights={**LLAMA.weights, "layers.0.attn.q.weight": (24, 16)}), "attn.q"),
        (broken(weights={**LLAMA.weights, "final_norm.weight": (15,)}), "final_norm.weight"),
        (broken(vocab_size=51), "scores"),
        (broken(ops=(*LLAMA.ops[:-1], Mul(out="m", left="embedding", right="scores"))), "mixes"),
        (
            broken(ops=(*LLAMA.ops[:-1], Add(out="m", left="scores", right="final_norm"), Logits(out="l", input="m"))),
            "width of final_norm",
        ),
        (
            broken(
                ops=(*LLAMA.ops[:-1], Norm(out="n", input="scores", weight="embed.weight", eps=1, over="head")),
                weights={**LLAMA.weights, "embed.weight": (16,)},
            ),
            "embed.weight",
        ),
        (
            broken(ops=(*LLAMA.ops[:-1], Linear(out="b", input="final_norm", weight="lm_head.weight", bias="no.bias"))),
            "no.bias",
        ),
    ],
)
def test_a_program_that_cannot_be_is_named(program, words):
    with pytest.raises(InvariantBroken, match=words):
        program.check()


def test_its_text_has_a_line_for_each_op_and_the_numbers_that_matter():
    lines = describe(LLAMA).splitlines()
    assert len(lines) == 1 + len(LLAMA.ops)
    assert lines[0].startswith("llama: 4,336 weights in 12 tensors, 21 ops, 1 caches of 32 elements a token")
    (attention,) = (line for line in lines if "Attention" in line)
    assert "num_kv_heads=2" in attention
    assert "scale=0.353553" in attention


def test_its_text_tells_how_far_back_layers_with_a_window_look():
    shape = dataclasses.replace(SHAPE, num_layers=3, sliding_window=4096, full_layers=frozenset({2}))
    text = describe(make_program(shape)).splitlines()
    assert "3 caches of 96 elements a token (2 of them read the last 4,096 tokens), vocabulary" in text[0]
    assert ["window=4096" in line for line in text if " = Attention(" in line] == [True, True, False]


def test_an_unknown_architecture_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedModel, match=r"'gpt9'.*gemma2, .*gpt2, .*llama, .*phi3, .*smollm3"):
        make_program(dataclasses.replace(SHAPE, architecture="gpt9"))


def test_a_window_is_on_the_layers_that_do_not_see_everything():
    shape = dataclasses.replace(
        SHAPE, architecture="qwen2", sliding_window=8, num_layers=3, full_layers=frozenset({0, 1})
    )
    assert [cache.window for cache in make_program(shape).caches] == [None, None, 8]


def test_a_mistral_window_is_on_each_layer():
    program = make_program(dataclasses.replace(SHAPE, architecture="mistral", sliding_window=8, num_layers=3))
    assert [cache.window for cache in program.caches] == [8, 8, 8]


def test_granite_scales_where_it_must():
    shape = dataclasses.replace(SHAPE, architecture="granite", residual_scale=0.5, logits_scale=0.25)
    ops = make_program(shape).ops
    assert [op.factor for op in ops if isinstance(op, Scale)] == [0.5, 0.5]
    assert ops[-1] == Logits(out="logits", input="scores", scale=0.25)
