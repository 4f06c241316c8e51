"""A rank's process: python -m headway.engine.rank --fd N. It holds its part of a model and computes each step of it.

1. RankLoad comes; the model's files are opened: RankHello.
2. It joins the group and loads its part: RankReady. What fails so far is told by RankFailed, and it waits for its end.
3. Each RankStep is executed, its logits dropped: they are rank 0's to read.
End of file ends it, and so does the death of rank 0, whatever it is doing. What a step raises ends it: the group is
lost, and rank 0 tells why.
"""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from headway.checkpoint.checkpoint import open_checkpoint
from headway.engine.load_weights import match_weights
from headway.engine.parallel import make_kv, make_part
from headway.engine.rank_messages import (
    RankFailed,
    RankHello,
    RankLoad,
    RankReady,
    RankStep,
    ToRank,
    pack,
    read_to_rank,
    unpack_step,
)
from headway.errors import HeadwayError, InternalError, InvariantBroken
from headway.executor.base import Executor
from headway.executor.factory import make_executor
from headway.executor.meeting import Meeting
from headway.model.registry import make_program
from headway.observe.processes import serve_parent

logger = logging.getLogger(__name__)


def load(message: RankLoad, connection: socket.socket) -> Executor:
    """This rank's executor; blocks until the whole group is there. Raises HeadwayError, RuntimeError."""
    checkpoint = open_checkpoint(Path(message.source))
    program = make_program(checkpoint.shape, max_model_len=message.config.max_model_len)
    weights, _ = match_weights(program, checkpoint, message.config)
    part = make_part(program, weights, message.rank, message.size)
    kv = make_kv(part.program, message.num_blocks, message.block_size, message.kv_dtype, message.config.device)
    connection.sendall(pack(RankHello()))
    meeting = Meeting(Path(message.meeting), message.rank, message.size)
    executor = make_executor(part.program, part.weights, kv, message.config, meeting)
    weights.check_unchanged()
    weights.close()
    return executor


def serve(connection: socket.socket) -> None:
    """Loads and computes until the end of file. Raises what a step raises."""
    messages = read_to_rank(connection)
    first = next(messages, None)
    if first is None:
        return
    if not isinstance(first, RankLoad):
        raise InvariantBroken(f"the first message is {type(first).__name__}, it must be RankLoad")
    try:
        executor = load(first, connection)
    except Exception as error:  # whatever it was, rank 0 tells it
        logger.exception("rank %d of %d can not load", first.rank, first.size)
        told = error if isinstance(error, HeadwayError) else InternalError(f"{type(error).__name__}: {error}")
        connection.sendall(pack(RankFailed(error=told.to_wire())))
        _wait_for_end(messages)
        return
    connection.sendall(pack(RankReady()))
    for message in messages:
        if not isinstance(message, RankStep):
            raise InvariantBroken("a second RankLoad: a rank loads once")
        _compute(executor, message, first)


def _compute(executor: Executor, step: RankStep, load: RankLoad) -> None:
    try:
        executor.execute(unpack_step(step))
    except RuntimeError as error:  # also torch.distributed's: another rank is gone
        logger.error("rank %d of %d can not go on: %s", load.rank, load.size, str(error).splitlines()[0])
        os._exit(1)


def _wait_for_end(messages: Iterator[ToRank]) -> None:
    for _ in messages:
        pass


if __name__ == "__main__":
    serve_parent(serve, __doc__)
    # Not sys.exit: the group's threads must not keep the process.
    os._exit(0)
