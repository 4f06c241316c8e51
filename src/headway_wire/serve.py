"""The process of a model that takes tensors or values, or of another engine that speaks tokens: python -m
headway_wire.serve --fd N.

Load: Loading at each phase, then Ready with the predictor's Signature, or Failed and exit code 1. Then infer_server, or
token_server.
End of file from the parent ends the process at once (child.end_with_parent), whatever it is doing.
"""

import argparse
import gc
import logging
import os
import sys
from typing import Any, Optional, Sequence, Union

import msgspec

from headway_wire.batching import WaitingLine
from headway_wire.child import begin_child, end_with_parent, import_ahead
from headway_wire.connection import Connection, NotAMessage, ParentGone
from headway_wire.finding import find_predictor
from headway_wire.infer_server import InferServer, OutOfMemory, describe
from headway_wire.messages import Error, Failed, Load, Ready, Shutdown, Waiting
from headway_wire.predictor import InferPredictor, PredictorError, Report
from headway_wire.token_server import TokenPredictor, TokenServer

logger = logging.getLogger("headway_wire")

EXIT_BAD_PARENT = 3
"""The parent sent what is no message."""


def load(connection: Connection, message: Load) -> Union[InferServer, TokenServer]:
    """Loads what the message names, and tells Ready. Raises whatever the predictor does."""
    predictor = find_predictor(message.predictor, message.predictor_file)
    report: Report = lambda loading: connection.send([loading])  # noqa: E731
    if isinstance(predictor, TokenPredictor):
        info = predictor.load(message.source, dict(message.options), report)
        connection.send([Ready(info=info)])
        return TokenServer(connection, predictor)
    signature = predictor.load(message.source, dict(message.options), report)
    line = WaitingLine(message.max_batch_size if signature.can_batch else 1, message.batch_delay_s)
    # What is loaded stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    connection.send([Ready(info=msgspec.to_builtins(signature))])
    return InferServer(connection, predictor, line)


def run(connection: Connection) -> int:
    """From the Load to the end; the exit code."""
    predictor: Union[InferPredictor, TokenPredictor, None] = None
    try:
        first, *others = connection.receive()
        if isinstance(first, Shutdown) or any(isinstance(other, Shutdown) for other in others):
            return 0
        if not isinstance(first, Load) or others:
            logger.error("the first message is %s, it must be Load, and the next wait for Ready", type(first).__name__)
            return EXIT_BAD_PARENT
        server = load(connection, first)
        predictor = server.predictor
        server.serve()
        return 0
    except ParentGone:
        return 0
    except NotAMessage as error:
        logger.error("the parent sent what is no message: %s", error)
        return EXIT_BAD_PARENT
    except BaseException as error:
        # The last act of the process: whatever it was is told.
        connection.send([Failed(error=load_error(error))])
        return 1
    finally:
        _close(predictor)


def load_error(error: BaseException) -> Error:
    """What a failed load, or the end of the process, is told as."""
    if isinstance(error, PredictorError):
        return error.error
    if isinstance(error, (MemoryError, OutOfMemory)):
        return Error(kind="OutOfMemory", message=f"the model's process ran out of memory: {error}")
    logger.error("the model can not be loaded", exc_info=error)
    if isinstance(error, ModuleNotFoundError):
        words = f"{sys.executable} lacks a module: {error}; install it there, or name another interpreter"
        return Error(kind="UnsupportedModel", message=words)
    return Error(kind="ModelError", message=f"the model can not be loaded: {describe(error)}")


def _close(predictor: Any) -> None:
    try:
        if predictor is not None:
            predictor.close()
    except Exception:
        # Nothing can be done about it any more, and the exit code must stay what it is.
        logger.exception("closing the predictor failed")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Serves the socket `--fd` until it ends; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a connected socket, inherited")
    parser.add_argument("--import", action="append", default=[], dest="modules", help="a module to import at once")
    options = parser.parse_args(arguments)
    end = begin_child(options.fd)
    end_with_parent(end)
    connection = Connection(end)
    if options.modules:
        import_ahead(options.modules)
        try:
            connection.send([Waiting()])
        except ParentGone:
            return 0
    return run(connection)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread or an atexit of a library must not keep the process.
    os._exit(code)
