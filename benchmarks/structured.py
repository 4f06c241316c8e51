"""What constrained answers cost and save, on the demo model, in this process.

    structured.py streams [--streams 64] [--tokens 96]    output tokens/s, constrained beside free, of the same lengths:
                          [--rounds 3]                    the median of pairs of rounds
    structured.py forced [--streams 1] [--records 4]      an answer of a fixed schema, forced tokens forced or sampled
    structured.py schemas [--schemas 1000] [--first 0]    random schemas: how many answers are valid, by jsonschema
                          [--file FILE]                   ... or those of a file, one a line, of draft 7
    structured.py gaps                                    a stream beside explosive schemas: its gaps, their refusals

Each takes at most two minutes; `schemas` in slices (--first).
"""

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
from machine import describe_machine, usable_cores

import headway_wire as wire
from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.demo import fetch_demo
from headway.config import EngineConfig, default_cache_dir
from headway.core.structured import StructuredOutputs
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from headway.errors import InvalidRequest
from headway.text.structured import structured_grammar
from headway.text.tokenizer import Tokenizer, make_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

ENDLESS: dict[str, Any] = {
    "type": "array",
    "minItems": 4000,
    "items": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "array", "items": {"type": "string"}}]},
}
"""No answer ends before its max_tokens, and hardly a token is forced."""
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "last_name": {"type": "string", "maxLength": 12},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "is_member": {"type": "boolean"},
        "favourite_colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["first_name", "last_name", "age_in_years", "is_member", "favourite_colour"],
    "additionalProperties": False,
}
_OPTIONAL = [f"r{i}: /[a-z]{{1,{i + 1}}}/?" for i in range(300)]
EXPLOSIVE: list[tuple[str, Any]] = [
    ("regex", "(a|b)*a(a|b){400}c(a|b){400}"),
    ("regex", "(.{0,300}x){40}"),
    ("json_schema", {"type": "string", "pattern": "^(a+)+(b{1,500}c{1,500}){20}$"}),
    ("json_schema", {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(4000)}}),
    ("grammar", "\n".join(["start: " + " ".join(f"r{i}" for i in range(300)), *_OPTIONAL])),
]
MORE = 4
"""Times as many tokens get answers that were cut."""
PROMPT = "Write a JSON document that describes a person, with all fields filled in:\n"


def constraint_of(kind: Any, value: Any) -> wire.Constraint:
    """As the server makes it."""
    return wire.Constraint(grammar=structured_grammar(StructuredOutputs(kind=kind, value=value)).text())


class Run:
    """An engine, and what each of its requests is told."""

    def __init__(self, path: Path, **config: Any) -> None:
        settings = EngineConfig(threads=usable_cores(), max_model_len=2048, seed=1, **config)
        self.engine: Engine = load_engine(path, settings, lambda message: None, prepares_grammars=True)[0]
        self.tokenizer: Tokenizer = make_tokenizer(open_checkpoint(path).text)
        self.prompt = self.tokenizer.encode(PROMPT)
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, wire.TokenEvent] = {}
        self.answers: dict[str, wire.Accepted | wire.Refused] = {}

    def submit(self, name: str, constraint: wire.Constraint | None, **sampling: Any) -> None:
        """A request with the one prompt."""
        fields = {"temperature": 0.0, "max_tokens": 300, **sampling}
        submit = wire.Submit(
            request_id=name, prompt_token_ids=self.prompt, sampling=wire.Sampling(constraint=constraint, **fields)
        )
        answer = self.engine.submit(submit)
        if answer is not None:
            self.answers[name] = answer

    def step(self) -> wire.Step:
        """One, noted."""
        step = self.engine.step()
        self.answers |= {answer.request_id: answer for answer in self.engine.take_answers()}
        for event in step.events:
            self.tokens.setdefault(event.request_id, []).extend(event.token_ids)
            if event.finish_reason is not None:
                self.ends[event.request_id] = event
        return step

    def run(self) -> float:
        """Seconds until all is done."""
        begin = time.perf_counter()
        while self.engine.has_work() or len(self.engine._waiting_room) or len(self.engine._late_masks):
            self.step()
        return time.perf_counter() - begin

    def text(self, name: str) -> str:
        """Of one, without special tokens."""
        return self.tokenizer.decode(self.tokens.get(name, []), skip_special_tokens=True)


