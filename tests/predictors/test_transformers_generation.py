"""A language model on transformers; right values from transformers' own generate(), and from Headway's engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

import headway_wire as wire
from headway.errors import HeadwayError, InvalidConfig, UnsupportedModel
from headway.predictors.headway import HeadwayPredictor
from headway.predictors.transformers_cache import CacheRoom, CacheSize, cache_bytes, choose_room, measure_size
from headway.predictors.transformers_generation import TransformersGenerator
from headway.service.estimate import need_of_info
from headway.service.events import CPU
from headway.service.frameworks import PROCESS_BYTES

from .conftest import END, SmallModel

PROMPTS = [[65, 66, 67], [10, 200, 30, 40, 50], [7]]


@dataclass
class Answer:
    """What came of one choice."""

    token_ids: list[int]
    reason: str
    stop_reason: int | str | None
    logprobs: list[wire.TokenLogprobs]
    error: wire.Error | None


class Driver:
    """Plays the worker's loop by hand."""

    def __init__(self, predictor: Any) -> None:
        self.predictor = predictor
        self.answers: dict[tuple[str, int], Answer] = {}

    def submit(self, request_id: str, prompt: Sequence[int], **sampling: Any) -> wire.Up:
        submit = wire.Submit(request_id=request_id, prompt_token_ids=list(prompt), sampling=wire.Sampling(**sampling))
        [answer] = self.predictor.handle(submit)
        return answer

    def step(self) -> wire.Step:
        [step] = [message for message in self.predictor.step() if isinstance(message, wire.Step)]
        for event in step.events:
            key = (event.request_id, event.choice)
            answer = self.answers.setdefault(key, Answer([], "", None, [], None))
            assert not answer.reason, f"{key} goes on behind its end"
            answer.token_ids += event.token_ids
            answer.logprobs += event.logprobs or []
            if event.finish_reason is not None:
                answer.reason, answer.stop_reason, answer.error = event.finish_reason, event.stop_reason, event.error
        return step

    def run(self) -> dict[tuple[str, int], Answer]:
        while self.predictor.has_work():
            self.step()
        assert all(answer.reason for answer in self.answers.values())
        return self.answers


Loaded = Callable[..., Driver]


@pytest.fixture
def load(small_model: SmallModel) -> Loaded:
    def run(path: Path | None = None, **options: Any) -> Driver:
        predictor = TransformersGenerator()
        told = {"threads": 1, "max_num_seqs": 4, "seed": 1, **options}
        ready = predictor.load(str(path or small_model.path), told, lambda loading: None)
        assert ready.info["max_num_seqs"] == told["max_num_seqs"]
        return Driver(predictor)

    return run


def test_greedy_output_is_that_of_generate_alone_and_beside_others(load: Loaded, small_model: SmallModel) -> None:
    driver = load()
    for place, prompt in enumerate(PROMPTS):
        assert driver.submit(str(place), prompt, temperature=0.0, max_tokens=20) == wire.Accepted(request_id=str(place))
    answers = driver.run()
    for place, prompt in enumerate(PROMPTS):
        wanted = small_model.continuation(prompt, 20)
        assert answers[str(place), 0].token_ids == wanted
        assert answers[str(place), 0].reason == ("stop" if wanted[-1] == END else "length")


