"""Files and answers of llama.cpp, run in its own environment:  ask_llamacpp.py JOBS.json

JOBS.json is a list of {source, file, form, prompts, logits, logits_bf16_cache, greedy, num_greedy}: `source` is
quantised to `file` by llama_model_quantize, and where `prompts` is not null (an .npy of ids, [num_prompts, length]),
`logits` gets the float32 logits of every token, [num_prompts, length, vocab_size], and `greedy` the ids that follow,
[num_prompts, num_greedy], with K and V in float16, llama.cpp's default; `logits_bf16_cache` with both in bfloat16.
"""

import json
import sys
from typing import Any

import llama_cpp
import numpy as np

GGML_TYPE_BF16 = 30
"""Which the package has no name for."""


def quantise(source: str, target: str, form: str) -> None:
    """`form` is ggml's name of a kind of file: Q4_K_M, not a tensor's type."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = 1
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{form}")
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), params):
        raise RuntimeError(f"llama_model_quantize: {source} as {form}")


class Session:
    """A model, and a context of one sequence."""

    def __init__(self, path: str, length: int, cache_type: int) -> None:
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama_model_load_from_file: {path}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = length
        params.type_k = params.type_v = cache_type
        params.n_threads = params.n_threads_batch = 1
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._batch = llama_cpp.llama_batch_init(length, 0, 1)
        self._num_done = 0

    def forget(self) -> None:
        """The next token is at position 0."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._num_done = 0

    def decode(self, ids: list[int]) -> np.ndarray:
        """Logits of each, [len(ids), vocab_size]."""
        batch = self._batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, self._num_done + i, True
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        self._num_done += len(ids)
        rows = [llama_cpp.llama_get_logits_ith(self._context, i) for i in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, shape=(self.vocab_size,)) for row in rows])

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


def answer(job: dict[str, Any]) -> None:
    prompts = np.load(job["prompts"])
    length = prompts.shape[1] + job["num_greedy"]
    session = Session(job["file"], length, llama_cpp.GGML_TYPE_F16)
    logits, greedy = [], []
    for prompt in prompts:
        session.forget()
        logits.append(session.decode(prompt.tolist()))
        following = [int(logits[-1][-1].argmax())]
        while len(following) < job["num_greedy"]:
            following.append(int(session.decode(following[-1:])[0].argmax()))
        greedy.append(following)
    session.close()
    np.save(job["logits"], np.stack(logits))
    np.save(job["greedy"], np.array(greedy, np.int32))
    session = Session(job["file"], length, GGML_TYPE_BF16)
    logits = []
    for prompt in prompts:
        session.forget()
        logits.append(session.decode(prompt.tolist()))
    session.close()
    np.save(job["logits_bf16_cache"], np.stack(logits))


def main(path: str) -> None:
    complaints: list[bytes] = []
    # Shown only if something fails. The library keeps the pointer: so must we.
    listener = llama_cpp.llama_log_callback(lambda level, text, _: complaints.append(text))
    llama_cpp.llama_log_set(listener, None)
    llama_cpp.llama_backend_init()
    with open(path) as file:
        jobs = json.load(file)
    for job in jobs:
        complaints.clear()
        try:
            quantise(job["source"], job["file"], job["form"])
            if job["prompts"] is not None:
                answer(job)
        except Exception:
            sys.stderr.write(b"".join(complaints[-20:]).decode(errors="replace"))
            raise


if __name__ == "__main__":
    main(sys.argv[1])
