"""One suite by Triton's own clients, over HTTP and gRPC, against Headway, and (`make test-peers`) the real Triton."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tests.peers.triton_server import serve_triton
from tests.server.oip.models import CONFIGS, KINDS, LABELS, triton_code, write_headway_models
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from headway.config import CheckpointConfig, InferConfig, ModelConfig, PoolConfig, ServerConfig
from headway.server.app import make_app
from headway.server.run import Announcements, HttpServer
from headway.service.local import LocalService

pytestmark = pytest.mark.timeout(120)

TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32,
    "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip


@dataclass(frozen=True)
class Address:
    """A server that answers both."""

    name: str
    http: str
    grpc: str


@dataclass(frozen=True)
class Client:
    """One of the two clients, which have the same classes and methods."""

    module: ModuleType
    connection: Any
    server: str

    def tensor(self, name: str, array: np.ndarray, **how: Any) -> Any:
        """An input."""
        made = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        made.set_data_from_numpy(array, **how)
        return made

    def infer(self, model: str, arrays: dict[str, np.ndarray], **fields: Any) -> Any:
        """A result."""
        return self.connection.infer(model, [self.tensor(name, array) for name, array in arrays.items()], **fields)

    @property
    def is_http(self) -> bool:
        return self.module is tritonclient.http

    def told(self, message: Any, *path: str) -> Any:
        """A field of what is a dict over HTTP and a message over gRPC."""
        for step in path:
            message = message[step] if isinstance(message, dict) else getattr(message, step)
        return message


@pytest.fixture(scope="module")
def headway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """The real service, its workers in processes of their own, in a thread of this process."""
    folder = tmp_path_factory.mktemp("models")
    models = [
        ModelConfig(
            source=str(path),
            served_names=(name,),
            framework="python",
            type="tensor",
            infer=InferConfig(max_batch_size=8),
        )
        for name, path in write_headway_models(folder).items()
    ]
    config = ServerConfig(port=0, grpc_port=0, drain_timeout_s=5)
    started, addresses = threading.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        service = LocalService(models, PoolConfig(), config, CheckpointConfig(cache_dir=folder))
        server = HttpServer(make_app(service, config), Announcements(on_listening=lambda _: started.set()))
        addresses.append(server)
        await server.serve()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(30)
    (server,) = addresses
    yield Address("headway", server.url.removeprefix("http://"), f"127.0.0.1:{server.grpc_port}")
    loop.call_soon_threadsafe(server.stop)
    thread.join(30)
    loop.close()


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with serve_triton(tmp_path_factory.mktemp("triton")) as server:
        for name, config in CONFIGS.items():
            folder = server.write_model(name, config, triton_code(name))
            (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")
        yield Address("triton", server.http_address, server.grpc_address)


@pytest.fixture(scope="module", params=["headway", pytest.param("triton", marks=pytest.mark.peers)])
def address(request: pytest.FixtureRequest) -> Address:
    found: Address = request.getfixturevalue(request.param)
    connection = tritonclient.grpc.InferenceServerClient(found.grpc)
    for name in CONFIGS:
        connection.load_model(name)
    connection.close()
    return found


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, address: Address) -> Iterator[Client]:
    module = tritonclient.http if request.param == "http" else tritonclient.grpc
    url = address.http if request.param == "http" else address.grpc
    connection = module.InferenceServerClient(url, **({"concurrency": 8} if request.param == "http" else {}))
    yield Client(module, connection, address.name)
    connection.close()


def elements(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random ones of the whole range, its ends among them."""
    random = np.random.default_rng(seed)
    if kind == "BYTES":
        texts = [random.bytes(int(length)) for length in random.integers(0, 9, shape).reshape(-1)]
        array = np.empty(len(texts), object)
        array[:] = texts
        return array.reshape(shape)
    count = int(np.prod(shape)) * np.dtype(TYPES[kind]).itemsize
    if kind == "BOOL":
        return random.integers(0, 2, shape).astype(bool)
    array = np.frombuffer(random.bytes(count), TYPES[kind]).reshape(shape).copy()
    ends = [np.nan, np.inf, -0.0] if array.dtype.kind == "f" else [np.iinfo(array.dtype).min, np.iinfo(array.dtype).max]
    ends = ends[: array.size]
    array.reshape(-1)[: len(ends)] = np.array(ends, array.dtype)
    return array


