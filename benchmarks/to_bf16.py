"""A GGUF file of the Llama architecture as a bf16 Hugging Face folder:  to_bf16.py FILE.gguf FOLDER

Runs in the transformers peer's environment. For token ids only: the tokenizer that transformers makes of the GGUF file
loses the split of digits.
"""

import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

OF_THE_FILE = {"architectures", "model_type", "quantization_config", "_model_name_or_path"}
"""Settings that describe the quantised copy."""


def main(source: str, target: str) -> None:
    folder, name = os.path.split(source)
    quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    settings = {key: value for key, value in quantised.config.to_dict().items() if key not in OF_THE_FILE}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(quantised.state_dict())
    model.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
