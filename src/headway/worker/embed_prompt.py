"""From texts to what is submitted to an encoder: ids with the model's own around them, cut or refused where too long.

Control tokens that stand in a text are text. Pure but for the thread that many or long texts are tokenised in.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headway.core.embedding import FIT, EmbedInput, Purpose, TextPair, check_length
from headway.core.request import TokensPrompt
from headway.errors import InvalidRequest, UnsupportedModel
from headway.worker.prompt import LONG_TEXT_CHARACTERS, ModelText


@dataclass(frozen=True, slots=True)
class PreparedText:
    """Ids of one text or pair."""

    token_ids: tuple[int, ...]
    second_start: int | None = None
    """Of a pair whose second text has a token type of its own: where it begins."""


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """What one request computes; one of each for every input."""

    inputs: Sequence[EmbedInput]
    names: Sequence[str]
    """In the caller's request."""
    purposes: Sequence[Purpose]


async def prepare_texts(
    text: ModelText, inputs: EncoderInputs, *, max_model_len: int, truncate_to: int | None
) -> list[PreparedText]:
    """prepare_texts_now, in a thread if they are long."""
    prepare = partial(prepare_texts_now, text, inputs, max_model_len=max_model_len, truncate_to=truncate_to)
    if sum(map(_num_characters, inputs.inputs)) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(prepare)
    return prepare()


def prepare_texts_now(
    text: ModelText, inputs: EncoderInputs, *, max_model_len: int, truncate_to: int | None
) -> list[PreparedText]:
    """The ids of each input, in order. Blocks for as long as tokenising takes.

    Raises InvalidRequest for an empty text, an id outside the vocabulary or a truncate_to that cannot be;
    ContextLengthExceeded for a text that is too long, with both numbers.
    """
    limit = _truncation(truncate_to, max_model_len)
    made = []
    for each, name, purpose in zip(inputs.inputs, inputs.names, inputs.purposes, strict=True):
        prepared = _prepare(text, each, purpose, limit, name)
        check_length(len(prepared.token_ids), max_model_len, param=name, what=name)
        made.append(prepared)
    return made


def _truncation(wanted: int | None, limit: int) -> int | None:
    """Tokens that texts are cut to; None: they are not."""
    if wanted is None:
        return None
    if wanted != FIT and not 1 <= wanted <= limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {wanted}; it must be 1 to {limit}, the tokens that this model takes, or -1 for "
            "that many",
            param="truncate_prompt_tokens",
        )
    return limit if wanted == FIT else wanted


def _prepare(text: ModelText, each: EmbedInput, purpose: Purpose, limit: int | None, param: str) -> PreparedText:
    if isinstance(each, TokensPrompt):
        text.tokenizer.check_ids(each.token_ids, param)
        return PreparedText(tuple(each.token_ids[:limit]))
    if isinstance(each, TextPair):
        return _prepare_pair(text, each, limit, param)
    if not each.text:
        raise InvalidRequest(f"{param} is empty: it needs at least one character", param=param)
    prompt = text.encoder.prompt(purpose) if text.encoder is not None else ""
    ids = text.tokenizer.encode(prompt + each.text, add_special_tokens=False)
    prefix, suffix = (text.tokenizer.prefix, text.tokenizer.suffix) if each.add_special_tokens else ((), ())
    room = _room(limit, len(prefix) + len(suffix))
    return PreparedText((*prefix, *ids[:room], *suffix))


def _prepare_pair(text: ModelText, pair: TextPair, limit: int | None, param: str) -> PreparedText:
    frame = text.tokenizer.pair
    if frame is None:
        raise UnsupportedModel(
            "this model's tokenizer does not say how two texts are read as one: ask for vectors, or serve the Hugging "
            "Face folder of a cross-encoder, with its tokenizer.json"
        )
    for each in (pair.first, pair.second):
        if not each:
            raise InvalidRequest(f"{param} has an empty text: each needs at least one character", param=param)
    first, second = (text.tokenizer.encode(each, add_special_tokens=False) for each in (pair.first, pair.second))
    room = _room(limit, len(frame.prefix) + len(frame.middle) + len(frame.suffix))
    if room is not None:
        first, second = _cut_pair(first, second, room)
    start = (*frame.prefix, *first, *frame.middle)
    has_types = frame.second_type and (text.encoder is None or text.encoder.num_token_types > 1)
    return PreparedText((*start, *second, *frame.suffix), len(start) if has_types else None)


def _cut_pair(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """The longer one is cut first, then both to halves: longest_first of the tokenizers library."""
    if len(first) + len(second) <= room:
        return first, second
    short = min(len(first), len(second))
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    keep_first, keep_second = (long, short) if len(first) > len(second) else (short, long)
    return first[:keep_first], second[:keep_second]


def _room(limit: int | None, num_special: int) -> int | None:
    """Tokens of the text itself."""
    if limit is None:
        return None
    if limit <= num_special:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {limit}; the model's own tokens around a text are {num_special} already: give "
            "more",
            param="truncate_prompt_tokens",
        )
    return limit - num_special


def _num_characters(each: EmbedInput) -> int:
    match each:
        case TextPair():
            return len(each.first) + len(each.second)
        case TokensPrompt():
            return len(each.token_ids)
        case _:
            return len(each.text)
