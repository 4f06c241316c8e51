"""How text is cut into words before byte-pair merges: what a GGUF file's tokenizer.ggml.pre stands for.

Each name has a list of patterns. They are applied one after the other to every piece so far; what a pattern matches
and what is between two matches become pieces of their own. Names and patterns follow llama.cpp's llama-vocab.cpp; where
that file approximates a model's own pattern for want of a regex engine with Unicode categories (tekken, gpt-4o), the
model's own stands here. Every pattern takes time linear in the text.
"""

from dataclasses import dataclass

from headway.errors import UnsupportedModel

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_CASELESS_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_HAN_AND_KANA = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)"
_DIGIT = r"\p{N}"


def _gpt4(digits: str, *, contractions: str = _CASELESS_CONTRACTIONS + "|", letters: str = r"\p{L}+") -> str:
    """The pattern of GPT-4's family; `digits` says how numbers are cut."""
    return rf"{contractions}{_WORD_START}{letters}|{digits}|{_PUNCTUATION}|{_SPACES}"


def _cased(digits: str, suffix: str = "") -> str:
    """The family that also cuts where a word's case changes; `suffix` is what a word may end with."""
    word = rf"{_WORD_START}{_UPPER}*{_LOWER}+{suffix}|{_WORD_START}{_UPPER}+{_LOWER}*{suffix}"
    return rf"{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_LLAMA3 = _gpt4(r"\p{N}{1,3}")
_QWEN2 = _gpt4(_DIGIT)
_DEEPSEEK3_WORDS = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
_DEEPSEEK_CJK = "[一-龥\u0800-一\uac00-\ud7ff]+"
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗ"
    "ὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HALVED_SPACES = "|".join(rf"\s{{{2**i}}}(?!\S)" for i in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Patterns, and what llama.cpp ties to the name beside them."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    """A word that is a token as a whole is that token, whatever the merges say."""
    adds_bos: bool = False
    """Where the file does not say."""
    has_bos: bool = True
    """False: the file's BOS id is not one."""


_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "default",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe", PreTokenizer((_LLAMA3,))),
    ("chatglm-bpe", PreTokenizer((_LLAMA3,), has_bos=False)),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignores_merges=True, has_bos=False)),
    ("jais-2", PreTokenizer((_LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + _HALVED_SPACES,))),
    ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _gpt4(r"\p{N}+")), ignores_merges=True)),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion "
        "granite-docling exaone4 roberta-bpe",
        PreTokenizer((_GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        PreTokenizer((_DIGIT, _GPT2)),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                rf"{_CASELESS_CONTRACTIONS}|{_WORD_START}[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            )
        ),
    ),
    ("ufakzeka", PreTokenizer((_gpt4(_DIGIT, contractions=""),))),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2))),
    (
        "seed-coder",
        PreTokenizer((_QWEN2.replace(_PUNCTUATION, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD_START}\p{{L}}+|\p{{N}}"
                rf"|{_PUNCTUATION}|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("tekken", PreTokenizer((_cased(_DIGIT),), ignores_merges=True, adds_bos=True)),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        PreTokenizer((_cased(r"\p{N}{1,3}", _CASELESS_CONTRACTIONS + "?"),)),
    ),
    (
        "youtu",
        PreTokenizer(
            (
                "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[ㄅ-ㄯ]+|" + _HAN_AND_KANA,
                _cased(_DIGIT, _CASELESS_CONTRACTIONS + "?"),
            ),
            ignores_merges=True,
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
                # The lookbehind changes no match: without it each blank of a long run would scan the run's rest.
                r"(?<!\s)\s+$",
                _DEEPSEEK_CJK,
                r"\p{N}+",
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _DIGIT)),
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        PreTokenizer((r"\p{N}{1,3}", _HAN_AND_KANA, rf"{_DEEPSEEK3_WORDS}[\r\n]*|{_SPACES}")),
    ),
    (
        "spark2_5",
        PreTokenizer(
            (r"\p{N}{1,3}", _HAN_AND_KANA, rf"{_DEEPSEEK3_WORDS}|[\r\n]|\s+(?!\S)|\s+", _DIGIT),
        ),
    ),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("poro-chat bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, _DIGIT))),
    (
        "chameleon",
        PreTokenizer(
            (
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                _DIGIT,
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            adds_bos=True,
        ),
    ),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: found for names, found in _FAMILIES for name in names.split()}
"""By tokenizer.ggml.pre."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """What `name` stands for. Raises UnsupportedModel with the names that there are."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise UnsupportedModel(
            f"the GGUF file's pre-tokenizer is {name!r}, which Headway does not have; it has "
            f"{', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return found