def measure_streams(arguments: argparse.Namespace) -> None:
    """The same number of tokens, with and without a mask for each: pairs of rounds, for a machine's speed drifts."""
    run = Run(arguments.model, max_num_seqs=arguments.streams)
    constraint = constraint_of("json_schema", ENDLESS)
    for kind in (False, True):
        _rate(run, kind, arguments, f"warm {kind} ", constraint, num_tokens=8)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(arguments.rounds):
        for kind in (False, True) if number % 2 else (True, False):
            rates[kind].append(_rate(run, kind, arguments, f"{number} {kind} ", constraint))
    for kind, found in rates.items():
        name = "constrained" if kind else "free"
        print(f"{name}: {', '.join(f'{rate:.0f}' for rate in found)} output tokens/s")
    print(f"forced: {run.engine.stats().values['forced_tokens_total']:.0f} tokens of all")
    pairs = [masked / free for free, masked in zip(rates[False], rates[True], strict=True)]
    print(f"pairs: {', '.join(f'{pair:.1%}' for pair in pairs)}")
    print(f"{arguments.streams} constrained streams: {statistics.median(pairs):.1%} of the free ones' rate")


def _rate(
    run: Run,
    is_constrained: bool,
    arguments: argparse.Namespace,
    prefix: str,
    constraint: wire.Constraint,
    *,
    num_tokens: int | None = None,
) -> float:
    """Output tokens/s of a round, its prompts among what takes the time."""
    num_wanted = num_tokens or arguments.tokens
    names = [f"{prefix}{stream}" for stream in range(arguments.streams)]
    for stream, name in enumerate(names):
        run.submit(
            name,
            constraint if is_constrained else None,
            temperature=0.8,
            seed=stream,
            max_tokens=num_wanted,
            ignore_eos=True,
        )
    seconds = run.run()
    num_made = sum(len(run.tokens[name]) for name in names)
    if num_made != arguments.streams * num_wanted:
        raise SystemExit(f"{num_made} tokens came, not {arguments.streams * num_wanted}")
    return num_made / seconds


def measure_forced(arguments: argparse.Namespace) -> None:
    """The same answers either way, if not their tokens: how text is cut into tokens is the grammar's or the model's."""
    schema = {"type": "array", "minItems": arguments.records, "maxItems": arguments.records, "items": PERSON}
    constraint = constraint_of("json_schema", schema)
    seconds, counts = {}, {}
    for forces in (True, False):
        run = Run(arguments.model, max_num_seqs=arguments.streams, force_tokens=forces)
        run.submit("warm", constraint, max_tokens=8)
        run.run()
        found = []
        for number in range(arguments.rounds):
            names = [f"{number}-{stream}" for stream in range(arguments.streams)]
            for stream, name in enumerate(names):
                run.submit(name, constraint, temperature=0.8, seed=stream, max_tokens=1500)
            found.append(run.run())
            for name in names:
                jsonschema.validate(json.loads(run.text(name)), schema)
        characters = sum(len(run.text(name)) for name in names)
        seconds[forces] = min(found) / characters
        counts[forces] = f"{sum(len(run.tokens[name]) for name in names)} tokens, {characters} characters"
        if forces:
            stats = run.engine.stats().values
            num_forced = stats["forced_tokens_total"]
            print(f"forced: {num_forced / (num_forced + stats['sampled_tokens_total']):.0%} of the tokens")
    for forces, name in ((True, "forced"), (False, "sampled")):
        print(f"{name}: {seconds[forces] * 1e6:.0f} us a character ({counts[forces]})")
    print(f"a JSON answer of a fixed schema, forced: {seconds[False] / seconds[True]:.2f} x as fast")


def measure_schemas(arguments: argparse.Namespace) -> None:
    """Random schemas, many at once: each answer that was not cut is JSON and valid. Cut ones get more tokens once."""
    run = Run(arguments.model, max_num_seqs=arguments.streams, kv_cache_memory=2**30)
    schemas = dict(_constrained(_schemas(arguments)))
    begin = time.perf_counter()
    _answer(run, {name: constraint for name, (_, constraint) in schemas.items()}, arguments.tokens)
    was_cut = {name for name, end in run.ends.items() if end.finish_reason == "length"}
    _answer(run, {name: schemas[name][1] for name in was_cut}, MORE * arguments.tokens)
    refusals = {name: answer.error for name, answer in run.answers.items() if isinstance(answer, wire.Refused)}
    num_refused = arguments.schemas - len(schemas) + len(refusals)
    for words, count in Counter(_kind_of(error.message) for error in refusals.values()).most_common(25):
        print(f"refused {count} x: {words}")
    cut, failed, invalid = 0, 0, []
    draft = jsonschema.Draft202012Validator if arguments.file is None else jsonschema.Draft7Validator
    for name, (schema, _) in schemas.items():
        end = run.ends.get(name)
        if end is None:
            continue
        cut += end.finish_reason == "length"
        failed += end.finish_reason == "error"
        if end.finish_reason == "error" and end.error is not None:
            print(f"schema {name} ended: {end.error.message[:160]}")
        if end.finish_reason == "stop" and not _is_valid(run.text(name), schema, draft):
            invalid.append((name, end.finish_reason, schema, run.text(name)))
    for each in invalid[:5]:
        print("invalid:", *each)
    num_whole = len(run.ends) - cut - failed
    print(
        f"schemas {arguments.first} to {arguments.first + arguments.schemas - 1}: {num_whole} whole answers, "
        f"{num_whole - len(invalid)} valid; {cut} cut at {MORE * arguments.tokens} tokens, {num_refused} refused, "
        f"{failed} ended by an error; "
        f"{time.perf_counter() - begin:.0f} s"
    )
    if invalid:
        raise SystemExit(1)


