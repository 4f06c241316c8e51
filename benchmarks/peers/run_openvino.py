"""OpenVINO GenAI: continuous batching. Takes the GGUF file."""

import numpy as np
import openvino as ov
import openvino_genai as genai
from workloads import TokenIds, make_parser, run_engine


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    arguments = parser.parse_args()
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_batched_tokens = arguments.max_num_batched_tokens
    scheduler.max_num_seqs = 64
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": arguments.threads}
    pipeline = genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", properties)

    def generate(prompts: list[TokenIds], output: int) -> int:
        config = genai.GenerationConfig(max_new_tokens=output, ignore_eos=True, do_sample=False)
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipeline.generate(inputs, [config] * len(prompts))
        return sum(len(result.m_generation_ids[0]) for result in results)

    run_engine("openvino", arguments, generate)


if __name__ == "__main__":
    main()
