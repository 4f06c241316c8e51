"""Answers of the demo model under random schemas are valid, by jsonschema, and streams go on while grammars explode.

benchmarks/structured.py does the first with a thousand schemas, and measures the second.
"""

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import headway_wire as wire
from headway.checkpoint.checkpoint import open_checkpoint
from headway.config import EngineConfig
from headway.core.structured import StructuredOutputs
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from headway.text.structured import structured_grammar
from headway.text.tokenizer import Tokenizer, make_tokenizer
from oracles import demo_model
from text.test_structured_oracle import random_schema

NUM_SCHEMAS = 32
PROMPT = "A JSON document:\n"
PROPERTIES = {f"p{index}": {"type": "integer"} for index in range(4000)}
OPTIONAL = [f"r{index}: /[a-z]{{1,{index + 1}}}/?" for index in range(300)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = EngineConfig(max_model_len=512, max_num_seqs=NUM_SCHEMAS, seed=1)
    engine = load_engine(demo_model(), config, lambda message: None)[0]
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer(open_checkpoint(demo_model()).text)


def submit(
    engine: Engine, tokenizer: Tokenizer, name: str, constraint: wire.Constraint | None, **sampling: Any
) -> None:
    asked = wire.Submit(
        request_id=name,
        prompt_token_ids=tokenizer.encode(PROMPT),
        sampling=wire.Sampling(constraint=constraint, **{"max_tokens": 120, **sampling}),
    )
    assert not isinstance(engine.submit(asked), wire.Refused)


def run(engine: Engine) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Tokens and ends of all that were submitted."""
    tokens: dict[str, list[int]] = {}
    ends: dict[str, str] = {}
    while engine.has_work() or len(engine._waiting_room) or len(engine._late_masks):
        step = engine.step()
        refused = [answer for answer in engine.take_answers() if isinstance(answer, wire.Refused)]
        assert all(answer.error.kind == "InvalidRequest" for answer in refused), "what nothing can match, and no other"
        for event in step.events:
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
            if event.finish_reason is not None:
                ends[event.request_id] = event.finish_reason
    return tokens, ends


def test_each_whole_answer_is_valid_for_its_schema(engine: Engine, tokenizer: Tokenizer) -> None:
    schemas = {str(number): random_schema(random.Random(number + 4000)) for number in range(NUM_SCHEMAS)}
    for name, schema in schemas.items():
        grammar = structured_grammar(StructuredOutputs(kind="json_schema", value=schema))
        submit(engine, tokenizer, name, wire.Constraint(grammar=grammar.text()), temperature=0.7, seed=int(name))
    tokens, ends = run(engine)
    whole = [name for name, reason in ends.items() if reason == "stop"]
    assert set(ends.values()) <= {"stop", "length"}
    assert len(whole) >= NUM_SCHEMAS // 2
    for name in whole:
        text = tokenizer.decode(tokens[name], skip_special_tokens=True)
        validator = jsonschema.validators.validator_for(schemas[name])
        validator(schemas[name], format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))


@pytest.mark.parametrize(
    "grammar",
    [
        "start: /(a|b)*a(a|b){400}c(a|b){400}/",
        "\n".join(["start: " + " ".join(f"r{index}" for index in range(300)), *OPTIONAL]),
        json.dumps({"grammars": [{"json_schema": {"properties": PROPERTIES}}]}),
        "start: /(((a{1,9}b){1,9}c){1,9}d){1,99}/",
    ],
    ids=["automaton", "rules", "properties", "counts"],
)
def test_a_stream_goes_on_while_a_grammar_explodes(engine: Engine, tokenizer: Tokenizer, grammar: str) -> None:
    """How long its gaps are is measured in benchmarks/; here it has a token in each step, and the answer comes soon."""
    submit(engine, tokenizer, "stream", None, max_tokens=480, ignore_eos=True)
    for _ in range(3):
        engine.step()
    begin = time.monotonic()
    submit(engine, tokenizer, "explodes", wire.Constraint(grammar=grammar), max_tokens=2)
    answers: list[wire.Accepted | wire.Refused] = []
    while not answers and "explodes" not in engine._requests:
        assert any(event.request_id == "stream" for event in engine.step().events)
        answers = engine.take_answers()
    assert time.monotonic() - begin < 10, "two seconds, on a machine that may have more to do"
    engine.abort_all("the end of the test")
    engine.step()
    engine.take_answers()
    run(engine)
