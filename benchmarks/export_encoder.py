"""A Hugging Face encoder's folder as an ONNX file inside it, batch and length free:  export_encoder.py FOLDER"""

import sys
from pathlib import Path

import torch
import transformers


class Encoder(torch.nn.Module):
    """The hidden states alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> object:
        return self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state


folder = Path(sys.argv[1])
# Three tensors: given one twice, the exporter exchanges the two inputs.
ids, mask, types = (torch.full((2, 16), value, dtype=torch.int64) for value in (7, 1, 0))
free = {0: torch.export.Dim("batch", max=4096), 1: torch.export.Dim("length", max=512)}
target = folder / "onnx" / "model.onnx"
target.parent.mkdir(exist_ok=True)
program = torch.onnx.export(
    Encoder(folder), (ids, mask, types), dynamo=True, dynamic_shapes=(free, free, free), verbose=False
)
program.save(str(target) + ".part", external_data=False)
Path(str(target) + ".part").rename(target)
