"""Every message survives its encoding, and a field that the other side does not know yet harms nobody."""

from typing import get_args

import msgspec
import pytest

import headway_wire as wire

ERROR = wire.Error(kind="QueueFull", message="512 wait, at most 512", param="model")
SAMPLING = wire.Sampling(
    n=2,
    temperature=0.0,
    top_p=0.5,
    top_k=7,
    min_p=0.1,
    seed=-(2**63),
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.5,
    logit_bias={0: -100.0, 49151: 2.5},
    stop_token_ids=[3, 4],
    ignore_eos=True,
    min_tokens=5,
    max_tokens=6,
    logprobs=0,
)
LOGPROBS = wire.TokenLogprobs(-0.5, [5, 6], [-0.25, -1.5])

DOWN = [
    wire.Load(predictor="a.b:C", source="/x/y.gguf", options={"dtype": "auto", "n": [1, None, 2.5, b"\xff"]}),
    wire.Submit(request_id="r", prompt_token_ids=[], priority=-1),
    wire.Submit(request_id="ü", prompt_token_ids=[0, 2**31], sampling=SAMPLING),
    wire.SubmitText(request_id="n1", text="\u00fc"),
    wire.Abort(request_id="r"),
    wire.Abort(request_id="r", choice=0, finish_reason="stop", reason="x"),
    wire.Hold(request_id="r", is_held=True),
    wire.Infer(request_id="r", tensors=[wire.Tensor(name="x", datatype="FP32", shape=[0, 3], data=b"")]),
    wire.Profile(num_steps=0),
    wire.Shutdown(),
]
UP = [
    wire.Loading(phase="read", fraction=0.5, elapsed_s=1.25),
    wire.Loading(phase="build"),
    wire.Ready(info={"max_model_len": 2048, "plan": ["a", "b"]}),
    wire.Failed(error=ERROR),
    wire.Accepted(request_id="r"),
    wire.Refused(request_id="r", error=wire.Error(kind="InvalidRequest", message="")),
    wire.Step(),
    wire.Step(
        events=[
            wire.TokenEvent("r", 0, [1, 2], [LOGPROBS, LOGPROBS], None, None, 16),
            wire.TokenEvent("r", 1, [], None, "error", "why", 0, ERROR),
            wire.TokenEvent("s", 0, [2], None, "stop", 2),
        ],
        num_running=2,
        num_waiting=1,
        num_tokens=3,
        num_preemptions=1,
        num_free_blocks=7,
        num_cached_blocks=8,
    ),
    wire.PromptLogprobs(request_id="r", start=16, logprobs=[LOGPROBS]),
    wire.Embedding(request_id="r", data=b"\x00\x01\x02\x03"),
    wire.Embedding(request_id="n1", data=b"", num_tokens=7),
    wire.Outputs(request_id="r", tensors=[wire.Tensor(name="y", datatype="INT8", shape=[2], data=b"ab")]),
    wire.Outputs(request_id="r", error=ERROR),
    wire.Stats(values={"num_running": 1.0}),
    wire.ProfiledStep(
        begin_ns=2**62,
        end_ns=2**62 + 1,
        num_sequences=1,
        num_tokens=2,
        spans=[wire.Span("Norm", "x", 2**62, 2**62 + 1)],
    ),
    wire.Waiting(),
    wire.ProfileEnd(),
    wire.ProfileEnd(error=ERROR),
]


@pytest.mark.parametrize("message", DOWN, ids=lambda message: type(message).__name__)
def test_a_message_to_the_worker_survives_its_encoding(message: wire.Down) -> None:
    assert wire.decode_down(wire.encode(message)) == message


@pytest.mark.parametrize("message", UP, ids=lambda message: type(message).__name__)
def test_a_message_to_the_parent_survives_its_encoding(message: wire.Up) -> None:
    assert wire.decode_up(wire.encode(message)) == message


def test_no_message_of_the_vocabulary_is_left_out_above() -> None:
    assert {type(message) for message in DOWN} == set(get_args(wire.Down))
    assert {type(message) for message in UP} == set(get_args(wire.Up))


@pytest.mark.parametrize("message", DOWN + UP, ids=lambda message: type(message).__name__)
def test_an_unknown_field_is_ignored(message: wire.Down | wire.Up) -> None:
    fields = msgspec.msgpack.decode(wire.encode(message))
    newer = msgspec.msgpack.encode({**fields, "a_field_of_a_later_version": [1, {"x": None}]})
    decode = wire.decode_down if isinstance(message, get_args(wire.Down)) else wire.decode_up
    assert decode(newer) == message


def test_an_event_of_a_later_version_may_be_longer() -> None:
    step = {"type": "step", "events": [["r", 0, [1], None, None, None, 0, None, 0, "later"]]}
    assert wire.decode_up(msgspec.msgpack.encode(step)) == wire.Step(events=[wire.TokenEvent("r", 0, [1])])


def test_an_event_of_an_earlier_version_may_be_shorter() -> None:
    step = {"type": "step", "events": [["r", 0]]}
    assert wire.decode_up(msgspec.msgpack.encode(step)) == wire.Step(events=[wire.TokenEvent("r", 0)])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode({"type": "nonsense"}),
        msgspec.msgpack.encode({"type": "abort"}),
        msgspec.msgpack.encode({"type": "abort", "request_id": 7}),
        wire.encode(wire.Abort(request_id="r"))[:-1],
        wire.encode(wire.Abort(request_id="r")) + b"\x00",
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_down(payload)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_down(wire.encode(wire.Accepted(request_id="r")))
    with pytest.raises(msgspec.DecodeError):
        wire.decode_up(wire.encode(wire.Abort(request_id="r")))
