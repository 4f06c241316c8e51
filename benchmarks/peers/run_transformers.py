"""Hugging Face transformers' generate: static batch, bf16. Takes the bf16 folder."""

import torch
from transformers import AutoModelForCausalLM
from workloads import TokenIds, make_parser, run_engine


def main() -> None:
    arguments = make_parser(__doc__).parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def generate(prompts: list[TokenIds], output: int) -> int:
        ids = torch.tensor(prompts)
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=output,
            min_new_tokens=output,
            do_sample=False,
            pad_token_id=0,
        )
        return int(made[:, ids.shape[1] :].numel())

    run_engine("transformers", arguments, generate)


if __name__ == "__main__":
    main()
