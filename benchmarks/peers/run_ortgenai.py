"""ONNX Runtime GenAI: static batch. Takes the folder that its model builder made (int4, accuracy level 4)."""

import numpy as np
import onnxruntime_genai as genai
from workloads import TokenIds, make_parser, run_engine

MAX_BATCH = 32
"""The most that it takes."""


def main() -> None:
    arguments = make_parser(__doc__).parse_args()
    config = genai.Config(arguments.model)
    config.overlay(
        f'{{"model": {{"decoder": {{"session_options": {{"intra_op_num_threads": {arguments.threads}}}}}}}}}'
    )
    model = genai.Model(config)

    def generate_batch(prompts: list[TokenIds], output: int) -> int:
        params = genai.GeneratorParams(model)
        length = len(prompts[0]) + output
        params.set_search_options(do_sample=False, min_length=length, max_length=length, batch_size=len(prompts))
        generator = genai.Generator(model, params)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(output):
            generator.generate_next_token()
        return sum(len(generator.get_sequence(i)) - len(prompt) for i, prompt in enumerate(prompts))

    def generate(prompts: list[TokenIds], output: int) -> int:
        starts = range(0, len(prompts), MAX_BATCH)
        return sum(generate_batch(prompts[start : start + MAX_BATCH], output) for start in starts)

    run_engine("ortgenai", arguments, generate)


if __name__ == "__main__":
    main()
