"""llama.cpp through its own batch API: parallel sequences in one decode call. Takes the GGUF file.

--kv unified has one KV buffer for all sequences, split one for each; compare.py runs both, and the better one counts.
"""

from dataclasses import dataclass

import llama_cpp
import numpy as np
from workloads import TokenIds, make_parser, run_engine

BATCH = 512
"""Tokens a decode call."""


@dataclass(frozen=True)
class Item:
    """One token to compute."""

    token: int
    position: int
    sequence: int
    wants_logits: bool


class Decoder:
    """A model and one context, made again when another shape is asked for."""

    def __init__(self, path: str, threads: int, is_unified: bool) -> None:
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)  # the library keeps the pointer: so must we
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._threads = threads
        self._is_unified = is_unified
        self._shape: tuple[int, int] | None = None
        self._context = None

    def start(self, num_sequences: int, length: int) -> None:
        """An empty context for so many sequences of so many tokens."""
        if self._shape != (num_sequences, length):
            if self._context is not None:
                llama_cpp.llama_free(self._context)
            params = llama_cpp.llama_context_default_params()
            params.n_seq_max, params.kv_unified = num_sequences, self._is_unified
            params.n_ctx = num_sequences * (-(-length // 256) * 256)
            params.n_batch = params.n_ubatch = BATCH
            params.n_threads = params.n_threads_batch = self._threads
            self._context = llama_cpp.llama_init_from_model(self._model, params)
            self._shape = num_sequences, length
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def decode(self, items: list[Item]) -> dict[int, int]:
        """One call. The greedy next token of each sequence that wants its logits."""
        batch = self._batch
        batch.n_tokens = len(items)
        for i, item in enumerate(items):
            batch.token[i], batch.pos[i], batch.logits[i] = item.token, item.position, item.wants_logits
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = item.sequence
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        best = {}
        for i, item in enumerate(items):
            if item.wants_logits:
                logits = llama_cpp.llama_get_logits_ith(self._context, i)
                best[item.sequence] = int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())
        return best


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--kv", choices=("unified", "split"), default="unified")
    arguments = parser.parse_args()
    decoder = Decoder(arguments.model, arguments.threads, arguments.kv == "unified")

    def generate(prompts: list[TokenIds], output: int) -> int:
        decoder.start(len(prompts), len(prompts[0]) + output)
        queue = [
            Item(token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        last: dict[int, int] = {}
        for start in range(0, len(queue), BATCH):
            last.update(decoder.decode(queue[start : start + BATCH]))
        made = len(last)
        for step in range(output - 1):
            last = decoder.decode([Item(last[s], len(p) + step, s, True) for s, p in enumerate(prompts)])
            made += len(last)
        return made

    run_engine(f"llamacpp-{arguments.kv}", arguments, generate)


if __name__ == "__main__":
    main()