def test_an_architecture_that_headway_has_not_is_run(load: Loaded, tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = transformers.GPTNeoConfig(
        vocab_size=300,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=END,
    )
    oracle = transformers.GPTNeoForCausalLM(config).eval()
    oracle.save_pretrained(tmp_path)
    vocabulary = {token: place for place, token in enumerate(sorted(ByteLevel.alphabet()))}
    Tokenizer(BPE(vocab=vocabulary, merges=[])).save(str(tmp_path / "tokenizer.json"))
    driver = load(tmp_path)
    driver.submit("1", PROMPTS[1], temperature=0.0, max_tokens=12)
    wanted = oracle.generate(torch.tensor([PROMPTS[1]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert driver.run()["1", 0].token_ids == wanted[0, len(PROMPTS[1]) :].tolist()


def test_a_seed_means_what_it_means_on_headways_engine(
    load: Loaded, small_model: SmallModel, options: Callable[..., dict[str, object]]
) -> None:
    asked = {"temperature": 0.9, "top_p": 0.9, "seed": 11, "n": 3, "max_tokens": 10, "repetition_penalty": 1.2}
    ours = HeadwayPredictor()
    ours.load(str(small_model.path), options(max_num_seqs=4), lambda loading: None)
    wanted = Driver(ours)
    wanted.submit("1", PROMPTS[0], **asked)
    driver = load()
    driver.submit("1", PROMPTS[0], **asked)
    found = {key: answer.token_ids for key, answer in driver.run().items()}
    assert found == {key: answer.token_ids for key, answer in wanted.run().items()}
    assert len({tuple(token_ids) for token_ids in found.values()}) > 1


def test_log_probabilities_are_those_of_the_raw_logits(load: Loaded, small_model: SmallModel) -> None:
    driver = load()
    driver.submit("1", PROMPTS[0], temperature=0.0, max_tokens=3, logprobs=2, logit_bias={9: 100.0})
    answer = driver.run()["1", 0]
    assert answer.token_ids == [9, 9, 9]
    for place, found in enumerate(answer.logprobs):
        wanted = small_model.logprobs(PROMPTS[0] + answer.token_ids[:place])
        assert found.logprob == pytest.approx(wanted[9].item(), abs=1e-4)
        assert found.top_ids == wanted.topk(2).indices.tolist()
        assert found.top_logprobs == pytest.approx(wanted.topk(2).values.tolist(), abs=1e-4)


def test_ends_are_told(load: Loaded, small_model: SmallModel) -> None:
    first = small_model.continuation(PROMPTS[0], 1)[0]
    driver = load(max_model_len=8)
    driver.submit("stop", PROMPTS[0], temperature=0.0, stop_token_ids=[first], max_tokens=4)
    driver.submit("full", PROMPTS[0], temperature=0.0, ignore_eos=True)
    answers = driver.run()
    assert (answers["stop", 0].token_ids, answers["stop", 0].reason) == ([first], "stop")
    assert answers["stop", 0].stop_reason == first
    assert (len(answers["full", 0].token_ids), answers["full", 0].reason) == (5, "length")


def test_who_has_no_room_waits_and_nobody_overtakes(load: Loaded) -> None:
    driver = load(max_num_seqs=2)
    for place, n in enumerate([1, 2, 1]):
        driver.submit(str(place), PROMPTS[0], n=n, temperature=0.0, max_tokens=3, ignore_eos=True)
    steps = [driver.step() for _ in range(3)]
    assert [(step.num_running, step.num_waiting) for step in steps] == [(1, 3), (1, 3), (0, 3)]
    assert {key for key, answer in driver.answers.items() if answer.reason} == {("0", 0)}
    assert len(driver.run()) == 4
    assert driver.predictor.stats().values["num_requests"] == 0
    assert driver.predictor.stats().values["computed_output_tokens_total"] == 12


TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
"""K and V of 2 layers, 2 heads of 16 numbers, float32."""


def test_what_is_charged_bounds_the_tokens_that_run_at_once(load: Loaded) -> None:
    driver = load(kv_cache_memory=20 * TOKEN_BYTES)
    for place in range(3):
        driver.submit(str(place), PROMPTS[0], temperature=0.0, max_tokens=5, ignore_eos=True)  # 8 tokens each
    steps = [driver.step() for _ in range(3)]
    assert [(step.num_running, step.num_waiting) for step in steps] == [(1, 2), (2, 1), (2, 1)]
    caches = [choice.cache for request in driver.predictor._running.values() for choice in request.choices]
    assert sum(cache_bytes(cache) for cache in caches) <= 20 * TOKEN_BYTES
    answers = driver.run()
    assert [len(answers[str(place), 0].token_ids) for place in range(3)] == [5, 5, 5]


def test_what_can_never_fit_is_refused_and_the_context_is_lowered_to_what_does(load: Loaded) -> None:
    driver = load(kv_cache_memory=20 * TOKEN_BYTES)
    refused = driver.submit("long", [65] * 10, max_tokens=11)
    assert isinstance(refused, wire.Refused)
    assert "context is 20" in refused.error.message
    refused = driver.submit("many", [65] * 10, max_tokens=5, n=2)
    assert isinstance(refused, wire.Refused)
    assert "2 times 15 tokens take 15.0 KiB of keys and values, of which there are 10.0 KiB" in refused.error.message
    with pytest.raises(InvalidConfig, match="give kv_cache_memory more, or lower max_model_len"):
        load(kv_cache_memory=20 * TOKEN_BYTES, max_model_len=21)
    with pytest.raises(InvalidConfig, match="hold 1 tokens"):
        load(kv_cache_memory=TOKEN_BYTES)


@pytest.mark.parametrize(
    ("options", "num_bytes"),
    [
        ({}, 4 * 128 * TOKEN_BYTES),  # what all sequences could use
        ({"memory_limit": 400 * TOKEN_BYTES}, 100 * TOKEN_BYTES),  # a quarter
        ({"memory_limit": 400 * TOKEN_BYTES, "kv_cache_memory": 30 * TOKEN_BYTES}, 30 * TOKEN_BYTES),
    ],
)
def test_the_plan_tells_what_caches_may_take(small_model: SmallModel, options: dict[str, Any], num_bytes: int) -> None:
    predictor = TransformersGenerator()
    ready = predictor.load(str(small_model.path), {"threads": 1, "max_num_seqs": 4, **options}, lambda loading: None)
    assert ready.info["kv_cache_bytes"] == num_bytes
    assert ready.info["weights_bytes"] == sum(
        it.nbytes for it in [*small_model.oracle.parameters(), *small_model.oracle.buffers()]
    )
    assert f"{num_bytes // TOKEN_BYTES} tokens" in "".join(ready.info["plan"])
    need = need_of_info(ready.info)
    assert need is not None
    assert need.amounts == {CPU: num_bytes + ready.info["weights_bytes"] + PROCESS_BYTES}


def test_states_that_do_not_grow_are_counted_once_a_sequence() -> None:
    assert measure_size(1000 + 2 * 16, 1000 + 3 * 16) == CacheSize(1000, 16)
    assert measure_size(1000, 1000) == CacheSize(1000, 0)
    room = choose_room(
        CacheSize(1000, 0),
        kv_cache_memory=2500,
        memory_limit=None,
        max_num_seqs=8,
        max_model_len=64,
        is_asked=False,
    )
    assert room == CacheRoom(2500, 64)


def test_an_abort_ends_what_runs_and_what_waits(load: Loaded) -> None:
    driver = load(max_num_seqs=2)
    driver.submit("runs", PROMPTS[0], n=2, max_tokens=50, ignore_eos=True)
    driver.submit("waits", PROMPTS[0], n=2, max_tokens=50)
    driver.step()
    driver.predictor.handle(wire.Abort(request_id="runs", choice=1, finish_reason="stop", reason="a stop string"))
    driver.predictor.handle(wire.Abort(request_id="waits", reason="gone"))
    driver.predictor.handle(wire.Abort(request_id="unknown"))
    driver.step()
    assert (driver.answers["runs", 1].reason, driver.answers["runs", 1].stop_reason) == ("stop", "a stop string")
    assert driver.answers["waits", 0].reason == driver.answers["waits", 1].reason == "abort"
    assert not driver.answers["runs", 0].reason
    driver.predictor.handle(wire.Abort(request_id="runs"))
    driver.step()
    assert driver.answers["runs", 0].reason == "abort"
    assert not driver.predictor.has_work()


def test_what_is_held_does_not_go_on(load: Loaded, small_model: SmallModel) -> None:
    driver = load()
    driver.submit("1", PROMPTS[0], temperature=0.0, max_tokens=5, ignore_eos=True)
    driver.step()
    driver.predictor.handle(wire.Hold(request_id="1", is_held=True))
    assert not driver.predictor.has_work()
    driver.predictor.handle(wire.Hold(request_id="1", is_held=False))
    assert driver.run()["1", 0].token_ids == small_model.continuation(PROMPTS[0], 5, ignore_eos=True)


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        (
            [65],
            {"constraint": wire.Constraint(grammar="start: 'a'")},
            "structured_outputs is not there for models that",
        ),
        ([65], {"prompt_logprobs": 1}, "prompt_logprobs is not there"),
        ([65], {"n": 5}, "n is 5, and this model runs 4 sequences"),
        ([], {}, "no tokens"),
        ([300], {}, "token id 300"),
        ([65] * 128, {}, "context is 128"),
        ([65] * 100, {"max_tokens": 40}, "together 140"),
    ],
)
def test_what_it_can_not_do_is_refused_by_name(
    load: Loaded, prompt: list[int], sampling: dict[str, Any], words: str
) -> None:
    driver = load()
    answer = driver.submit("1", prompt, **sampling)
    assert isinstance(answer, wire.Refused)
    assert words in answer.error.message
    assert not driver.predictor.has_work()


def test_not_a_number_ends_its_request_alone(load: Loaded) -> None:
    driver = load()
    embedding = driver.predictor._runner._model.get_input_embeddings()
    with torch.no_grad():
        embedding.weight[99] = torch.nan
    driver.submit("bad", [99], max_tokens=3)
    driver.submit("good", PROMPTS[0], temperature=0.0, max_tokens=3)
    answers = driver.run()
    assert answers["bad", 0].reason == "error"
    assert answers["bad", 0].error is not None
    assert answers["bad", 0].error.kind == "NonFiniteLogits"
    assert answers["good", 0].reason in ("length", "stop")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_model_len": 129}, InvalidConfig, "max_model_len is 129; it must be 1 to 128"),
        ({"max_num_seqs": 0}, InvalidConfig, "max_num_seqs is 0"),
        ({"dtype": "int8"}, InvalidConfig, "dtype is 'int8'"),
        ({"quantization": "int8"}, InvalidConfig, "no option 'quantization'"),
    ],
)
def test_options_that_can_not_be_used_are_told(
    load: Loaded, options: dict[str, Any], error: type[HeadwayError], words: str
) -> None:
    with pytest.raises(error, match=words):
        load(**options)


def test_a_folder_that_is_no_language_model_is_told(load: Loaded, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="is no folder with a"):
        load(tmp_path)
