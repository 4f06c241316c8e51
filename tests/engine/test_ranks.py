"""One model on several processes: it answers as worked by hand, and says which process it has lost."""

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from tests.engine.tiny_rig import TinyRig, regex_grammar, right_answer

import headway_wire as wire
from headway.config import EngineConfig
from headway.engine.encoder_loading import load_encoder
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from headway.engine.parallel import check_parallel, config_of_rank
from headway.engine.rank_messages import RankHello, RankLoad, RankStep, pack, pack_step, unpack_step
from headway.engine.ranks import Ranks
from headway.errors import InternalError, InvalidConfig, TensorMismatch, WorkerDied
from headway.executor.base import StepArrays
from headway.testing.tiny_model import greedy_by_hand, logits_by_hand, tensors, write_safetensors, write_tiny_model
from headway_wire.framing import FrameReader

CONFIG = EngineConfig(executor="torch", tensor_parallel_size=3, dtype="float32", threads=3, max_num_seqs=4)
"""The tiny model has nine heads."""
CONNECT = "import socket, sys; s = socket.socket(fileno=int(sys.argv[-1]))"
ASKED = list(b"ab")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[tuple[Engine, dict[str, object]]]:
    engine, info = load_engine(folder, CONFIG, lambda told: None)
    yield engine, info
    engine.close()


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "headway.engine.rank" in child.cmdline()]


def step_often(engine: Engine) -> None:
    for _ in range(400):
        engine.step()


def answer(engine: Engine, prompt: list[int], max_tokens: int, logprobs: int = 20) -> list[wire.TokenEvent]:
    sampling = wire.Sampling(max_tokens=max_tokens, temperature=0.0, logprobs=logprobs)
    accepted = engine.submit(wire.Submit(request_id="r", prompt_token_ids=prompt, sampling=sampling))
    assert isinstance(accepted, wire.Accepted)
    events: list[wire.TokenEvent] = []
    while engine.has_work():
        events += engine.step().events
    return events


def test_ranks_answer_as_worked_by_hand(loaded: tuple[Engine, dict[str, object]]) -> None:
    events = answer(loaded[0], ASKED, 40)
    said = [token_id for event in events for token_id in event.token_ids]
    assert said == greedy_by_hand(ASKED, 40)
    context = list(ASKED)
    for event in events:
        (told,) = event.logprobs or []
        logits = np.array(logits_by_hand(context))
        wanted = logits - np.log(np.exp(logits).sum())
        assert told.logprob == pytest.approx(wanted[event.token_ids[0]], abs=1e-4)
        assert told.top_logprobs == pytest.approx(sorted(wanted, reverse=True)[:20], abs=1e-4)
        context += event.token_ids


def test_ranks_keep_to_a_grammar(loaded: tuple[Engine, dict[str, object]]) -> None:
    rig, pattern = TinyRig(loaded[0]), "[a-f]{2}(xyz|123)[0-9]{2,4}"
    rig.submit("held", "hello", wire.Constraint(grammar=regex_grammar(pattern)))
    rig.submit("free", "ab", None, max_tokens=20)
    rig.run()
    right, output = right_answer("hello", pattern), rig.output("held")
    assert (output.token_ids, output.finish_reason) == (right.token_ids, right.finish_reason)
    assert right.num_forced > 0
    assert sum(event.num_forced_tokens for event in rig.told("held")) == right.num_forced
    assert rig.output("free").token_ids == greedy_by_hand(ASKED, 20)


def test_the_plan_is_told_for_one_process_and_the_bytes_for_all(loaded: tuple[Engine, dict[str, object]]) -> None:
    info = loaded[1]
    plan = info["plan"]
    assert isinstance(plan, list)
    assert plan[0] == "each of 3 processes (--tensor-parallel-size) holds its part:"
    assert "1,536 bytes a token in float32" in plan[2]  # 3 heads of 64 of K and V
    assert info["tensor_parallel_size"] == 3
    # The table is whole everywhere, every other matrix in thirds: 261 rows of 576, as many of the head, 4 of 576 by
    # 576, 3 of 32 by 576, and 3 norms.
    one = 261 * 576 + (261 * 576 + 4 * 576 * 576) // 3 + (11 + 11 + 11) * 576 + 3 * 576
    assert info["weights_bytes"] == 3 * 4 * one


def test_nothing_is_left_in_the_temporary_folder_once_ranks_have_met(loaded: tuple[Engine, dict[str, object]]) -> None:
    assert len(children()) == 2
    shared = loaded[0]._shared
    assert not shared._ranks.folder.exists()  # type: ignore[attr-defined]


def test_a_killed_rank_is_named_and_close_ends_the_others(loaded: tuple[Engine, dict[str, object]]) -> None:
    """The last one to use the group, whose start takes most of these tests' time."""
    engine, ranks = loaded[0], children()
    assert len(ranks) == 2
    sampling = wire.Sampling(max_tokens=400, temperature=0.0, ignore_eos=True)
    engine.submit(wire.Submit(request_id="r", prompt_token_ids=ASKED, sampling=sampling))
    engine.step()
    ranks[0].send_signal(signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"^rank 1 of 3 was ended by SIGKILL$"):
        step_often(engine)
    with pytest.raises(WorkerDied, match="rank 1 of 3 was ended by SIGKILL"):
        engine.has_work()
    assert engine.wait_s() is not None  # an idle engine looks again
    engine.close()
    engine.close()
    gone, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive
    assert len(gone) == 2


