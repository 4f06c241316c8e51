"""Hugging Face transformers' generate: static batch. Takes the bf16 folder.

--dtype float32 computes in float32, which is the faster one where the processor does not multiply bf16.
"""

import torch
from transformers import AutoModelForCausalLM
from workloads import TokenIds, make_parser, run_engine


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype))
    model = model.to(arguments.device).eval()

    @torch.inference_mode()
    def generate(prompts: list[TokenIds], output: int) -> int:
        ids = torch.tensor(prompts, device=arguments.device)
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=output,
            min_new_tokens=output,
            do_sample=False,
            pad_token_id=0,
        )
        return int(made[:, ids.shape[1] :].numel())

    run_engine(f"transformers-{arguments.dtype}", arguments, generate)


if __name__ == "__main__":
    main()
