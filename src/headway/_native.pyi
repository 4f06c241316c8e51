"""The kernels of native/: arrays in, arrays out. Arrays are C-contiguous and of exactly the types named here."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def available_isas() -> list[str]:
    """Instruction sets that this machine and this build have, the slowest first: plain, avx2, avx512."""

def chosen_isa() -> str:
    """The one that HEADWAY_ISA names, else the fastest. Raises ValueError if that one is not available."""

def philox4x64(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x64-10: four 64-bit words of noise for a counter of four and a key of two."""

def explain_bus_errors(exit_code: int) -> None:
    """From now on a SIGBUS in a watched mapping ends the process with this code, and a line on standard error."""

def watch_mapping(start: int, num_bytes: int, path: str) -> int:
    """Notes the mapping of the file `path` at the address `start`; what unwatch_mapping takes."""

def unwatch_mapping(place: int) -> None:
    """Forgets it, before it is unmapped."""

_Place = tuple[int, int, int]
"""Offset, row stride and width, in floats."""
_PreparedPlace = tuple[int, int, int, int, int]
"""Bytes where q, scales, sums and wide rows begin, -1 for none, and the width in columns."""

def step_kernels() -> tuple[str, int, bool]:
    """Name, row tile, and whether bfloat16 is multiplied as it is. Raises ValueError as chosen_isa()."""

class Workers:
    """The threads that steps run on, the caller's own included; they sleep between steps."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class PackedMatrix:
    """A weight in a run form: native/src/exec/matrix.h."""

    def __init__(
        self, form: str, *, group: int, has_min: bool, wide_scales: bool, num_rows: int, num_cols: int
    ) -> None:
        """All zeros. Raises ValueError on sizes and forms that cannot be, MemoryError."""

    @property
    def num_bytes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    def pack(self, type: str, data: npt.NDArray[np.uint8], dest_rows: npt.NDArray[np.int32], workers: Workers) -> None:
        """Row i of a file's tensor becomes row dest_rows[i]. Raises ValueError, IndexError on a row that is not."""

    def dequantise(self, out: npt.NDArray[np.float32]) -> None:
        """All of it as float32."""

class KVCacheView:
    """The memory of one cache, as a plan's ops take it."""

