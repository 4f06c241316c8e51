"""Grammars: constraints' grammars compiled in side threads and kept, so that nobody who runs waits for one.

A grammar that is asked for is a CompiledGrammar at once, and done some time later: its owner looks again between steps.
The model's tokens are made for the first one, in the same threads. What failed is kept too: who sends it again gets the
same words for nothing. A grammar whose compiling nothing bounds is tried in a process first (grammar_trial), and others
do not wait behind it.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import llguidance

from headway.engine.grammar_trial import GrammarTrial
from headway.engine.trial_messages import TrialVocabulary
from headway.errors import HeadwayError, InternalError, InvalidRequest, InvariantBroken, QueueFull
from headway.text.constrained_vocabulary import encode_piece, make_llguidance_tokenizer
from headway.text.grammar_compiler import compile_grammar, needs_trial
from headway.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_COMPILE_S = 2.0
"""Whoever waits longer for a grammar that is being compiled is refused."""
MAX_TRIAL_S = 1.2
"""Of it, for a grammar that is tried first. With the start of the process that tries it, it is answered in time."""
MAX_QUEUED_S = 30.0
"""... and who waits so long for its turn."""
MAX_KEPT = 64
"""Grammars: a usual one takes 0.1 MB and is compiled anew in 3 ms, and the largest grow to some 50 MB while they are
followed (grammar_compiler.LIMITS)."""
MAX_KEPT_BYTES = 16 * 2**20
"""Of their texts together."""
NUM_THREADS = 2
_NICENESS = 10
"""Side threads give way to those that compute."""


class ConstraintTokens:
    """A model's tokens, for texts that are not sampled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.llguidance = make_llguidance_tokenizer(tokenizer)
        self._tokenizer = tokenizer

    def for_trial(self) -> TrialVocabulary:
        """What a process that tries grammars has to know of them."""
        tokenizer = self._tokenizer
        return TrialVocabulary(
            tokens=[tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)],
            end_token_ids=sorted(tokenizer.end_token_ids),
            special_token_ids=sorted(tokenizer.special_token_ids),
        )

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the text, control tokens too."""
        return self._tokenizer.token_bytes(token_id)

    def encode(self, text: str) -> list[int]:
        """Ids of a text in the middle of an answer; control tokens by their names."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        if b"".join(map(self.bytes_of, ids)) == text.encode():
            return ids
        return encode_piece(self._tokenizer, text)

    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids of bytes that may be no whole characters."""
        return list(self.llguidance.tokenize_bytes(data))


class CompiledGrammar:
    """A grammar, or a vocabulary alone where its text is empty. Written by a side thread, `is_done` last."""

    def __init__(self, text: str, asked_s: float) -> None:
        self.text = text
        self.num_bytes = len(text.encode())
        self.tokens: ConstraintTokens | None = None
        self.matcher: llguidance.LLMatcher | None = None
        """At its beginning; only ever copied. None where the text is empty."""
        self.error: HeadwayError | None = None
        self.started_s: float | None = None
        self.is_done = False
        self._asked_s = asked_s

    def refusal(self, now_s: float) -> HeadwayError | None:
        """Why it cannot be had, or not in time; None: it is there, or may still come."""
        if self.is_done:
            return self.error
        if self.started_s is not None and now_s - self.started_s > MAX_COMPILE_S:
            return InvalidRequest(
                f"the grammar of {len(self.text)} characters took over {MAX_COMPILE_S:.0f} s to compile: make the "
                "schema, the expression or the grammar smaller",
                param="structured_outputs",
            )
        if self.started_s is None and now_s - self._asked_s > MAX_QUEUED_S:
            return QueueFull(
                f"the grammar was not compiled within {MAX_QUEUED_S:.0f} s, others' were before it: try again later"
            )
        return None


class Grammars:
    """Owned by the engine's loop. Starts its threads with the first grammar.

    Args:
        make_tokenizer: called once, in a side thread; what it raises, each request is refused with.
    """

    def __init__(self, make_tokenizer: Callable[[], Tokenizer], now: Callable[[], float] = time.perf_counter) -> None:
        self._make_tokenizer: Callable[[], Tokenizer] | None = make_tokenizer
        self._now = now
        self._tokens: ConstraintTokens | None = None
        self._tokens_lock, self._lock = threading.Lock(), threading.Lock()
        self._kept: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._num_kept_bytes = 0
        self._pool = ThreadPoolExecutor(NUM_THREADS, "grammars", initializer=_give_way)
        self._trials = ThreadPoolExecutor(1, "grammar-trials", initializer=_give_way)
        self._trial = GrammarTrial()
        """The one thread's own."""
        self.num_asked = 0
        self.num_hits = 0
        """Of those asked: found, done or on their way."""
        self.num_refused = 0
        """Compiled, and failed."""
        self.compile_s = 0.0
        """Spent in compiling."""

    def ask(self, text: str) -> CompiledGrammar:
        """The grammar of this text, done or on its way; "": the tokens alone. Never waits."""
        self.num_asked += 1
        key = sha256(text.encode()).digest()
        found = self._kept.get(key)
        if found is not None and not isinstance(found.error, InternalError):
            self.num_hits += 1
            self._kept.move_to_end(key)
            return found
        if found is not None:
            self._drop(key)  # what failed was not the grammar
        grammar = self._kept[key] = CompiledGrammar(text, self._now())
        self._num_kept_bytes += grammar.num_bytes
        if needs_trial(text):
            self._trials.submit(self._try, grammar)
        else:
            self._pool.submit(self._compile, grammar)
        self._make_room()
        return grammar

    def forget(self, grammar: CompiledGrammar) -> None:
        """It is compiled anew for the next who asks: copies share what they build, and it may have grown too large."""
        key = sha256(grammar.text.encode()).digest()
        if self._kept.get(key) is grammar:
            self._drop(key)

    def close(self) -> None:
        """Ends the process and the threads, these as soon as what they compile is done; nobody waits for that."""
        self._trial.end()
        self._trials.shutdown(cancel_futures=True)
        self._trial.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _try(self, grammar: CompiledGrammar) -> None:
        """In the thread of trials. What passes is compiled."""
        with self._settling(grammar):
            self._trial.start()  # beside the tokens
            self._trial.make_ready(self._make_tokens().for_trial)
            grammar.started_s = self._now()
            self._trial.check(grammar.text, MAX_TRIAL_S)
            self._pool.submit(self._compile, grammar)

    def _compile(self, grammar: CompiledGrammar) -> None:
        """In a side thread."""
        with self._settling(grammar):
            grammar.tokens = self._make_tokens()
            if grammar.started_s is None:
                grammar.started_s = self._now()
            started_s = self._now()
            if grammar.text:
                grammar.matcher = compile_grammar(grammar.tokens.llguidance, grammar.text)
            with self._lock:
                self.compile_s += self._now() - started_s
            grammar.is_done = True

    @contextlib.contextmanager
    def _settling(self, grammar: CompiledGrammar) -> Iterator[None]:
        """What is raised becomes the grammar's error."""
        try:
            yield
        except HeadwayError as error:
            grammar.error = error
        except BaseException as error:  # a panic of the library too: it must end this grammar and not the thread
            logger.exception("compiling a grammar of %d characters failed", len(grammar.text))
            grammar.error = InternalError(f"compiling the grammar failed: {type(error).__name__}")
        if grammar.error is not None:
            with self._lock:
                self.num_refused += 1
            grammar.is_done = True

    def _make_tokens(self) -> ConstraintTokens:
        with self._tokens_lock:
            if self._tokens is None and self._make_tokenizer is not None:
                self._tokens = ConstraintTokens(self._make_tokenizer())
                self._make_tokenizer = None  # what it reads from need not stay
            if self._tokens is None:
                raise InvariantBroken("there is nothing to make the model's tokens of")
            return self._tokens

    def _make_room(self) -> None:
        """Drops the grammars that nobody has asked for the longest; those on their way stay."""
        for key in [key for key, grammar in self._kept.items() if grammar.is_done]:
            if len(self._kept) <= MAX_KEPT and self._num_kept_bytes <= MAX_KEPT_BYTES:
                return
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._num_kept_bytes -= self._kept.pop(key).num_bytes


def _give_way() -> None:
    """Linux' threads have priorities of their own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
