import random
from dataclasses import asdict
from typing import Any

import msgspec
import pytest

import headway_wire as wire
from headway.config import EngineConfig
from headway.errors import CorruptCheckpoint, InvalidConfig, InvariantBroken, OutOfMemory, TensorMismatch
from headway.predictors.headway import HeadwayPredictor, make_engine_config

KV_TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # layers x (K and V) x heads x dims x float32


def load(small_model, options) -> tuple[HeadwayPredictor, wire.Ready, list[wire.Loading]]:
    predictor, told = HeadwayPredictor(), []
    return predictor, predictor.load(str(small_model.path), options, told.append), told


def run(predictor: HeadwayPredictor) -> dict[tuple[str, int], list[wire.TokenEvent]]:
    events: dict[tuple[str, int], list[wire.TokenEvent]] = {}
    while predictor.has_work():
        (step,) = predictor.step()
        predictor._engine.check()
        for event in step.events:
            events.setdefault((event.request_id, event.choice), []).append(event)
    return events


def tokens_of(events: list[wire.TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def submit(predictor: HeadwayPredictor, request_id: str, prompt: list[int], **sampling) -> wire.Up:
    settings = wire.Sampling(**{"temperature": 0.0, **sampling})
    (answer,) = predictor.handle(wire.Submit(request_id=request_id, prompt_token_ids=prompt, sampling=settings))
    return answer


def test_a_load_tells_its_phases_and_what_it_made(small_model, options):
    predictor, ready, told = load(small_model, options(max_model_len=64))
    phases = list(dict.fromkeys(message.phase for message in told))
    assert phases == ["build", "read", "warm"]
    assert [message.elapsed_s for message in told] == sorted(message.elapsed_s for message in told)
    info = ready.info
    num_blocks = 2**20 // (4 * KV_TOKEN_BYTES)
    assert (info["num_blocks"], info["kv_cache_bytes"]) == (num_blocks, num_blocks * 4 * KV_TOKEN_BYTES)
    assert (info["max_model_len"], info["vocab_size"], info["block_size"]) == (64, 300, 4)
    assert info["weights_bytes"] == 4 * sum(p.numel() for p in small_model.oracle.parameters())
    assert (info["dtype"], info["executor"], info["unmatched_tensors"]) == ("float32", "torch", [])
    assert info["load_s"] > 0
    assert any("KV cache" in line for line in info["plan"])
    assert wire.decode_up(wire.encode(ready)) == ready
    predictor.close()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"enable_prefix_caching": False},
        {"enable_chunked_prefill": False},
        {"max_num_seqs": 1, "max_num_batched_tokens": 3},
        {"kv_cache_memory": 12 * 4 * KV_TOKEN_BYTES, "max_model_len": 48},  # 12 blocks: preemption
    ],
)
def test_answers_are_transformers_greedy_ones_however_they_are_computed(small_model, options, changed):
    predictor, _, _ = load(small_model, options(**changed))
    rng = random.Random(5)
    shared = [rng.randrange(3, 300) for _ in range(20)]
    prompts = [
        shared[: rng.randint(1, 20)] + [rng.randrange(3, 300) for _ in range(rng.randint(0, 8))] for _ in range(7)
    ]
    for number, prompt in enumerate(prompts):
        assert isinstance(submit(predictor, str(number), prompt, n=1 + number % 2, max_tokens=12), wire.Accepted)
    events = run(predictor)
    assert len(events) == 7 + 3
    for (request_id, _), told in events.items():
        assert tokens_of(told) == small_model.continuation(prompts[int(request_id)], 12)
    stats = predictor.stats().values
    assert (stats["preemptions_total"] > 0) == ("kv_cache_memory" in changed)
    assert stats["num_used_blocks"] == 0
    predictor.close()


def test_logprobs_are_those_of_the_raw_logits(small_model, options):
    predictor, _, _ = load(small_model, options())
    prompt = list(range(10, 20))
    submit(predictor, "A", prompt, temperature=0.7, seed=4, max_tokens=5, logprobs=3, ignore_eos=True)
    told = run(predictor)["A", 0]
    context = list(prompt)
    for event in told:
        right = small_model.logprobs(context)
        (entry,) = event.logprobs
        assert entry.logprob == pytest.approx(float(right[event.token_ids[0]]), abs=1e-4)
        assert entry.top_ids == right.topk(3).indices.tolist()
        assert entry.top_logprobs == pytest.approx(right.topk(3).values.tolist(), abs=1e-4)
        context.append(event.token_ids[0])
    predictor.close()


def test_a_seed_gives_the_same_answers_alone_and_among_others(small_model, options):
    answers = []
    for others in (0, 3):
        predictor, _, _ = load(small_model, options())
        for number in range(others):
            submit(predictor, f"other {number}", list(range(5, 9 + number)), temperature=1.0, max_tokens=9)
        submit(predictor, "A", [7, 8, 9], n=2, temperature=1.0, seed=-3, max_tokens=9, ignore_eos=True)
        events = run(predictor)
        answers.append([tokens_of(events["A", choice]) for choice in (0, 1)])
        predictor.close()
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]