class Plan:
    """A compiled Program: headway.executor.native_plan writes it, stage by stage."""

    def __init__(
        self,
        workers: Workers,
        *,
        max_tokens: int,
        max_selected: int,
        max_seqs: int,
        max_context: int,
        num_embeddings: int,
        num_blocks: int,
        block_size: int,
        arena_bytes: int,
        has_floats: bool = False,
    ) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    def row_stage(self, *, is_selected: bool, cuts_at_blocks: bool) -> None: ...
    def embed(self, table: PackedMatrix, *, by_position: bool, offset: int, scale: float, out: _Place) -> None: ...
    def norm(
        self,
        *,
        is_layer: bool,
        input: _Place,
        out: _Place,
        head: int,
        weight: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32] | None,
        eps: float,
        one_plus: bool,
    ) -> None: ...
    def prepare(self, *, is_selected: bool, input: _Place, out: _PreparedPlace) -> None: ...
    def element(
        self,
        *,
        what: int,
        activation: int,
        gate: int,
        factor: float,
        cap: float,
        left: _Place,
        right: _Place,
        out: _Place,
    ) -> None: ...
    def rope(
        self,
        *,
        value: _Place,
        head_dim: int,
        cosines: npt.NDArray[np.float32],
        sines: npt.NDArray[np.float32],
        interleaved: bool,
    ) -> None: ...
    def select(self, *, input: _Place, out: _Place) -> None: ...
    def embed_types(self, table: PackedMatrix, *, out: _Place) -> None: ...
    def pool(self, *, kind: int, normalise: bool, input: _Place, out: _Place) -> None: ...
    def copy_heads(
        self, *, input: _Place, out: _Place, num_heads: int, width: int, in_step: int, out_step: int
    ) -> None: ...
    def route(
        self,
        *,
        input: _Place,
        out: _Place,
        is_sigmoid: bool,
        top_k: int,
        num_groups: int,
        top_groups: int,
        num_counted: int,
        bias: npt.NDArray[np.float32] | None,
        normalise: bool,
        scale: float,
    ) -> None: ...
    def expert_gather(self, *, routing: _Place, max_places: int, input: _Place, out: _PreparedPlace) -> int:
        """The first of four stages: their schedule."""

    def expert_pairs(
        self, schedule: int, matrix: PackedMatrix, *, num_rows: int, gate: int, input: _PreparedPlace, out: _Place
    ) -> None: ...
    def expert_prepare(self, schedule: int, *, input: _Place, out: _PreparedPlace) -> None: ...
    def expert_sum(
        self, schedule: int, matrix: PackedMatrix, *, num_rows: int, input: _PreparedPlace, out: _Place
    ) -> None: ...
    def product_stage(self, *, is_selected: bool, input: _PreparedPlace) -> None: ...
    def product(
        self,
        matrix: PackedMatrix,
        *,
        out: _Place,
        bias: npt.NDArray[np.float32] | None,
        base: _Place,
        scale: float,
        gate: int,
        input: _PreparedPlace | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        """`input`: the stage's where there is none; `rows`: (first, number) of the matrix, first a multiple of 16."""

    def cache(
        self,
        *,
        dtype: str,
        num_kv_heads: int,
        qk_dim: int,
        v_dim: int,
        k: npt.NDArray[np.uint8],
        v: npt.NDArray[np.uint8] | None,
    ) -> KVCacheView:
        """`dtype`: bfloat16, float16 or int8; v None where values are columns of their keys. Raises ValueError."""

    def write_kv(self, cache: KVCacheView, *, k: _Place, v: _Place) -> None: ...
    def attention(
        self,
        cache: KVCacheView,
        *,
        q: _Place,
        out: _Place,
        num_heads: int,
        scale: float,
        soft_cap: float,
        window: int,
        causal: bool,
        head_parts: int = 1,
    ) -> None: ...
    def finish(self, *, last_hidden: _Place, logits: _Place) -> None:
        """Takes the memory. Raises MemoryError that names the bytes."""

    def execute(self, *step: npt.NDArray[np.signedinteger]) -> None:
        """token_ids, positions, slots, query_starts, context_lens, block_tables, logit_rows. Raises ValueError before
        anything is written."""

    def encode(self, *step: npt.NDArray[np.signedinteger]) -> None:
        """token_ids, token_types, positions, slots, query_starts, context_lens, block_tables, the last row of each
        sequence. Raises as execute()."""

    def sample(self, *arguments: object) -> None:
        """As execute(), then rows to check and where to say whether each is finite, a Sampler, and its sample()'s
        arguments without the logits."""

    def logits(self) -> npt.NDArray[np.float32]:
        """[num_logit_rows, vocabulary] of the last step, a view."""

    def time_stages(self, is_on: bool) -> None:
        """Whether steps note when each stage begins."""

    def stage_times(self) -> list[int]:
        """Nanoseconds of the monotonic clock, of the last step that was timed: the begin of each stage in order, of the
        check of hidden rows and of sampling, then the end."""

class Sampler:
    """Samples batches of rows; headway.engine.sampler.Sampler is its Python side."""

    def __init__(
        self, token_ids: npt.NDArray[np.int32], masks: npt.NDArray[np.int32], vocab_size: int, threads: int
    ) -> None:
        """Keeps `token_ids` [max_num_seqs, max_model_len] and `masks` [max_num_seqs, ceil(vocab_size / 32)], and reads
        them at each sample(). Raises ValueError."""

    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    def set_row(
        self,
        row: int,
        *,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float,
        presence_penalty: float,
        frequency_penalty: float,
        repetition_penalty: float,
        seed: int,
        choice: int,
        bias_ids: Sequence[int],
        biases: Sequence[float],
        allowed_ids: Sequence[int] = ...,
        bad_words: Sequence[Sequence[int]] = ...,
        banned_ids: Sequence[int],
        min_tokens: int,
        num_prompt_tokens: int,
        num_logprobs: int,
        num_prompt_logprobs: int = -1,
    ) -> None:
        """How this row's tokens are chosen from now on. A number of logprobs is -1 for none. Raises ValueError."""

    def set_masked(self, row: int, is_masked: bool) -> None:
        """Whether the row's tokens are chosen among those of its mask: bit i % 32 of word i / 32 allows token i."""

    def set_given(self, row: int, num_given: int) -> None:
        """The row's first so many tokens are not to be chosen: where sample() is told fewer, it scores the next one."""

    def close_masks(self) -> None:
        """Masks are being written: a sample() that meets a masked row waits until open_masks()."""

    def open_masks(self) -> None:
        """They are written. From any thread."""

    def sample(
        self,
        logits: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.int32],
        chosen: npt.NDArray[np.int32],
        is_finite: npt.NDArray[np.bool_],
        logprobs: npt.NDArray[np.float32],
        top_ids: npt.NDArray[np.int32],
        top_logprobs: npt.NDArray[np.float32],
    ) -> None:
        """Fills the five last arrays, without the GIL. Raises ValueError before anything is written."""

