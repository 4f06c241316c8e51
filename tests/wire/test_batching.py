"""Which requests are computed together, and when: as literals."""

from typing import Any

from headway_wire import Infer, Tensor
from headway_wire.batching import WaitingLine, kind_of


def infer(request_id: str, shape: list[int] | None = None, **fields: Any) -> Infer:
    tensors = [] if shape is None else [Tensor(name="x", datatype="FP32", shape=shape, data=b"")]
    return Infer(request_id=request_id, tensors=tensors, **fields)


def ids(batch: list[Infer]) -> str:
    return " ".join(request.request_id for request in batch)


def line_of(*requests: Infer, size: int = 4, delay_s: float = 0.0) -> WaitingLine:
    line = WaitingLine(size, delay_s)
    for request in requests:
        line.put(request, 10.0)
    return line


def test_the_oldest_goes_first_with_those_of_its_kind_and_at_most_so_many() -> None:
    line = line_of(infer("a", [1, 2]), infer("b", [1, 3]), infer("c", [5, 2]), infer("d"), infer("e", [2, 2]), size=2)
    assert [ids(line.take(10.0)) for _ in range(5)] == ["a c", "b", "d", "e", ""]
    assert len(line) == 0


def test_a_kind_is_names_datatypes_shapes_but_for_the_first_axis_parameters_and_outputs() -> None:
    two = [Tensor(name=name, datatype="FP32", shape=[1, 2], data=b"") for name in "xy"]
    same = Infer(request_id="1", tensors=two, parameters={"a": 1, "b": 2})
    assert kind_of(same) == kind_of(Infer(request_id="2", tensors=two[::-1], parameters={"b": 2, "a": 1}))
    others = [
        Infer(request_id="3", tensors=two[:1], parameters={"a": 1, "b": 2}),
        Infer(request_id="4", tensors=two, parameters={"a": 1, "b": 3}),
        Infer(request_id="5", tensors=two, parameters={"a": 1, "b": 2}, outputs=["z"]),
        Infer(request_id="6", value=1, parameters={"a": 1, "b": 2}),
        infer("7", [2]),
        infer("8", []),
    ]
    kinds = [kind_of(same), *map(kind_of, others)]
    assert len(set(kinds)) == len(kinds)


def test_it_waits_for_more_until_the_batch_is_full_or_the_oldest_has_waited_for_the_delay() -> None:
    line = line_of(infer("a"), infer("b"), size=3, delay_s=0.5)
    assert line.wait_s(10.2) == 0.5 + 10.0 - 10.2
    assert line.take(10.2) == []
    line.put(infer("c", [1]), 10.25)
    assert line.take(10.25) == [], "another kind does not fill the batch"
    line.put(infer("d"), 10.3)
    assert (line.wait_s(10.3), ids(line.take(10.3))) == (0.0, "a b d")
    assert line.take(10.74) == []
    assert ids(line.take(10.75)) == "c"
    assert line.wait_s(11.0) is None


def test_without_batches_nobody_waits() -> None:
    line = line_of(infer("a"), infer("b"), size=1, delay_s=9.0)
    assert (line.wait_s(10.0), ids(line.take(10.0)), ids(line.take(10.0))) == (0.0, "a", "b")


def test_who_is_dropped_or_has_waited_too_long_is_not_computed() -> None:
    line = line_of(infer("a", timeout_s=1.0), infer("b"), infer("c", timeout_s=3.0))
    assert (line.drop("b"), line.drop("b"), line.drop("z")) == (True, False, False)
    assert ids(line.take_expired(10.99)) == ""
    assert ids(line.take_expired(11.0)) == "a"
    assert ids(line.take(11.0)) == "c"


def test_times_are_watched_of_those_that_still_wait() -> None:
    line = line_of(infer("a", timeout_s=1.0), infer("b", timeout_s=2.0), infer("c", [1], timeout_s=1.5))
    line.drop("a")
    assert ids(line.take_expired(11.25)) == ""
    assert ids(line.take_expired(13.0)) == "b c"
    line.put(infer("d", timeout_s=0.5), 14.0)
    assert (ids(line.take_expired(14.25)), ids(line.take_expired(14.5)), len(line)) == ("", "d", 0)


def test_those_between_them_of_other_kinds_keep_their_order() -> None:
    line = line_of(*(infer(name, [1, ord(name) % 3]) for name in "abcdefg"), size=2)
    assert [ids(line.take(10.0)) for _ in range(5)] == ["a d", "b e", "c f", "g", ""]


def test_seconds_in_the_line_are_summed_over_those_that_were_taken() -> None:
    line = WaitingLine(2, 0.0)
    line.put(infer("a"), 1.0)
    line.put(infer("b"), 1.5)
    line.take(2.0)
    assert line.waited_s == 1.5
