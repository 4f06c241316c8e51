"""What the parent knows of an encoder: what it takes and gives. Filled by service/loader from the checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.core.embedding import Purpose
from headway.errors import InvalidRequest, UnsupportedFeature

_PROMPT_NAMES: Mapping[Purpose, tuple[str, ...]] = {
    "text": (),
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
"""What models call their prompts, by what the text is for (sentence-transformers' encode_query, encode_document)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderText:
    """An encoder's side of a text."""

    reads_pairs: bool
    """It scores pairs of texts (cross-encoder), else it makes vectors."""
    width: int
    """Of a vector."""
    num_token_types: int = 2
    """0 or 1: both texts of a pair look alike but for what stands between them."""
    is_normalised: bool = False
    dimensions: tuple[int, ...] = ()
    """Lengths that a vector may be cut to."""
    any_dimension: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""

    def prompt(self, purpose: Purpose) -> str:
        """What is put before a text: the model's own for the purpose, else its default."""
        for name in _PROMPT_NAMES[purpose]:
            if name in self.prompts:
                return self.prompts[name]
        return self.default_prompt

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raises InvalidRequest for a length that cannot be, UnsupportedFeature where the model was not made for it."""
        if dimensions is None or dimensions == self.width:
            return
        if not 1 <= dimensions <= self.width:
            raise InvalidRequest(
                f"dimensions is {dimensions}; this model's vectors have {self.width}: give 1 to that many, or leave it "
                "out",
                param="dimensions",
            )
        if not self.any_dimension and dimensions not in self.dimensions:
            there = f"those of {', '.join(map(str, self.dimensions))} are" if self.dimensions else "none shorter is"
            raise UnsupportedFeature(
                f"dimensions is {dimensions}; this model's vectors have {self.width}, and {there} meant to be used: "
                "leave it out",
                param="dimensions",
            )
