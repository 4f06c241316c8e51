"""vLLM's CPU build. Takes the bf16 folder.

--dtype float32   the same weights, where the machine has no instructions for bfloat16
--eager           without torch.compile, in one process: what starts where compiling takes over a quarter of an hour
"""

import os

from workloads import TokenIds, make_parser, run_engine


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--eager", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind" if arguments.eager else f"0-{arguments.threads - 1}")
    if arguments.eager:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams  # reads the environment when it is imported

    llm = LLM(
        arguments.model,
        dtype=arguments.dtype,
        max_model_len=4096,
        max_num_seqs=64,
        # What it measures its memory with: steps of thousands of tokens take minutes where they have no fast product.
        max_num_batched_tokens=512 if arguments.eager else None,
        enable_prefix_caching=False,
        enforce_eager=arguments.eager,
    )

    def generate(prompts: list[TokenIds], output: int) -> int:
        sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return sum(len(request.outputs[0].token_ids) for request in outputs)

    run_engine("vllm", arguments, generate)


if __name__ == "__main__":
    main()
