"""What /predict's input_data means: tensors, images, or a value as it is."""

import base64
from typing import Any

import pytest

from headway.errors import InvalidRequest
from headway.server.basic.predict_input import MAX_URLS, is_tensors, read_value

PIXELS = b"\x89PNG\x00\xff"
B64 = base64.b64encode(PIXELS).decode()


class Fetcher:
    """server/media.MediaFetcher of one page a URL."""

    max_bytes = 1000

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def fetch(self, url: str, param: str, max_bytes: int) -> bytes:
        self.asked.append((url, param))
        return url.encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"x": {"data": [1], "shape": [1], "datatype": "INT64"}}, True),
        ({"x": {"data": [1]}, "y": {"data": [2], "shape": [1]}}, True),
        ({"x": {"data": [1], "note": "n"}}, False),
        ({"x": {"data": [1]}, "y": [1]}, False),
        ({"x": {"shape": [1]}}, False),
        ({}, False),
        ([{"data": [1]}], False),
        ("text", False),
    ],
)
def test_named_tensors_are_told_by_their_form(value: Any, expected: bool) -> None:
    assert is_tensors(value) is expected


@pytest.mark.parametrize(
    "value",
    ["text", 3, 2.5, True, None, [1, 2], [[1, 2], [3]], {"a": {"b": [{"c": 1}]}}, ["a", None], {"b64": 1, "c": 2}],
)
async def test_a_value_of_another_model_is_left_as_it_is(value: Any) -> None:
    assert await read_value(value, "python", Fetcher()) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b64": B64}, PIXELS),
        ([{"b64": B64}, {"b64": ""}], [PIXELS, b""]),
        ({"image": {"b64": B64}, "k": [1]}, {"image": PIXELS, "k": [1]}),
        ({"url": "https://a.example/x"}, {"url": "https://a.example/x"}),
        ("https://a.example/x", "https://a.example/x"),
    ],
)
async def test_of_any_model_b64_marks_bytes_at_any_depth_and_a_url_is_a_text(value: Any, expected: Any) -> None:
    assert await read_value(value, "python", Fetcher()) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (B64, PIXELS),
        (f"data:image/png;base64,{B64}", PIXELS),
        ("https://a.example/cat.jpg", b"https://a.example/cat.jpg"),
        ([B64, f"data:;base64,{B64}"], [PIXELS, PIXELS]),
        ([[0.5, 1.0]], [[0.5, 1.0]]),
        ({"url": "https://a.example/x"}, b"https://a.example/x"),
        ([[{"url": "https://a.example/x"}]], [[b"https://a.example/x"]]),
    ],
)
async def test_of_a_model_of_images_a_string_is_an_image(value: Any, expected: Any) -> None:
    assert await read_value(value, "image-classification", Fetcher()) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "place", "words"),
    [
        ("no base64!", "input_data", "no base64"),
        ("a", "input_data", "no base64"),
        ([B64, "?"], "input_data[1]", "no base64"),
        ("data:image/png,raw", "input_data", "not in base64"),
        ({"b64": 3}, "input_data.b64", "is 3"),
        ([{"url": ["x"]}], "input_data[0].url", "a list"),
    ],
)
async def test_what_is_no_image_is_refused_by_its_place(value: Any, place: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as raised:
        await read_value(value, "image-classification", Fetcher())  # type: ignore[arg-type]
    assert raised.value.param == place


async def test_a_url_is_fetched_under_the_name_of_its_place_and_so_many_at_once() -> None:
    fetcher = Fetcher()
    urls = [{"url": f"https://a.example/{index}"} for index in range(MAX_URLS)]
    await read_value(urls, "image-classification", fetcher)  # type: ignore[arg-type]
    assert fetcher.asked[3] == ("https://a.example/3", "input_data[3].url")
    with pytest.raises(InvalidRequest, match=f"more than {MAX_URLS} URLs"):
        await read_value([*urls, {"url": "https://a.example/x"}], "image-classification", Fetcher())  # type: ignore[arg-type]