def test_preemption_changes_no_answer_no_logprob_and_tells_nothing_twice(small_model, options):
    kinds = [
        {},
        {"repetition_penalty": 1.3},
        {"temperature": 1.0, "seed": 11},
        {"temperature": 0.8, "seed": 12, "presence_penalty": 0.5, "logprobs": 2},
    ]
    answers = []
    for num_blocks in (200, 14):
        predictor, _, _ = load(
            small_model,
            options(max_num_seqs=8, kv_cache_memory=num_blocks * 4 * KV_TOKEN_BYTES, max_model_len=40),
        )
        for number in range(8):
            prompt = list(range(10 + 20 * number, 18 + 20 * number))
            submit(predictor, str(number), prompt, max_tokens=14, ignore_eos=True, **kinds[number % 4])
        events = run(predictor)
        assert (predictor.stats().values["preemptions_total"] > 0) == (num_blocks == 14)
        assert {event.num_cached_tokens for told in events.values() for event in told} == {0}
        answers.append(events)
        predictor.close()
    for key, told in answers[0].items():
        assert tokens_of(answers[1][key]) == tokens_of(told)
        for one, other in zip(told, answers[1][key], strict=True):
            for first, second in zip(one.logprobs or [], other.logprobs or [], strict=True):
                assert [second.logprob, *second.top_logprobs] == pytest.approx(
                    [first.logprob, *first.top_logprobs], abs=1e-4
                )


def test_messages_that_are_not_for_a_language_model_are_answered(small_model, options):
    predictor, _, _ = load(small_model, options())
    (outputs,) = predictor.handle(wire.Infer(request_id="T", tensors=[]))
    assert (outputs.request_id, outputs.error.kind) == ("T", "UnsupportedFeature")
    assert isinstance(submit(predictor, "bad", [300]), wire.Refused)
    assert list(predictor.handle(wire.Abort(request_id="unknown"))) == []
    submit(predictor, "A", [5], max_tokens=50)
    assert list(predictor.handle(wire.Hold(request_id="A", is_held=True))) == []
    assert not predictor.has_work()
    assert list(predictor.handle(wire.Abort(request_id="A"))) == []
    assert [event.finish_reason for event in run(predictor)["A", 0]] == ["abort"]
    predictor.close()
    assert not predictor.has_work()
    assert predictor.stats() == wire.Stats()
    with pytest.raises(InvariantBroken, match="before load"):
        predictor.step()


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"block_size": 0}, InvalidConfig, "block_size is 0"),
        ({"max_preemptions": -1}, InvalidConfig, "max_preemptions is -1"),
        ({"threads": 0}, InvalidConfig, "threads is 0"),
        ({"threads": 10**6}, InvalidConfig, "threads is 1000000.*at most 4096"),
        ({"max_num_seqs": 0}, InvalidConfig, "max_num_seqs is 0"),
        ({"max_num_seqs": 32}, InvalidConfig, "under max_num_seqs 32"),
        ({"max_model_len": 129}, InvalidConfig, "max_model_len is 129"),
        ({"kv_cache_memory": 2**60}, OutOfMemory, "bytes"),
        ({"dtype": "int3"}, InvalidConfig, "int3"),
        ({"no_such": 1}, InvalidConfig, "no option 'no_such'"),
    ],
)
def test_options_that_can_not_work_are_named(small_model, options, changed, error, words):
    with pytest.raises(error, match=words):
        load(small_model, options(**changed))


def test_a_checkpoint_that_is_not_there_or_does_not_match_is_an_error(small_model, options, tmp_path):
    with pytest.raises(CorruptCheckpoint, match="is not there"):
        HeadwayPredictor().load(str(tmp_path / "none.gguf"), options(), lambda message: None)
    for file in small_model.path.iterdir():
        text = file.read_bytes()
        if file.name == "config.json":
            text = text.replace(b'"vocab_size": 300', b'"vocab_size": 301')
        (tmp_path / file.name).write_bytes(text)
    with pytest.raises(TensorMismatch, match="embed"):
        HeadwayPredictor().load(str(tmp_path), options(), lambda message: None)
    ready = HeadwayPredictor().load(str(tmp_path), options(strict=False), lambda message: None)
    assert any("misshapen" in line for line in ready.info["unmatched_tensors"])


def test_a_config_survives_its_way_through_the_wire():
    config = EngineConfig(kv_cache_memory=0.5, max_model_len=10, seed=3, strict=False)
    load_message = wire.Load(predictor="p", source="s", options=asdict(config))
    assert make_engine_config(wire.decode_down(wire.encode(load_message)).options) == config
    assert make_engine_config({"kv_cache_memory": 1}).kv_cache_memory == 1
    assert msgspec.to_builtins(EngineConfig()) == asdict(EngineConfig())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of auto, float32, bfloat16, float16"),
        ({"quantization": "awq"}, "quantization is 'awq'; it must be one of int8, int4 or None"),
        ({"max_num_seqs": "x"}, "max_num_seqs is 'x'; it must be int"),
        ({"kv_cache_memory": "2GiB"}, "kv_cache_memory is '2GiB'; it must be int or float or None"),
        ({"max_model_lenn": 1}, "the engine has no option 'max_model_lenn'"),
    ],
)
def test_an_option_of_a_wrong_kind_is_named_with_its_value_and_what_fits(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make_engine_config(options)
    assert caught.value.message == words