def _answer(run: Run, constraints: dict[str, wire.Constraint], num_tokens: int) -> None:
    """Until all are answered: who ends makes room for the next."""
    for name, constraint in constraints.items():
        run.tokens.pop(name, None)
        run.submit(name, constraint, temperature=0.7, seed=int(name), max_tokens=num_tokens)
    run.run()


def _schemas(arguments: argparse.Namespace) -> Iterator[tuple[int, Any]]:
    from text.test_structured_oracle import random_schema

    numbers = range(arguments.first, arguments.first + arguments.schemas)
    if arguments.file is None:
        yield from ((number, random_schema(random.Random(number))) for number in numbers)
    else:
        lines = arguments.file.read_text().splitlines()[arguments.first : numbers.stop]
        yield from zip(numbers, map(json.loads, lines), strict=False)


def _constrained(schemas: Iterator[tuple[int, Any]]) -> Iterator[tuple[str, tuple[Any, wire.Constraint]]]:
    for number, schema in schemas:
        try:
            yield str(number), (schema, constraint_of("json_schema", schema))
        except InvalidRequest as error:
            print(f"schema {number} is refused: {str(error)[:160]}")


def _kind_of(message: str) -> str:
    """Without what a message says of one schema alone."""
    return re.sub(r"structured_outputs[^ ]*|['\"/`].*|[0-9]+", "…", message.replace("\n", " "))[:110]


def _is_valid(text: str, schema: Any, draft: Any) -> bool:
    try:
        validator = jsonschema.validators.validator_for(schema, draft)
        # JSON's numbers are decimal: -3.145226473345909e+16 is -31452264733459090, though no double is.
        schema = json.loads(json.dumps(schema), parse_float=Decimal)
        answer = json.loads(text, parse_float=Decimal)
        return bool(validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(answer))
    except ValueError:
        return False


def measure_gaps(arguments: argparse.Namespace) -> None:
    """A stream's longest gap alone, and while each explosive structure is compiled."""
    run = Run(arguments.model, max_num_seqs=8)
    run.submit("warm", constraint_of("regex", "[0-9]{4}"))
    run.run()
    run.submit("stream", None, max_tokens=1900, ignore_eos=True)
    quiet = [_timed_step(run) for _ in range(60)]
    print(f"alone: {statistics.median(quiet) * 1e3:.1f} ms a token, at most {max(quiet) * 1e3:.1f}")
    for number, (kind, value) in enumerate(EXPLOSIVE):
        name, begin = f"bad {number}", time.perf_counter()
        try:
            constraint = constraint_of(kind, value)
        except InvalidRequest as error:
            print(f"{kind} {str(value)[:40]!r}: refused before it came here: {str(error)[:100]}")
            continue
        run.submit(name, constraint, max_tokens=20)
        gaps = []
        while name not in run.answers:
            gaps.append(_timed_step(run))
        seconds = time.perf_counter() - begin
        gaps += [_timed_step(run) for _ in range(20)]
        answer = run.answers[name]
        words = answer.error.message[:90] if isinstance(answer, wire.Refused) else "accepted"
        longest = max(gaps) * 1e3
        print(f"{kind} {str(value)[:40]!r}: {words}; after {seconds:.2f} s; longest gap meanwhile {longest:.1f} ms")
        if name not in run.ends:
            run.engine.abort(wire.Abort(request_id=name))


def _timed_step(run: Run) -> float:
    begin = time.perf_counter()
    run.step()
    return time.perf_counter() - begin


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "forced", "schemas", "gaps"])
    parser.add_argument("--model", type=Path, default=None, help="a model's file; else the demo model")
    parser.add_argument("--streams", type=int, default=None)
    parser.add_argument("--tokens", type=int, default=None)
    parser.add_argument("--records", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--file", type=Path, default=None)
    arguments = parser.parse_args()
    print(describe_machine())
    arguments.model = arguments.model or fetch_demo(default_cache_dir())
    arguments.tokens = arguments.tokens or (400 if arguments.what == "schemas" else 96)
    arguments.streams = arguments.streams or (64 if arguments.what in ("streams", "schemas") else 1)
    {
        "streams": measure_streams,
        "forced": measure_forced,
        "schemas": measure_schemas,
        "gaps": measure_gaps,
    }[arguments.what](arguments)


if __name__ == "__main__":
    main()
