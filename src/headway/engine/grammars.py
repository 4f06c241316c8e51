"""Grammars: constraints' grammars compiled in side threads and kept, so that nobody who runs waits for one.

A grammar that is asked for is a CompiledGrammar at once, and done some time later: its owner looks again between steps.
What failed is kept too: who sends it again gets the same words for nothing. A grammar whose compiling nothing bounds is
tried in a process first (grammar_trial), and others do not wait behind it.

The model's tokens are made for the first grammar, in the same threads, and the process is started for the first that is
tried; or both before, where many are served: making the tokens holds the interpreter lock, which streams would feel. Of
their vocabulary the process is told with the first grammar of any kind: who never constrains has not that memory.
"""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import llguidance

from headway.engine.compiled_grammar import ALONE, SERVED, CompiledGrammar, make_late
from headway.engine.constraint_tokens import ConstraintTokens
from headway.engine.grammar_trial import GrammarTrial
from headway.engine.side_threads import give_way
from headway.errors import HeadwayError, InternalError, InvalidRequest, InvariantBroken, QueueFull
from headway.text.grammar_compiler import ANY_PARAM, compile_grammar, needs_trial, seconds_to_begin
from headway.text.grammar_spelling import check_spelling, leave_out_unwritable
from headway.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_KEPT = 64
"""Grammars: a usual one takes 0.1 MB and is compiled anew in 3 ms, and the largest grow to some 50 MB while they are
followed (grammar_compiler.LIMITS)."""
MAX_KEPT_BYTES = 16 * 2**20
"""Of their texts together."""
NUM_THREADS = 2


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
        self._pool = ThreadPoolExecutor(NUM_THREADS, "grammars", initializer=give_way)
        self._trials = ThreadPoolExecutor(1, "grammar-trials", initializer=give_way)
        self._trial = GrammarTrial()
        """The one thread's own."""
        self._has_idle_trial = False
        """Its process is started before it is needed, and knows no tokens."""
        self._patience = ALONE
        self.num_asked = 0
        self.num_hits = 0
        """Of those asked: found, done or on their way."""
        self.num_refused = 0
        """Compiled, and failed."""
        self.compile_s = 0.0
        """Spent in compiling."""

    def prepare(self) -> None:
        """Many will be served: has the side threads make the model's tokens and start the process that tries grammars.
        What fails here is told to whoever asks for a grammar."""
        self._has_idle_trial = True
        self._patience = SERVED
        self._trials.submit(self._prepare)

    def ask(self, text: str) -> CompiledGrammar:
        """The grammar of this text, done or on its way; "": the tokens alone. Never waits."""
        if self._has_idle_trial:
            self._has_idle_trial = False
            self._trials.submit(self._make_trial_ready)
        self.num_asked += 1
        key = sha256(text.encode()).digest()
        found = self._kept.get(key)
        if found is not None and found.is_kept:
            self.num_hits += 1
            self._kept.move_to_end(key)
            found.asked_s = self._now()
            return found
        if found is not None:
            self._drop(key)  # what failed was not the grammar
        grammar = self._kept[key] = CompiledGrammar(text, self._now(), self._patience)
        self._num_kept_bytes += grammar.num_bytes
        if needs_trial(text):
            self._trials.submit(self._try, grammar)
        else:
            self._pool.submit(self._compile, grammar, is_tried=False)
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

    def _prepare(self) -> None:
        with contextlib.suppress(Exception):
            self._make_tokens()
            self._trial.start()

    def _make_trial_ready(self) -> None:
        with contextlib.suppress(Exception):
            self._trial.make_ready(self._make_tokens().for_trial)

    def _try(self, grammar: CompiledGrammar) -> None:
        """In the thread of trials. What passes is compiled."""
        with self._settling(grammar):
            self._check_wanted(grammar)
            self._trial.start()  # beside the tokens
            tokens = self._make_tokens()
            self._trial.make_ready(tokens.for_trial)
            self._trial.check(leave_out_unwritable(grammar.text, tokens.can_spell), grammar.patience.trial_s)
            self._pool.submit(self._compile, grammar, is_tried=True)

    def _compile(self, grammar: CompiledGrammar, *, is_tried: bool) -> None:
        """In a side thread."""
        with self._settling(grammar):
            if not is_tried:
                self._check_wanted(grammar)
            grammar.tokens = self._make_tokens()
            grammar.begin_compiling()
            started_s = self._now()
            if grammar.text:
                grammar.matcher = _compile_writable(grammar.text, grammar.tokens)
                grammar.mask_s = seconds_to_begin(grammar.matcher)
            with self._lock:
                self.compile_s += self._now() - started_s
            grammar.is_done = True

    def _check_wanted(self, grammar: CompiledGrammar) -> None:
        """Raises QueueFull where nobody waits for it any more: the turn of others comes the sooner."""
        if self._now() - grammar.asked_s > grammar.patience.wait_s:
            raise make_late(grammar)

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
                self.num_refused += not isinstance(grammar.error, QueueFull)
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


def _compile_writable(text: str, tokens: ConstraintTokens) -> llguidance.LLMatcher:
    """A matcher of what the model can write of it. Raises InvalidRequest where that is nothing."""
    writable = leave_out_unwritable(text, tokens.can_spell)
    check_spelling(writable, tokens.can_spell, ANY_PARAM)
    try:
        return compile_grammar(tokens.llguidance, writable)
    except InvalidRequest:
        check_spelling(text, tokens.can_spell, ANY_PARAM)  # nothing can match for want of it: that says more
        raise