def all_kinds(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {kind: elements(kind, shape) for kind in KINDS}


def same(first: np.ndarray, second: np.ndarray) -> None:
    """Bit for bit."""
    assert first.shape == second.shape
    assert first.dtype == second.dtype
    if first.dtype == object:
        assert first.tolist() == second.tolist()
    else:
        assert first.tobytes() == second.tobytes()


FIRST = np.array([[4, 1, 9, 3]], np.float32)
ONES = np.ones((1, 4), np.float32)
PAIR = {"INPUT0": FIRST, "INPUT1": ONES}


def test_the_server_is_live_and_ready_and_tells_what_it_is(client: Client) -> None:
    assert client.connection.is_server_live()
    assert client.connection.is_server_ready()
    metadata = client.connection.get_server_metadata()
    assert client.told(metadata, "name") == client.server
    extensions = set(client.told(metadata, "extensions"))
    assert {"binary_tensor_data", "classification", "model_repository", "statistics", "parameters"} <= extensions


def test_a_model_tells_its_versions_and_tensors(client: Client) -> None:
    metadata = client.connection.get_model_metadata("add_sub")
    assert client.told(metadata, "name") == "add_sub"
    assert list(client.told(metadata, "versions")) == ["1"]
    assert client.told(metadata, "platform") == "python"
    for side, names in (("inputs", ["INPUT0", "INPUT1"]), ("outputs", ["SUM", "DIFF"])):
        told = [
            (client.told(each, "name"), client.told(each, "datatype"), [int(n) for n in client.told(each, "shape")])
            for each in client.told(metadata, side)
        ]
        assert told == [(name, "FP32", [-1, 4]) for name in names]


def test_a_model_tells_its_configuration(client: Client) -> None:
    config = client.connection.get_model_config("upper")
    config = config if client.is_http else config.config
    assert client.told(config, "name") == "upper"
    assert client.told(config, "backend") == "python"
    assert client.told(config, "max_batch_size") == 0
    (put_in,) = client.told(config, "input")
    assert client.told(put_in, "name") == "TEXT"
    assert [int(size) for size in client.told(put_in, "dims")] == [-1]
    assert client.told(put_in, "data_type") == ("TYPE_STRING" if client.is_http else 13)


@pytest.mark.parametrize("shape", [(1, 7), (3, 5), (1, 1), (0, 3)])
def test_every_datatype_comes_back_as_it_went(shape: tuple[int, ...], client: Client) -> None:
    arrays = all_kinds(shape)
    result = client.infer("identity", arrays)
    for kind, array in arrays.items():
        same(result.as_numpy(f"OUT_{kind}"), array)


def test_every_datatype_comes_back_as_json(client: Client) -> None:
    """Where the client and Triton have it: FP16 is binary, and BYTES are UTF-8."""
    if not client.is_http:
        return
    arrays = all_kinds((2, 3))
    for kind in ("FP32", "FP64"):
        arrays[kind] = np.array([[0.1, -0.0, 0.25], [3e38, 1.5, -7]], TYPES[kind])
    arrays["BYTES"] = np.array([["a", "é", ""], ["\n", '"', "雪"]], object)
    inputs = [client.tensor(kind, array, binary_data=kind == "FP16") for kind, array in arrays.items()]
    outputs = [client.module.InferRequestedOutput(f"OUT_{kind}", binary_data=kind == "FP16") for kind in KINDS]
    result = client.connection.infer("identity", inputs, outputs=outputs)
    arrays["BYTES"] = np.array([[text.encode() for text in row] for row in arrays["BYTES"]], object)
    for kind, array in arrays.items():
        found = result.as_numpy(f"OUT_{kind}")
        if kind == "BYTES":  # of JSON the client makes texts
            found = np.array([[str(text).encode() for text in row] for row in found], object)
        same(found, array)


def test_outputs_are_those_that_were_asked_for(client: Client) -> None:
    result = client.infer("add_sub", PAIR, outputs=[client.module.InferRequestedOutput("DIFF")], request_id="q7")
    assert result.as_numpy("SUM") is None
    np.testing.assert_array_equal(result.as_numpy("DIFF"), FIRST - 1)
    response = result.get_response()
    assert client.told(response, "id") == "q7"
    assert client.told(response, "model_name") == "add_sub"
    assert client.told(response, "model_version") == "1"


def test_a_version_is_asked_for(client: Client) -> None:
    result = client.infer("add_sub", PAIR, model_version="1")
    np.testing.assert_array_equal(result.as_numpy("SUM"), FIRST + 1)


@pytest.mark.parametrize(
    ("num_classes", "expected"), [(1, ["10.000000:2:two"]), (2, ["10.000000:2:two", "5.000000:0:zero"])]
)
def test_the_largest_classes_come_with_their_labels(num_classes: int, expected: list[str], client: Client) -> None:
    output = client.module.InferRequestedOutput("SUM", class_count=num_classes)
    result = client.infer("add_sub", PAIR, outputs=[output])
    assert [text.decode() for text in result.as_numpy("SUM").reshape(-1)] == expected


def test_texts_are_bytes(client: Client) -> None:
    texts = np.array([b"abc", "straße".encode(), b""], object)
    result = client.infer("upper", {"TEXT": texts})
    assert result.as_numpy("UPPER").tolist() == [b"ABC", b"STRA\xc3\x9fE", b""]


@pytest.mark.parametrize(
    ("model", "arrays", "fields", "status", "words"),
    [
        ("nope", PAIR, {}, "NOT_FOUND", "nope"),
        ("add_sub", PAIR, {"model_version": "7"}, "NOT_FOUND", "7"),
        ("add_sub", {"INPUT0": FIRST}, {}, "INVALID_ARGUMENT", "INPUT1"),
        ("add_sub", {**PAIR, "X": ONES}, {}, "INVALID_ARGUMENT", "X"),
        ("add_sub", {**PAIR, "INPUT1": ONES.astype(np.float64)}, {}, "INVALID_ARGUMENT", "INPUT1"),
        ("add_sub", {**PAIR, "INPUT1": ONES[:, :3]}, {}, "INVALID_ARGUMENT", "INPUT1"),
        ("add_sub", {**PAIR, "INPUT1": ONES[0]}, {}, "INVALID_ARGUMENT", "INPUT"),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    model: str, arrays: dict[str, np.ndarray], fields: dict[str, Any], status: str, words: str, client: Client
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, arrays, **fields)
    found = {"404": "NOT_FOUND", "400": "INVALID_ARGUMENT"}.get(str(caught.value.status()), str(caught.value.status()))
    assert found.removeprefix("StatusCode.") == status
    assert words in caught.value.message()


def test_many_requests_at_once_get_their_own_answers(client: Client) -> None:
    results: queue.Queue[Any] = queue.Queue()
    arrays = [np.full((1, 4), value, np.float32) for value in range(24)]
    inputs = [[client.tensor("INPUT0", array), client.tensor("INPUT1", ONES)] for array in arrays]
    if client.is_http:
        asked = [client.connection.async_infer("add_sub", each) for each in inputs]
        found = [each.get_result() for each in asked]
    else:
        for place, each in enumerate(inputs):
            client.connection.async_infer(
                "add_sub", each, lambda result, error, place=place: results.put((place, result, error))
            )
        by_place = {place: (result, error) for place, result, error in (results.get(timeout=30) for _ in inputs)}
        assert not any(error for _, error in by_place.values())
        found = [by_place[place][0] for place in range(len(inputs))]
    for array, result in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(result.as_numpy("SUM"), array + 1)


def test_a_stream_answers_each_request_and_tells_what_fails(client: Client) -> None:
    if client.is_http:
        return
    answers: queue.Queue[Any] = queue.Queue()
    client.connection.start_stream(lambda result, error: answers.put((result, error)))
    pair = [client.tensor(name, array) for name, array in PAIR.items()]
    client.connection.async_stream_infer("add_sub", pair, request_id="1", enable_empty_final_response=True)
    result, error = answers.get(timeout=30)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("SUM"), FIRST + 1)
    assert result.get_response().id == "1"
    assert result.get_response().parameters["triton_final_response"].bool_param
    client.connection.async_stream_infer("add_sub", pair[:1], request_id="2")
    result, error = answers.get(timeout=30)
    assert "INPUT1" in error.message()
    client.connection.async_stream_infer("add_sub", pair, request_id="3")
    assert answers.get(timeout=30)[1] is None
    client.connection.stop_stream()


def test_a_model_is_unloaded_and_loaded(client: Client) -> None:
    def state() -> str:
        index = client.connection.get_model_repository_index()
        entries = index if client.is_http else index.models
        return next(client.told(each, "state") for each in entries if client.told(each, "name") == "upper")

    assert (state(), client.connection.is_model_ready("upper")) == ("READY", True)
    client.connection.unload_model("upper")
    assert not client.connection.is_model_ready("upper")
    client.connection.load_model("upper")
    assert (state(), client.connection.is_model_ready("upper")) == ("READY", True)
    assert client.connection.is_model_ready("upper", "1")
    assert not client.connection.is_model_ready("upper", "9")


def test_inferences_are_counted(client: Client) -> None:
    def counts() -> tuple[int, int]:
        statistics = client.connection.get_inference_statistics("add_sub")
        (model,) = client.told(statistics, "model_stats")
        stats = client.told(model, "inference_stats")
        return tuple(int(client.told(stats, kind, "count")) for kind in ("success", "fail"))  # type: ignore[return-value]

    before = counts()
    client.infer("add_sub", PAIR)
    assert counts() == (before[0] + 1, before[1])


def test_a_deadline_ends_the_call(client: Client) -> None:
    if client.is_http:
        return
    with pytest.raises(InferenceServerException) as caught:
        client.infer("upper", {"TEXT": np.array([b"slow"], object)}, client_timeout=0.1)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    np.testing.assert_array_equal(client.infer("add_sub", PAIR).as_numpy("SUM"), FIRST + 1)
