"""Answers under a constraint, token by token what an independent reading of the expression allows, from the model that
is worked by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.tiny_rig import TinyRig, closing, make_engine, regex_grammar, right_answer, text_of

import headway_wire as wire
from headway.engine.engine import Engine
from headway.testing.tiny_model import write_tiny_model

PATTERNS = [
    "abc",
    "[a-f]{3}-[0-9]{2,4}x?",
    "(one|only|other)( and (one|only|other))*",
    "x+",
    "[b-y]*",
    r"\{\"name\": \"[a-z]{1,12}\", \"age\": [0-9]{1,3}\}",
    "z|zz|zzz",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("constrained") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return make_engine(folder)


@pytest.fixture
def rig(engine: Engine) -> Iterator[TinyRig]:
    return TinyRig(engine)


@pytest.fixture(scope="module", params=["forced", "unforced", "torch"])
def kind(request: pytest.FixtureRequest, folder: Path) -> Iterator[TinyRig]:
    options: dict[str, dict[str, Any]] = {
        "forced": {},
        "unforced": {"force_tokens": False},
        "torch": {"executor": "torch", "dtype": "float32"},
    }
    yield from closing(make_engine(folder, **options[request.param]))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_answer_is_the_likeliest_that_the_expression_allows(kind: TinyRig, pattern: str) -> None:
    right = right_answer("hello", pattern)
    name = f"{pattern}"
    kind.submit(name, "hello", wire.Constraint(grammar=regex_grammar(pattern)))
    kind.run()
    output = kind.output(name)
    assert (text_of(output.token_ids), output.finish_reason) == (text_of(right.token_ids), right.finish_reason)
    assert output.token_ids == right.token_ids
    is_forcing = kind.engine._arrivals._forces_tokens
    assert output.num_forced == (right.num_forced if is_forcing else 0)
