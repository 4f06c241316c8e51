"""A script's text: the real tokenizer and chat template over the script's own vocabulary (script.py)."""

from dataclasses import replace

from headway.config import TextConfig
from headway.service.loader import make_output_style
from headway.testing.script import CONTROL_TOKENS, END_TOKEN_ID, Script, words
from headway.text.byte_alphabet import CHARACTER_OF_BYTE
from headway.text.chat_template import make_chat_template
from headway.text.source import GgufVocabulary, TextSource
from headway.text.tokenizer import make_tokenizer
from headway.worker.prompt import ModelText

CHAT_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""<|user|>hello<|end|><|assistant|> is 5 + 3 = 8 tokens. Calls are written as the dialect hermes does."""
REASONING_TEMPLATE = CHAT_TEMPLATE + (
    "{% if add_generation_prompt and enable_thinking is defined %}"
    "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def make_text_source(script: Script) -> TextSource:
    """The vocabulary as a GGUF file would have it: byte-level, without merges, so that text becomes its bytes."""
    spelled = ["".join(CHARACTER_OF_BYTE[byte] for byte in word) for word in words(script)]
    tokens = [*(CHARACTER_OF_BYTE[byte] for byte in range(256)), *CONTROL_TOKENS, *spelled]
    vocabulary = GgufVocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        token_types=[1] * 256 + [3] * len(CONTROL_TOKENS) + [1] * len(spelled),
        merges=[],
        end_token_ids=frozenset({END_TOKEN_ID}),
    )
    return TextSource(
        vocabulary,
        vocab_size=len(tokens),
        end_token_ids=frozenset({END_TOKEN_ID}),
        chat_template=CHAT_TEMPLATE if script.reasoning_parser == "none" else REASONING_TEMPLATE,
        generation_defaults=script.generation_defaults,
    )


def make_text(script: Script) -> ModelText:
    """The real tokenizer and template over the script's vocabulary."""
    source = make_text_source(script)
    tokenizer, template = make_tokenizer(source), make_chat_template(source, None)
    text = TextConfig(tool_call_parser=script.tool_call_parser, reasoning_parser=script.reasoning_parser)
    style = replace(make_output_style(text, template, tokenizer), can_constrain=script.is_enforced)
    return ModelText(tokenizer, template, script.generation_defaults, output=style)