def test_what_a_rank_can_not_load_is_told_as_its_own_error(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    arrays = tensors()
    arrays["model.norm.weight"] = np.ones(575, np.float32)
    ranks = Ranks(2)
    write_safetensors(folder / "model.safetensors", arrays)  # after rank 0 has looked
    config = EngineConfig(executor="torch", tensor_parallel_size=2)
    with pytest.raises(TensorMismatch, match="final_norm"):
        ranks.load(lambda rank: RankLoad(str(folder), config, rank, 2, str(ranks.folder / "meeting"), 8, 16, "float32"))
    ranks.close()
    assert not ranks.folder.exists()


def test_a_rank_that_ends_before_it_says_anything_is_told_with_its_exit_code() -> None:
    ranks = Ranks(2, command=(sys.executable, "-c", "import sys; sys.exit(7)"))
    with pytest.raises(WorkerDied, match="rank 1 of 2 ended with exit code 7"):
        ranks.wait_ready()
    ranks.close()


def test_a_rank_that_says_what_it_must_not_is_our_fault() -> None:
    says = f"s.sendall(bytes.fromhex('{pack(RankHello()).hex()}'))"
    ranks = Ranks(2, command=(sys.executable, "-c", f"{CONNECT}; {says}; s.recv(1)"))
    with pytest.raises(InternalError, match="rank 1 sent RankHello, it must be RankReady"):
        ranks.wait_ready()
    ranks.close()


def test_a_group_that_fails_while_all_live_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.engine.ranks.DEATH_WAIT_S", 0.05)
    ranks = Ranks(2, command=(sys.executable, "-c", f"{CONNECT}; s.recv(1)"))
    error = ranks.explain(RuntimeError("timed out"))
    assert error.message == "the group of 2 ranks is lost: RuntimeError: timed out"
    ranks.close()


def test_a_rank_ends_with_the_socket_of_rank_0() -> None:
    ranks = Ranks(2)
    (pid,) = ranks.pids
    process = psutil.Process(pid)
    while "headway.engine.rank" not in process.cmdline():  # until it is Python
        time.sleep(0.01)
    ranks._others[0].connection.close()
    assert ranks._others[0].process.wait(30) == 0
    ranks.close()


def test_a_step_arrives_as_it_was_sent() -> None:
    step = StepArrays(
        token_ids=np.array([3, 1, 4], np.int32),
        positions=np.array([0, 1, 9], np.int32),
        query_starts=np.array([0, 2, 3], np.int32),
        context_lens=np.array([2, 10], np.int32),
        block_tables=np.array([[7, 0], [2, 5]], np.int32),
        slots=np.array([112, 113, 2**40], np.int64),
        logit_rows=np.array([1, 2], np.int32),
    )
    (payload,) = FrameReader().feed(pack_step(step))
    arrived = unpack_step(msgspec.msgpack.decode(payload, type=RankStep))
    for field in fields(StepArrays):
        sent, got = getattr(step, field.name), getattr(arrived, field.name)
        assert (got.dtype, got.tolist()) == (sent.dtype, sent.tolist())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0; it must be at least 1"),
        ({"tensor_parallel_size": 2}, "is 2, which only the torch executor has, and executor is auto: give --executor"),
        ({"tensor_parallel_size": 2, "executor": "native"}, "executor is native: give --executor torch too"),
    ],
)
def test_ranks_that_can_not_be_are_refused_before_anything_is_read(config: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as caught:
        load_engine(Path("/nowhere"), EngineConfig(device="cpu", **config), lambda told: None)  # type: ignore[arg-type]
    assert caught.value.param == "tensor_parallel_size"


def test_ranks_are_allowed_on_gpus_whatever_the_executor_is_called() -> None:
    check_parallel(EngineConfig(tensor_parallel_size=2, device="cuda:0"))


def test_heads_that_do_not_divide_are_refused_before_a_process_is_started(folder: Path) -> None:
    config = EngineConfig(executor="torch", tensor_parallel_size=2)
    with pytest.raises(InvalidConfig, match=r"is 2, .* 9 heads and 9 key and value heads, .*: give one of 1, 3, 9$"):
        load_engine(folder, config, lambda told: None)


def test_threads_are_shared_out() -> None:
    assert config_of_rank(EngineConfig(executor="torch", tensor_parallel_size=3, threads=7)).threads == 2
    assert config_of_rank(EngineConfig(executor="torch", tensor_parallel_size=3, threads=2)).threads == 1
    assert config_of_rank(EngineConfig(threads=7)).threads == 7


def test_an_encoder_is_not_split(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"tensor_parallel_size is 2, and .* is an encoder, .* not split"):
        load_encoder(folder, EngineConfig(executor="torch", tensor_parallel_size=2), lambda told: None)
