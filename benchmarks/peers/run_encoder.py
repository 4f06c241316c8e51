"""One engine of embeddings.py in a process of its own:  run_encoder.py ENGINE MODEL THREADS

Reads JSON lines: {"texts": [...]} first, then {"do": "vectors"} or {"do": "time"}; answers each with one.
"""

import json
import sys
import time


def make_headway(model, threads):
    """LLM.embed, offline."""
    from headway import LLM

    llm = LLM(model, threads=threads)
    return lambda texts: [output.embedding for output in llm.embed(texts)]


def make_sentence_transformers(model, threads):
    """encode() with its own defaults."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    encoder = SentenceTransformer(model, device="cpu")
    return lambda texts: encoder.encode(texts, show_progress_bar=False).tolist()


def make_onnxruntime(model, threads):
    """The exported graph, in batches as sentence-transformers makes them; the mean and the norm by numpy."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(f"{model}/onnx/model.onnx", options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    names = {each.name for each in session.get_inputs()}

    def encode(texts):
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        made = [None] * len(texts)
        for first in range(0, len(texts), 32):
            places = order[first : first + 32]
            batch = tokenizer.encode_batch([texts[place] for place in places])
            ids = np.array([each.ids for each in batch], np.int64)
            mask = np.array([each.attention_mask for each in batch], np.int64)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = session.run(None, {name: value for name, value in inputs.items() if name in names})[0]
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            for place, vector in zip(places, pooled.tolist(), strict=True):
                made[place] = vector
        return made

    return encode


MAKERS = {
    "headway": make_headway,
    "sentence-transformers": make_sentence_transformers,
    "onnxruntime": make_onnxruntime,
}


def main():
    """Answers until its input ends."""
    name, model, threads = sys.argv[1:]
    encode = MAKERS[name](model, int(threads))
    texts = json.loads(sys.stdin.readline())["texts"]
    encode(texts)
    print("0", flush=True)
    for line in sys.stdin:
        started_at = time.perf_counter()
        vectors = encode(texts)
        seconds = time.perf_counter() - started_at
        print(json.dumps(vectors if json.loads(line)["do"] == "vectors" else seconds), flush=True)


if __name__ == "__main__":
    main()
