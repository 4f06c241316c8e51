"""llama.cpp's logits of a text in windows:  logits_llamacpp.py FILE.gguf TOKENS.npy OUT.npy --threads N [--cache TYPE]

TOKENS.npy is [windows, length] int32, each window a text of its own from position 0; OUT.npy [windows, length, vocab]
float32.
"""

import argparse

import llama_cpp
import numpy as np

CACHE_TYPES = {"float16": 1, "bfloat16": 30}
"""ggml's numbers; float16 is llama.cpp's default."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("out")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache", choices=CACHE_TYPES, default="float16", help="of K and V")
    arguments = parser.parse_args()
    windows = np.load(arguments.tokens)
    quiet = llama_cpp.llama_log_callback(lambda *_: None)  # the library keeps the pointer: so must we
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(arguments.model.encode(), llama_cpp.llama_model_default_params())
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    count, length = windows.shape
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = length
    params.n_threads = params.n_threads_batch = arguments.threads
    params.type_k = params.type_v = CACHE_TYPES[arguments.cache]
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(length, 0, 1)
    out = np.lib.format.open_memmap(arguments.out, mode="w+", dtype=np.float32, shape=(count, length, vocab_size))
    for window in range(count):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch.n_tokens = length
        for i in range(length):
            batch.token[i], batch.pos[i], batch.logits[i] = int(windows[window, i]), i, True
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        for i in range(length):
            out[window, i] = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), shape=(vocab_size,))
    out.flush()


if __name__ == "__main__":
    main()
