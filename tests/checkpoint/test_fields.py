from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.checkpoint.fields import Fields, read_json
from headway.errors import CorruptCheckpoint

Save = Callable[..., tuple[Path, torch.nn.Module]]
Put = Callable[[str, Any], None]


@pytest.mark.parametrize(
    "content", [b"{", b"[1]", b"\xff", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"[" * 100_000, b"", rb'{"a": "\udc00"}']
)
def test_a_config_that_is_no_json_object_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        Fields.of_json(tmp_path / "config.json")


def test_a_pair_of_surrogates_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(rb'{"a": "\uD83d\ude00"}')
    assert read_json(tmp_path / "a.json") == {"a": "\U0001f600"}


def test_a_json_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(" " * 100)
    with pytest.raises(CorruptCheckpoint, match="100 bytes; at most 99"):
        read_json(tmp_path / "a.json", max_bytes=99)