class HistogramCounts:
    """Counts of one histogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Upper bounds, ascending. Raises ValueError where they are not."""

    def observe(self, value: float, count: int = 1) -> None:
        """The same value so many times; it belongs to the first bucket whose bound it does not exceed."""

    @property
    def in_bucket(self) -> list[int]:
        """Of each bucket alone; the last one has no bound."""

    @property
    def sum(self) -> float:
        """Of all values."""

class TokenTimes:
    """When a choice's tokens came; each gap between them is counted."""

    def __init__(self, now_s: float, num_tokens: int, gaps: HistogramCounts) -> None:
        """With its first tokens."""

    @property
    def first_s(self) -> float: ...
    @property
    def last_s(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    def add(self, num_tokens: int, now_s: float) -> None:
        """More tokens, which share the time since those before them. Raises ValueError for none."""

class TokenSpelling:
    """The bytes of each token of a vocabulary, asked for once and then kept."""

    def __init__(self, num_tokens: int, spell: Callable[[int], bytes], special_ids: Sequence[int]) -> None:
        """`spell` must not refer to what owns this; a token for which it raises takes no fast path."""

class Outlet:
    """A connection's way out: by its socket while the transport holds nothing back, else by the transport."""

    def __init__(self, transport: asyncio.Transport, fd: int) -> None:
        """Nothing may be written to the transport but by this. `fd`: its stream socket's; -1: only by the transport."""

    def lose(self) -> None:
        """Drops what waits, and the transport: the connection is lost."""

class WriteQueue:
    """The writes of one turn of an event loop, of each connection in order. One thread owns it."""

    def __init__(self) -> None: ...
    def add(self, outlet: Outlet, data: bytes) -> bool:
        """Whether it is the first since flush(), which must follow then. Nothing behind add_end()."""

    def add_end(self, outlet: Outlet) -> bool:
        """The connection is closed behind what was written to it. As add()."""

    def flush(self) -> None:
        """Writes all, but to connections that are closing. A transport that raises is told of as unraisable."""

class FrameWriter:
    """What goes down to a worker process: all frames of one turn of the event loop, at its end in one write."""

    def __init__(self, transport: asyncio.BaseTransport, fd: int, schedule: Callable[[], object]) -> None:
        """`schedule`: called where flush() has to be called at the end of the turn."""

    def write(self, payload: bytes) -> None:
        """In a frame; nothing if the transport is closing by then. Raises ValueError for over 256 MiB."""

    def flush(self) -> None: ...
    def lose(self) -> None:
        """The connection is lost: what waits is dropped, and what comes."""

class PlainModel:
    """What is open at a model that takes tensors: what worker/infer_client and the native way share."""

    num_at_work: int
    num_waiting: int
    num_open_bytes: int

    def __init__(self) -> None: ...
    @property
    def num_in_flight(self) -> int:
        """On the native way."""

    @property
    def num_uses(self) -> int:
        """Requests that took the native way since its lease began."""

    @property
    def num_answered(self) -> int:
        """Of these."""

    @property
    def is_leased(self) -> bool: ...
    def set_limits(
        self, *, max_at_work: int | None, max_queued: int | None, max_open_bytes: int, num_places: int
    ) -> None: ...
    def open(self, try_lease: Callable[[], bool], dispatch: Callable[[], object]) -> None:
        """From now on requests may take the native way. `try_lease`: asked where there is none; `dispatch`: called
        where there may be a place for one that waits."""

    def end_lease(self) -> tuple[int, int]:
        """It is not held any more. num_uses and num_answered."""

    def close(self) -> None:
        """No request takes the native way any more."""

class PlainInstance:
    """A process of a PlainModel."""

    num_open: int
    """Requests, whichever way they came."""
    is_ready: bool

    def __init__(
        self,
        model: PlainModel,
        writer: FrameWriter | None,
        on_abort: Callable[[str], object],
        decode: Callable[[bytes], object],
    ) -> None:
        """`writer` None: nothing goes there on the native way. `on_abort`: called with the id on the wire of a request
        whose client left. `decode`: a payload as a message."""

    @property
    def num_in_flight(self) -> int: ...
    def take(self, payload: bytes) -> bool:
        """Whether it was an answer to a request on the native way: then it is dealt with. Raises what `decode` does."""

    def fail(self, error: Exception) -> None:
        """The process is gone: what is on the native way goes on in Python, where this is its model's answer."""

    def expire(self, now_s: float, error: Exception) -> list[str]:
        """The same for what is to be answered by `now_s`, while the process lives: it need not compute these."""

class DoorCodec:
    """What a path's requests are read with, and its answers written with."""

def infer_codec(
    *,
    inputs: Sequence[tuple[str, str, Sequence[int], bool]],
    outputs: Sequence[str],
    name: str,
    version: str,
    has_plus: bool,
) -> DoorCodec:
    """Of POST /v2/models/MODEL/infer. `inputs`: name, datatype, shape, whether it may be left out. `has_plus`: orjson
    writes 1e+16. Raises ValueError for a signature that is not read natively."""

def predict_codec(
    *,
    inputs: Sequence[tuple[str, str, Sequence[int], bool]],
    takes_values: bool,
    takes_images: bool,
    name: str,
    version: str,
) -> DoorCodec:
    """Of POST /predict, of a model of tensors or values. `takes_images`: a text may be an image, and is not read here.
    Raises as infer_codec()."""

def text_codec(*, prompt: str, name: str, version: str) -> DoorCodec:
    """Of POST /predict of an encoder whose process makes the ids of a text. `prompt`: what stands before it."""

class DoorCounts:
    """What was answered natively, of a route and a model."""

    def __init__(self, handler: str, http_seconds: HistogramCounts, infer_seconds: HistogramCounts | None) -> None: ...
    def take(self) -> tuple[int, float, int, int]:
        """How many since the last call, their seconds, the last one's Unix milliseconds, and an encoder's tokens."""

class DoorEntry:
    """What all requests of a path share."""

    def __init__(self, *, counts: DoorCounts, model: PlainModel, codec: DoorCodec, timeout_s: float | None) -> None: ...

class Door:
    """Which paths have a native way, and what all connections of a server share."""

    keeps_records: bool

    def __init__(
        self,
        queue: WriteQueue,
        schedule: Callable[[], object],
        *,
        hosts: Sequence[str],
        api_keys: Sequence[str],
        max_body_bytes: int,
        max_held_bytes: int,
        on_records: Callable[[], object],
        on_gathering: Callable[[], object],
    ) -> None:
        """`on_records`: take_records() has something, first of this turn. `on_gathering`: expire() has to be called in
        a while. Empty hosts: any; empty api_keys: none is asked for. `max_held_bytes`: of all requests that are
        open, or not whole yet; over it they take the Python way."""

    def add(self, path: str, entry: DoorEntry) -> None: ...
    def add_predict(self, model: str, entry: DoorEntry) -> None:
        """Of POST /predict, where the body names this model."""

    def drop(self) -> None:
        """All entries: what comes takes the Python way."""

    @property
    def num_entries(self) -> int: ...
    @property
    def num_open(self) -> int: ...
    @property
    def num_held_bytes(self) -> int:
        """Of requests that are open, or not whole yet, of all connections."""

    def take_records(self) -> list[tuple[str, str, float]]:
        """Of what was answered: its handler, the request's id, and its seconds."""

    def expire(self, limit_s: float) -> bool:
        """Requests that have not become whole within so many seconds go on in Python. Whether others are left."""

class DoorConnection:
    """A client's connection, as the native way sees it: one request at a time, whole, and what came behind it."""

    def __init__(self, door: Door, outlet: Outlet, protocol: object) -> None:
        """`protocol`: has feed(), go_on() and answer_in_python() (server/connection)."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is open: what comes has to be given to take()."""

    @property
    def is_gathering(self) -> bool:
        """Whether a request is not whole yet."""

    @property
    def last_answer_s(self) -> float: ...
    @property
    def num_bytes_behind(self) -> int:
        """Of what came after the request that is open."""

    @property
    def closes(self) -> bool: ...
    def take(self, data: bytes) -> bytes | None:
        """What the Python way has to be given; None: nothing."""

    def release(self) -> bytes:
        """What came behind the request that was answered, or of one that is not whole: it is held no more."""

    def close_after(self) -> None:
        """The connection ends with the open request's answer."""

    def lose(self) -> tuple[DoorCounts, str, float] | None:
        """It is lost. Of the open request: where it would be counted, its id, and its seconds so far."""

class StreamedBody:
    """The body of one response while its pieces are streamed."""

    can_write: bool
    """A piece need not wait. Set by the owner; False at first."""

    def __init__(self, queue: WriteQueue, outlet: Outlet, *, is_chunked: bool, schedule: Callable[[], object]) -> None:
        """`schedule` is called where the queue has to be flushed."""

    def write(self, data: bytes) -> None:
        """A piece, framed where the body has chunks."""

class TextEvents:
    """Where a choice's text goes: each piece an event, which is the head, the piece as a JSON string, and the tail."""

    def __init__(self, body: StreamedBody, head: bytes, tail: bytes, times: TokenTimes) -> None: ...

class FastStream:
    """One request's plain tokens, on their way from ids to events while it is open."""

    def __init__(self, spelling: TokenSpelling, *, skips_special: bool) -> None: ...
    def open(self, events: TextEvents, held: bytes) -> None:
        """`held`: bytes of a character that is not whole. Raises ValueError for over 3."""

    def close(self) -> bytes:
        """What is held back, for who goes on."""

    @property
    def is_open(self) -> bool: ...
    @property
    def num_tokens(self) -> int:
        """That were taken here."""

    @property
    def num_forced(self) -> int:
        """Of these: those that were not sampled."""

class FastStreams:
    """The open streams of one worker, by their ids on the wire."""

    def __init__(self) -> None: ...
    def add(self, request_id: str, stream: FastStream) -> None: ...
    def remove(self, request_id: str) -> None:
        """Not there: nothing."""

    def take(self, message: bytes, now_s: float) -> bytes:
        """Takes a Step's plain tokens of open streams whose bodies can_write: text, counts, events, writes.

        What is left: the message itself, or the Step without those events. A stream of which an event is left is
        removed, so that its events stay in order. What is no message is left as it is.
        """

class PlainSignature:
    """What a model takes and gives, as the native way sees it."""

    def __init__(
        self,
        inputs: Sequence[tuple[str, str, Sequence[int], bool]],
        outputs: Sequence[str],
        takes_values: bool = True,
    ) -> None:
        """Of each input its name, datatype, shape and whether it may be left out. Raises ValueError for a datatype that
        the protocol has not."""

class OutputsWish:
    """In which form a request wants its outputs."""

    @property
    def id(self) -> str:
        """The caller's, to be repeated; "": none."""

    @property
    def is_binary(self) -> bool:
        """Of outputs that say nothing."""

    @property
    def outputs(self) -> list[tuple[str, bool | None]]:
        """Their names, and whether each is wanted as binary data; empty: all."""

class DoorCodecs:
    """The codecs of the native way one by one, for tests. None: what came is left to Python."""

    @staticmethod
    def read_head(data: bytes) -> dict[str, Any] | str:
        """A plain head's fields; "partial": it may become one; "other": it is none."""

    @staticmethod
    def header_names() -> list[str]:
        """Of the headers that have a meaning."""

    @staticmethod
    def read_infer(
        signature: PlainSignature, body: bytes, json_length: int | None, request_id: str
    ) -> tuple[tuple[bytes, int], OutputsWish] | None:
        """headway_wire.Infer as msgpack, and its inputs' bytes; and how its answer is to be told."""

    @staticmethod
    def infer_answer(
        name: str, version: str, wish: OutputsWish, message: bytes, has_plus: bool
    ) -> tuple[bytes, int | None] | None:
        """The body of headway_wire.Outputs as msgpack, and the length of its JSON where binary data is behind it."""

    @staticmethod
    def read_predict(
        signature: PlainSignature, body: bytes, takes_images: bool, request_id: str
    ) -> tuple[bytes, int] | None:
        """headway_wire.Infer as msgpack, and its inputs' bytes."""

    @staticmethod
    def read_predict_texts(body: bytes) -> list[str] | None:
        """The texts that an encoder is asked for."""

    @staticmethod
    def embedding_answer(name: str, version: str, messages: Sequence[bytes]) -> bytes | None:
        """The body of headway_wire.Embeddings as msgpack."""

    @staticmethod
    def find_model_id(body: bytes) -> str | None: ...
    @staticmethod
    def predict_answer(name: str, version: str, message: bytes) -> bytes | None:
        """The body of headway_wire.Outputs as msgpack."""
