"""LateTokenizer: a loaded model's tokenizer, in its own process, read once somebody wants it there."""

import logging
import threading
from pathlib import Path

from headway.checkpoint.checkpoint import open_checkpoint
from headway.text.tokenizer import Tokenizer, make_tokenizer

logger = logging.getLogger(__name__)


class LateTokenizer:
    """Read on a thread of its own with the first take(): neither the load waits for it, nor a step. Made with the load:
    files that have changed since then are not read, since others have read them as they were.

    Args:
        source: the model's folder or file.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._state = _state_of(source)
        self._tokenizer: Tokenizer | None = None
        self._reading: threading.Thread | None = None

    def take(self) -> Tokenizer | None:
        """None: it is not there yet, or can not be read; the log says why."""
        if self._reading is None:
            self._reading = threading.Thread(target=self._read, name="tokenizer", daemon=True)
            self._reading.start()
        return self._tokenizer

    def wait(self) -> None:
        """Until it is there, where it is being read."""
        if self._reading is not None:
            self._reading.join()

    def _read(self) -> None:
        try:
            tokenizer = make_tokenizer(open_checkpoint(self._source).text)
            if _state_of(self._source) == self._state:
                self._tokenizer = tokenizer
            else:
                logger.warning("%s has changed since it was loaded: its tokenizer is not read again", self._source)
        except Exception:  # whoever sends texts is refused, and sends ids
            logger.exception("the tokenizer of %s can not be read", self._source)


def _state_of(source: Path) -> list[tuple[str, int, int, int]]:
    """What tells that the model's files are others: their names, numbers, sizes and dates."""
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    states = [(each.name, each.stat()) for each in files if each.is_file()]
    return [(name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states]
