"""Flags that other servers have and Headway has not, each with what to do instead. Refused by name, never ignored."""

from collections.abc import Iterable

from headway.errors import UnsupportedFeature

_ONE_MACHINE = "a model runs on this machine alone, its layers split by --tensor-parallel-size or not at all"
_NO_GPU_POOL = "memory is planned by --kv-cache-memory (bytes, or a fraction of what is available)"
_TEXT_ONLY = "the models here read and write text only"
_NO_LORA = "merge the adapter into the model first"
_OWN_FILES = "it is read from the model's own files"
_LLAMA = "that is llama.cpp's name"
_TASK = "what a model does is seen from its files: encoders make vectors and scores, others text"
_POOLING = "an encoder's vectors are made as its own files say"
_NO_TLS = "end TLS in a proxy before Headway (nginx, caddy)"
_LOGS = "use --log-level"

REFUSED: dict[str, str] = {
    # Parallelism and where it runs
    "tp": "say --tensor-parallel-size",
    "pipeline-parallel-size": _ONE_MACHINE,
    "pp": _ONE_MACHINE,
    "data-parallel-size": "start one server for each replica, behind a proxy",
    "dp": "start one server for each replica, behind a proxy",
    "enable-expert-parallel": _ONE_MACHINE,
    "distributed-executor-backend": _ONE_MACHINE,
    "nnodes": _ONE_MACHINE,
    "node-rank": _ONE_MACHINE,
    "headless": _ONE_MACHINE,
    "api-server-count": "one server process owns the models",
    "workers": "one server process owns the models",
    "numa-bind": "bind the process: numactl --cpunodebind=0 headway serve ...",
    # Memory
    "gpu-memory-utilization": "say --gpu-memory-limit for all models, --kv-cache-memory for a model's cache",
    "mem-fraction-static": f"{_NO_GPU_POOL}, e.g. --kv-cache-memory 0.3",
    "kv-cache-memory-bytes": "say --kv-cache-memory",
    "num-gpu-blocks-override": _NO_GPU_POOL,
    "swap-space": "a sequence that loses its cache is computed again, nothing is swapped; give --kv-cache-memory more",
    "cpu-offload-gb": "there is nothing to offload from: weights are in main memory",
    "kv-offloading-size": "there is nothing to offload from: the KV cache is in main memory",
    "enable-sleep-mode": "unload the model: its memory comes back, and the next request loads it in seconds",
    "max-loaded-models": "say --max-models",
    # Weights and files
    "load-format": "the format is seen from the files (GGUF, safetensors); pickles: headway convert",
    "download-dir": "say --cache-dir",
    "tokenizer": _OWN_FILES,
    "tokenizer-mode": _OWN_FILES,
    "tokenizer-revision": _OWN_FILES,
    "skip-tokenizer-init": "send prompts as token ids to /v1/completions",
    "hf-config-path": _OWN_FILES,
    "hf-overrides": "change config.json in a copy of the folder",
    "rope-scaling": "change config.json in a copy of the folder",
    "rope-theta": "change config.json in a copy of the folder",
    "hf-token": "set HF_TOKEN",
    "code-revision": "code inside a checkpoint is never run",
    "trust-remote-code": "code inside a checkpoint is never run; the architectures are Headway's own",
    "config-format": "it is seen from the files",
    "model-impl": "the architectures are Headway's own",
    "runner": _TASK,
    "task": _TASK,
    "convert": _TASK,
    "embedding": f"{_LLAMA}: {_TASK}",
    "embeddings": f"{_LLAMA}: {_TASK}",
    "reranking": f"{_LLAMA}: {_TASK}",
    "rerank": f"{_LLAMA}: {_TASK}",
    "pooling": f"{_LLAMA}: {_POOLING}",
    "pooler-config": _POOLING,
    "ignore-patterns": "only the files that are needed are downloaded",
    "safetensors-load-strategy": "weights are mapped and read once",
    "model-loader-extra-config": "weights are mapped and read once",
    "model-path": "name the model without a flag: headway serve MODEL",
    # Text
    "chat-template-content-format": "the template decides; text parts are joined",
    "trust-request-chat-template": "a request cannot bring a template: give --chat-template",
    "override-generation-config": "give --generation-config a folder with your generation_config.json",
    "enable-auto-tool-choice": "leave it out: requests with tools may always call them",
    "tool-parser-plugin": "name one of --tool-call-parser",
    "enable-reasoning": "leave it out: reasoning is told apart where the model reasons",
    "structured-outputs-config": "structured output is not there yet",
    "guided-decoding-backend": "structured output is not there yet",
    "limit-mm-per-prompt": _TEXT_ONLY,
    "mm-processor-kwargs": _TEXT_ONLY,
    "allowed-local-media-path": _TEXT_ONLY,
    "mm-encoder-tp-mode": _TEXT_ONLY,
    # Adapters and drafts
    "enable-lora": _NO_LORA,
    "lora-modules": _NO_LORA,
    "max-loras": _NO_LORA,
    "max-lora-rank": _NO_LORA,
    "max-cpu-loras": _NO_LORA,
    "fully-sharded-loras": _NO_LORA,
    "speculative-config": "speculation is not there yet; leave it out, the text is the same",
    "speculative-model": "speculation is not there yet; leave it out, the text is the same",
    "num-speculative-tokens": "speculation is not there yet; leave it out, the text is the same",
    # Scheduling
    "schedule-policy": "say --scheduling-policy",
    "enable-priority-scheduling": "say --scheduling-policy priority",
    "max-num-partial-prefills": "bound a step by --max-num-batched-tokens, or its time by --step-target",
    "max-long-partial-prefills": "bound a step by --max-num-batched-tokens, or its time by --step-target",
    "long-prefill-token-threshold": "bound a step by --max-num-batched-tokens, or its time by --step-target",
    "chunked-prefill-size": "say --max-num-batched-tokens",
    "max-running-requests": "say --max-num-seqs",
    "num-scheduler-steps": "a step is one pass of the model; leave it out",
    "multi-step-stream-outputs": "every token is sent when it is made; leave it out",
    "async-scheduling": "leave it out",
    "preemption-mode": "a sequence that loses its cache is computed again; leave it out",
    "use-v2-block-manager": "there is one; leave it out",
    "num-lookahead-slots": "leave it out",
    "disable-sliding-window": "the model's own attention runs; leave it out",
    "prefix-caching-hash-algo": "prefixes are compared token by token, nothing is hashed; leave it out",
    "max-num-queued-reqs": "say --max-queued-requests",
    "max-logprobs": "at most 20 a token, as OpenAI has it",
    "logprobs-mode": "logprobs are those of the raw logits",
    "logits-processors": "code of others does not run in the engine",
    "logits-processor-pattern": "code of others does not run in the engine",
    "kv-transfer-config": "prompts and answers are computed in one engine",
    # Compilation
    "compilation-config": "nothing is compiled; leave it out",
    "optimization-level": "nothing is compiled; leave it out",
    "cuda-graph-sizes": "they follow from --max-num-seqs; leave it out",
    "attention-backend": "the executor brings its own; leave it out",
    "additional-config": "each setting has its own flag",
    # Server and logs
    "uds": "it listens on --host and --port",
    "root-path": "strip the prefix in the proxy",
    "ssl-keyfile": _NO_TLS,
    "ssl-certfile": _NO_TLS,
    "ssl-ca-certs": _NO_TLS,
    "ssl-cert-reqs": _NO_TLS,
    "allow-credentials": "CORS never sends credentials; name origins with --allowed-origins",
    "allowed-methods": "name origins with --allowed-origins",
    "allowed-headers": "name origins with --allowed-origins",
    "middleware": "mount headway.server.app.make_app in your own FastAPI app, and add it there",
    "response-role": "answers are the assistant's",
    "shutdown-timeout": "say --drain-timeout",
    "timeout-keep-alive": "leave it out",
    "uvicorn-log-level": _LOGS,
    "disable-uvicorn-access-log": _LOGS,
    "disable-log-requests": "requests are logged without their text; " + _LOGS,
    "enable-log-requests": "prompts are never logged; " + _LOGS,
    "max-log-len": "prompts are never logged",
    "disable-log-stats": "numbers are at /metrics; leave it out",
    "enable-request-id-headers": "X-Request-Id is always there; leave it out",
    "enable-prompt-tokens-details": "cached tokens are always told; leave it out",
    "enable-force-include-usage": "ask for it with stream_options.include_usage",
    "enable-server-load-tracking": "numbers are at /metrics; leave it out",
    "disable-frontend-multiprocessing": "leave it out",
    "otlp-traces-endpoint": "traces are not there yet; numbers are at /metrics",
    "enable-metrics": "numbers are always at /metrics; leave it out",
    # llama-server
    "ctx-size": f"{_LLAMA}: say --max-model-len",
    "n-gpu-layers": f"{_LLAMA}: all layers run on one device; say --device",
    "ngl": f"{_LLAMA}: all layers run on one device; say --device",
    "hf-repo": f"{_LLAMA}: say headway serve ORG/NAME or ORG/NAME:FILE.gguf",
    "hf": f"{_LLAMA}: say headway serve ORG/NAME or ORG/NAME:FILE.gguf",
    "parallel": f"{_LLAMA}: say --max-num-seqs",
    "np": f"{_LLAMA}: say --max-num-seqs",
    "batch-size": f"{_LLAMA}: say --max-num-batched-tokens",
    "ubatch-size": f"{_LLAMA}: say --max-num-batched-tokens",
    "cont-batching": f"{_LLAMA}: it is always on; leave it out",
    "flash-attn": f"{_LLAMA}: leave it out",
    "jinja": f"{_LLAMA}: the model's template is always used; leave it out",
    "models-dir": f"{_LLAMA}: add them to the catalog, headway models add FILE, and say headway serve",
    "models-preset": f"{_LLAMA}: write the models into a file, and say --models-file",
    "model-repository": "that is Triton's name: add its models to the catalog, headway models add FOLDER --watch",
    "models-max": f"{_LLAMA}: say --max-models",
    "sleep-idle-seconds": f"{_LLAMA}: give the model an idle time-out in the catalog",
    "chat-template-file": f"{_LLAMA}: say --chat-template FILE",
}
"""Flag (without its dashes) to what to do instead."""


def advice_on(name: str) -> str | None:
    """What to do instead of a flag or key that Headway has not, or None if it is none of the known ones.

    `name` may have dashes or underscores, a leading no-, and vLLM's dotted keys (speculative-config.method).
    """
    key = name.lstrip("-").replace("_", "-").partition(".")[0]
    return REFUSED.get(key) or REFUSED.get(key.removeprefix("no-"))


def check_refused(args: Iterable[str]) -> None:
    """Raises UnsupportedFeature for the first argument that is a flag of others."""
    for arg in args:
        if arg == "--":
            return
        flag = arg.partition("=")[0]
        advice = advice_on(flag) if is_flag(flag) else None
        if advice is not None:
            raise UnsupportedFeature(f"{flag} is not a flag of Headway: {advice}", param=flag)


def is_flag(arg: str) -> bool:
    """Whether an argument names a flag: --name, or a single dash and a word of letters (-tp)."""
    return arg.startswith("--") or (arg.startswith("-") and arg[1:].isalpha())
