"""The process that tries grammars: python -m headway.engine.trial_process --fd N. A compiler cannot be stopped in a
thread; here it can.

1. TrialVocabulary comes; answered once the vocabulary is made.
2. Each TrialGrammar is compiled and answered by a Verdict. One that takes over MAX_TRIAL_CPU_S of the processor's time
   ends this process (SIGPROF), and so does one that takes over MAX_TRIAL_BYTES.
End of file ends it, and so does the death of who started it.
"""

import argparse
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence

import llguidance

from headway.engine.trial_messages import TrialGrammar, TrialVocabulary, Verdict, pack, read_to_trial
from headway.errors import HeadwayError, InvariantBroken
from headway.observe.processes import begin_child
from headway.text.grammar_compiler import compile_grammar

MAX_TRIAL_CPU_S = 0.9
"""Of a grammar: compiled here and again where it is used, it is done within two seconds."""
MAX_TRIAL_BYTES = 256 * 2**20
"""Of memory, beside what the process has before."""
_NICENESS = 10


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
    _limit_memory()
    connection.sendall(pack(Verdict()))
    for message in messages:
        if not isinstance(message, TrialGrammar):
            raise InvariantBroken("a second TrialVocabulary: it comes once")
        connection.sendall(pack(_try(tokenizer, message.text)))


def _try(tokenizer: llguidance.LLTokenizer, text: str) -> Verdict:
    signal.setitimer(signal.ITIMER_PROF, MAX_TRIAL_CPU_S)  # its signal is not handled, and so ends the process
    try:
        compile_grammar(tokenizer, text)
    except HeadwayError as error:
        return Verdict(error.to_wire())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Verdict()


def _limit_memory() -> None:
    """The library ends the process where it gets no more; that is no crash to keep a picture of."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MAX_TRIAL_BYTES, resource.RLIM_INFINITY))


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the socket `--fd` until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a connected socket, inherited")
    options = parser.parse_args(arguments)
    connection = begin_child(options.fd)
    os.nice(_NICENESS)  # those that compute come first
    try:
        serve(connection)
    except ConnectionError:
        os._exit(0)  # who started it is gone


if __name__ == "__main__":
    main()
