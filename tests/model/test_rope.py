"""Rotary frequencies against transformers' own initialisers."""

import numpy as np
import pytest

from headway.checkpoint.shape import RopeShape
from headway.errors import UnsupportedModel
from headway.model import make_program
from headway.model.rope import make_frequencies
from small_shapes import like_llama

MAX = 4096
PARAMETERS = [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.5},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "longrope", "short_factor": [1.5] * 32, "long_factor": [3.0] * 32, "factor": 4.0}
    | {"original_max_position_embeddings": 1024},
]


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("length", [512, MAX, 8192])
@pytest.mark.parametrize("scaling", PARAMETERS, ids=lambda scaling: "-".join(map(str, scaling.values()))[:24])
def test_frequencies_are_transformers(scaling, length, theta):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(head_dim=64, max_position_embeddings=MAX, rope_parameters={**scaling, "rope_theta": theta})
    wanted, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, seq_len=length)
    shape = RopeShape(theta=theta, dims=64, scaling=scaling)
    ours = make_frequencies(shape, max_position=MAX, max_model_len=length)
    np.testing.assert_allclose(ours.frequencies, wanted.numpy(), rtol=2e-6)
    assert ours.magnitude == pytest.approx(magnitude, rel=1e-6)


def test_plain_frequencies_are_powers_of_theta():
    ours = make_frequencies(RopeShape(theta=10000.0, dims=8), max_position=64, max_model_len=64)
    np.testing.assert_allclose(ours.frequencies, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    assert ours.magnitude == 1.0


def test_a_files_frequency_factors_divide():
    shape = RopeShape(theta=10000.0, dims=8, frequency_factors=(1.0, 2.0, 4.0, 8.0))
    ours = make_frequencies(shape, max_position=64, max_model_len=64)
    np.testing.assert_allclose(ours.frequencies, [1, 0.05, 0.0025, 0.000125], rtol=1e-6)


@pytest.mark.parametrize(
    ("scaling", "factors", "words"),
    [
        ({"rope_type": "spiral"}, (), "'spiral'.*default, dynamic, linear, llama3, longrope, yarn"),
        ({"type": "linear"}, (), "'factor'"),
        ({"rope_type": "linear", "factor": "four"}, (), "'factor'"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, (), "4 numbers in 'short_factor'"),
        ({}, (1.0, 2.0), "2 rope frequency factors for 4"),
        ({"rope_type": "linear", "factor": 0}, (), "'factor': 0.*not finite"),
        ({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0, "high_freq_factor": 4.0}, (), "computed"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": "x"}, (), "'beta_fast': 'x'.*computed"),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": [1]}, (), "computed"),
        ({"rope_type": "longrope", "short_factor": ["a"] * 4, "long_factor": [None] * 4}, (), "computed"),
        ({"rope_type": "longrope", "short_factor": [0.0] * 4, "long_factor": [0.0] * 4}, (), "not finite"),
    ],
)
def test_what_is_not_there_is_refused_by_name(scaling, factors, words):
    shape = RopeShape(dims=8, scaling=scaling, frequency_factors=factors)
    with pytest.raises(UnsupportedModel, match=words):
        make_frequencies(shape, max_position=64, max_model_len=64)


@pytest.mark.parametrize(
    ("scaling", "asked", "longest"),
    [
        ({}, 1000, 64),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, None, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, None, 64),
        ({"rope_type": "yarn", "factor": 1e308, "original_max_position_embeddings": 64}, None, 2**31 - 1),
        ({"rope_type": "dynamic", "factor": 4.0}, None, 64),
        ({"rope_type": "dynamic", "factor": 4.0}, 100, 100),
        ({"rope_type": "dynamic", "factor": 4.0}, 1000, 256),
    ],
)
def test_the_longest_context_is_what_the_frequencies_are_stretched_to(scaling, asked, longest):
    shape = like_llama(head_dim=8, max_position=64, rope=RopeShape(dims=8, scaling=scaling))
    assert make_program(shape, max_model_len=asked).max_position == longest
