"""vLLM's CPU build. Takes the bf16 folder."""

import os

from workloads import TokenIds, make_parser, run_engine


def main() -> None:
    arguments = make_parser(__doc__).parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{arguments.threads - 1}")
    from vllm import LLM, SamplingParams  # reads the environment when it is imported

    llm = LLM(arguments.model, dtype="bfloat16", max_model_len=4096, max_num_seqs=64, enable_prefix_caching=False)

    def generate(prompts: list[TokenIds], output: int) -> int:
        sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return sum(len(request.outputs[0].token_ids) for request in outputs)

    run_engine("vllm", arguments, generate)


if __name__ == "__main__":
    main()
