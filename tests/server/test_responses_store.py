"""ResponseStore: what is kept within its limits, in which order it is let go, and what its bytes are."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.server.openai.responses.schema import InputText, Item, MessageItem, OutputText
from headway.server.openai.responses.store import OVERHEAD_BYTES, ResponseStore, Turn

ME, OTHER = b"me", b"other"


def make(name: str, previous: Turn | None = None, size: int = 100) -> Turn:
    """A turn of size + OVERHEAD_BYTES bytes."""
    output = f'[{{"type":"message","id":"{name}","role":"assistant","content":[]}}]'.encode()
    return Turn(b" " * (size - len(output) - 2), b"[]", output, previous)


SIZE = 100 + OVERHEAD_BYTES


def kept(store: ResponseStore, names: str, owner: bytes = ME) -> str:
    """Which of them are there; asking counts as a use."""
    return "".join(name for name in names if store.get(owner, name) is not None)


def test_the_longest_unused_goes_first_by_number_and_by_bytes() -> None:
    for store in (ResponseStore(10**6, 2), ResponseStore(2 * SIZE, 10)):
        for name in "ab":
            store.add(ME, name, make(name))
        assert kept(store, "a") == "a"
        store.add(ME, "c", make("c"))
        assert kept(store, "abc") == "ac"
        assert store.num_bytes == store.count_bytes() == 2 * SIZE


def test_a_turn_stays_as_long_as_one_that_goes_on_from_it() -> None:
    store = ResponseStore(10 * SIZE, 2)
    first = make("a")
    store.add(ME, "a", first)
    second = make("b", first)
    store.add(ME, "b", second)
    store.add(ME, "c", make("c", second))
    assert kept(store, "abc") == "bc"
    assert store.num_bytes == store.count_bytes() == 3 * SIZE
    turn = store.get(ME, "c")
    assert turn is not None
    assert [item.id for item in turn.history()] == ["a", "b", "c"]
    store.add(ME, "d", make("d"))
    store.add(ME, "e", make("e"))
    assert store.num_bytes == store.count_bytes() == 2 * SIZE


def test_what_was_let_go_while_a_turn_ran_comes_back_with_it() -> None:
    store = ResponseStore(10 * SIZE, 1)
    first = make("a")
    store.add(ME, "a", first)
    store.add(ME, "x", make("x"))
    assert store.num_bytes == SIZE
    store.add(ME, "b", make("b", first))
    assert kept(store, "axb") == "b"
    assert store.num_bytes == store.count_bytes() == 2 * SIZE


def test_a_conversation_over_the_size_is_not_kept_and_lets_nothing_go() -> None:
    store = ResponseStore(2 * SIZE, 10)
    first = make("a")
    store.add(ME, "a", first)
    store.add(ME, "b", make("b", make("x", first)))
    store.add(ME, "c", make("c", size=2 * SIZE))
    assert kept(store, "abc") == "a"
    assert store.num_bytes == store.count_bytes() == SIZE


def test_a_store_that_is_off_keeps_nothing() -> None:
    for store in (ResponseStore(0, 10), ResponseStore(10**6, 0)):
        store.add(ME, "a", make("a"))
        assert (store.is_on, len(store), store.num_bytes) == (False, 0, 0)


def test_an_id_is_found_by_its_owner_alone() -> None:
    store = ResponseStore(10**6, 10)
    store.add(ME, "a", make("a"))
    assert store.get(OTHER, "a") is None
    assert store.delete(OTHER, "a") is False
    assert store.delete(ME, "a") is True
    assert store.delete(ME, "a") is False
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_long_conversation_is_held_and_let_go_without_recursion() -> None:
    store = ResponseStore(10**9, 10**6)
    turn = None
    for number in range(5000):
        turn = make(str(number), turn)
    assert turn is not None
    store.add(ME, "last", turn)
    assert store.num_bytes == 5000 * SIZE
    assert len(turn.history()) == 5000
    store.delete(ME, "last")
    assert store.num_bytes == 0


def test_items_come_back_as_they_were() -> None:
    items: list[Item] = [
        MessageItem("msg_1", "user", [InputText("é\u2028\x00")]),
        MessageItem("msg_2", "assistant", [OutputText("👋")], "incomplete"),
    ]
    turn = Turn(b"{}", msgspec.json.encode(items), msgspec.json.encode(items[1:]))
    assert turn.input_items() == items
    assert turn.history() == [*items, items[1]]


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "get", "delete"]),
        st.sampled_from([ME, OTHER]),
        st.integers(0, 11),
        st.integers(0, 11),
        st.integers(100, 2000),
    ),
    max_size=60,
)


@given(ACTS, st.integers(1, 12), st.integers(2000, 12_000))
@settings(max_examples=150, deadline=None)
def test_bytes_and_numbers_hold_after_each_act(acts: list[Any], max_responses: int, max_bytes: int) -> None:
    store = ResponseStore(max_bytes, max_responses)
    turns: dict[int, Turn] = {}
    for number, (act, owner, name, previous, size) in enumerate(acts):
        if act == "add":
            turns[name] = make(str(name), turns.get(previous), size)
            store.add(owner, str(number), turns[name])
        elif act == "get":
            store.get(owner, str(name))
        else:
            store.delete(owner, str(name))
        assert store.num_bytes == store.count_bytes() <= max_bytes
        assert len(store) <= max_responses
