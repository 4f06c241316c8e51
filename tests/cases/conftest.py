"""What users of other servers have reported, as small inputs with right answers: each against `headway serve`.

serving.jsonl has them all; a test names those that it shows by the mark `case`. The model is worked by hand
(headway.testing.tiny_model) and runs on the native executor, in a cache of 512 tokens.
"""

import json
from collections.abc import Iterator

import pytest

from cases.asking import EXTRA_END
from e2e.serving import Server, start_server, stop_server
from headway.testing.script import END_TOKEN_ID
from headway.testing.tiny_model import HIDDEN_SIZE, MAX_POSITION, write_tiny_model


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END_TOKEN_ID, EXTRA_END]}))
    flags = ["--executor", "native", "--threads", "1", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
    flags += ["--kv-cache-memory", str(MAX_POSITION * 2 * HIDDEN_SIZE * 2)]
    server = start_server(tmp_path_factory.mktemp("serve"), *flags, model=str(folder))
    yield server
    assert stop_server(server) == 0, server.describe()


@pytest.fixture
def server(tiny_server: Server) -> Iterator[Server]:
    """After each case it is alive, empty, and has all its blocks."""
    yield tiny_server
    tiny_server.check_idle()
