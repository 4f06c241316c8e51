"""Headway, offline. Takes a GGUF file or a folder of bf16 safetensors."""

from workloads import TokenIds, make_parser, run_engine

from headway import LLM, SamplingParams


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto", choices=["auto", "float16", "bfloat16", "int8"])
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--logprobs", type=int)
    arguments = parser.parse_args()
    llm = LLM(
        arguments.model,
        executor=arguments.executor,
        device=arguments.device,
        dtype=arguments.dtype,
        enforce_eager=arguments.enforce_eager,
        threads=arguments.threads,
        kv_cache_dtype=arguments.kv_cache_dtype,
        max_model_len=4096,
        max_num_seqs=64,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        kv_cache_memory=4 * 2**30,
        enable_prefix_caching=False,
    )

    def generate(prompts: list[TokenIds], output: int) -> int:
        sampling = SamplingParams(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            logprobs=arguments.logprobs,
            max_tokens=output,
            ignore_eos=True,
        )
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
        return sum(len(choice.token_ids) for request in outputs for choice in request.outputs)

    run_engine("headway", arguments, generate)


if __name__ == "__main__":
    main()
