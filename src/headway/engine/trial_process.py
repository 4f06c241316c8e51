"""The process that tries grammars: python -m headway.engine.trial_process --fd N. A compiler cannot be stopped in a
thread; here it can.

1. TrialVocabulary comes; answered once the vocabulary is made.
2. For each TrialGrammar it makes a copy of itself (fork), which compiles it and ends; answered by a Verdict. One
   that takes over MAX_TRIAL_CPU_S of the processor's time, over MAX_TRIAL_BYTES or too long by the clock is ended.
End of file ends it, and so does the death of who started it.
"""

import os
import resource
import select
import signal
import socket
import sys
from typing import NoReturn

import llguidance

from headway.engine.trial_messages import (
    TrialGrammar,
    TrialVocabulary,
    Verdict,
    pack,
    pack_verdict,
    read_to_trial,
    read_verdict,
)
from headway.errors import HeadwayError, InternalError, InvalidRequest, InvariantBroken, QueueFull
from headway.observe.processes import describe_exit, die_with_parent, serve_parent
from headway.text.grammar_compiler import ANY_PARAM, compile_grammar

MAX_TRIAL_CPU_S = 0.6
"""Of a grammar: compiled here and again where it is used, it is done within two seconds."""
MIN_TRIAL_CPU_S = 0.25
"""What takes less and is not done in time had too little of the processor, and may be small."""
MAX_TRIAL_BYTES = 256 * 2**20
"""Of memory, beside what the process has before."""


class _Tokens:
    """What llguidance.TokenizerWrapper reads. How a text is cut into tokens is no matter here: each byte is one."""

    bos_token_id = None

    def __init__(self, vocabulary: TrialVocabulary) -> None:
        self.eos_token_id = min(vocabulary.end_token_ids)
        self.special_token_ids = vocabulary.special_token_ids
        self.tokens = list(vocabulary.tokens)
        special = frozenset(self.special_token_ids)
        self._ids = {token: i for i, token in enumerate(self.tokens) if len(token) == 1 and i not in special}
        for byte in range(256):
            if (token := bytes([byte])) not in self._ids:
                self._ids[token] = len(self.tokens)
                self.tokens.append(token)

    def __call__(self, text: bytes) -> list[int]:
        return [self._ids[bytes([byte])] for byte in text]


def make_trial_tokenizer(vocabulary: TrialVocabulary) -> llguidance.LLTokenizer:
    """The model's vocabulary: what a large expression takes depends on it."""
    tokens = _Tokens(vocabulary)
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(tokens), n_vocab=len(tokens.tokens), eos_token=vocabulary.end_token_ids
    )


def serve(connection: socket.socket) -> None:
    """Until the end of file."""
    messages = read_to_trial(connection)
    first = next(messages, None)
    if first is None:
        return
    if not isinstance(first, TrialVocabulary):
        raise InvariantBroken(f"the first message is {type(first).__name__}, it must be TrialVocabulary")
    tokenizer = make_trial_tokenizer(first)
    connection.sendall(pack(Verdict()))
    for message in messages:
        if not isinstance(message, TrialGrammar):
            raise InvariantBroken("a second TrialVocabulary: it comes once")
        connection.sendall(pack(try_grammar(tokenizer, message)))


def try_grammar(tokenizer: llguidance.LLTokenizer, grammar: TrialGrammar) -> Verdict:
    """Compiles it in a copy of this process, which has one thread. Blocks until that has ended."""
    reader, writer = os.pipe()
    copy = os.fork()
    if copy == 0:
        _compile(tokenizer, grammar.text, writer)
    os.close(writer)
    with open(reader, "rb") as told:
        is_late = not select.select([told], [], [], grammar.timeout_s)[0]
        if is_late:
            os.kill(copy, signal.SIGKILL)
        answer = told.read()
    _, status, usage = os.wait4(copy, 0)
    code = os.waitstatus_to_exitcode(status)
    if is_late and usage.ru_utime + usage.ru_stime < MIN_TRIAL_CPU_S:
        return _late(grammar.text, grammar.timeout_s)
    if is_late:
        return _too_large(grammar.text, f"within {grammar.timeout_s:g} s")
    if code == -signal.SIGPROF:
        return _too_large(grammar.text, f"in {MAX_TRIAL_CPU_S} s of processor time")
    if code >= 0 and answer:
        return read_verdict(answer)
    if code >= 0 or code == -signal.SIGKILL:  # a fault of ours, or somebody's deed
        return Verdict(InternalError(f"the grammar could not be tried: its process {describe_exit(code)}").to_wire())
    return _too_large(grammar.text, f"in {MAX_TRIAL_BYTES // 2**20} MB")


def _compile(tokenizer: llguidance.LLTokenizer, text: str, writer: int) -> NoReturn:
    """In the copy. Whatever happens, it ends here."""
    try:
        die_with_parent()
        _limit_memory()
        signal.setitimer(signal.ITIMER_PROF, MAX_TRIAL_CPU_S)  # its signal is not handled, and so ends the process
        try:
            compile_grammar(tokenizer, text)
            verdict = Verdict()
        except HeadwayError as error:
            verdict = Verdict(error.to_wire())
        except MemoryError:
            os.abort()
        os.write(writer, pack_verdict(verdict))
    finally:
        os._exit(0)


def _limit_memory() -> None:
    """The library ends the process where it gets no more: that is no crash to keep a picture of, or to tell of."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MAX_TRIAL_BYTES, resource.RLIM_INFINITY))


def _too_large(text: str, limit: str) -> Verdict:
    error = InvalidRequest(
        f"{ANY_PARAM} is a grammar of {len(text)} characters that cannot be compiled {limit}: make its repetitions "
        "shorter, or let its terminals name fewer others",
        param=ANY_PARAM,
    )
    return Verdict(error.to_wire())


def _late(text: str, timeout_s: float) -> Verdict:
    error = QueueFull(
        f"the grammar of {len(text)} characters could not be compiled within {timeout_s:g} s, for the machine is busy: "
        "send the request again"
    )
    return Verdict(error.to_wire())


if __name__ == "__main__":
    serve_parent(serve, __doc__)
