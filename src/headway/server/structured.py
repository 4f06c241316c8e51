"""The fields of structured output, in OpenAI's, vLLM's and llama.cpp's names, and their way to StructuredOutputs.

What the values hold (a schema, a regex, a grammar) is looked at by text/structured, and by the compiler.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from headway.core.structured import StructuredOutputs, StructuredOutputsParams
from headway.errors import InvalidRequest
from headway.server.body import Body, Refusal

GUIDED_REFUSED: Mapping[str, Refusal] = {
    "guided_choice": Refusal("send structured_outputs: {choice: [...]}", ([],)),
    "guided_grammar": Refusal("send structured_outputs: {grammar: ...}", ("",)),
    "guided_json": Refusal("send structured_outputs: {json: ...}", ("",)),
    "guided_regex": Refusal("send structured_outputs: {regex: ...}", ("",)),
    "guided_decoding_backend": Refusal("there is one, and it needs no name", ("auto",)),
    "guided_whitespace_pattern": Refusal("JSON has one space behind a comma and a colon"),
}
"""vLLM's names before structured_outputs; vLLM itself takes them no more."""


class StructuredOutputsBody(Body):
    """What the answer has to match, as vLLM has it: exactly one of these."""

    json_schema: Any = Field(None, alias="json", description="A JSON schema: an object, true, or its text.")
    regex: str | None = Field(None, description="For the whole answer.", min_length=1)
    choice: list[str] | None = Field(None, description="The answer is one of these texts.")
    grammar: str | None = Field(None, description="Lark (with a rule start) or EBNF (with a rule root).")
    json_object: bool | None = Field(None, description="true: any JSON object.")
    structural_tag: Any = Field(None, description="{structures: [{begin, schema, end}], triggers: [...]}.")
    disable_any_whitespace: bool | None = Field(None, description="Taken: there is never any but one space.")
    disable_fallback: bool | None = Field(None, description="Taken: there is nothing to fall back to.")


class JsonSchemaFormat(Body):
    """response_format.json_schema."""

    name: str = Field(min_length=1, max_length=256)
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="The schema is enforced, whatever this says.")


class ResponseFormat(Body):
    """OpenAI's response_format, with vLLM's structural_tag."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = Field(None, description="With type json_schema.")
    structures: list[Any] | None = Field(None, description="With type structural_tag: [{begin, schema, end}].")
    triggers: list[str] | None = Field(None, description="With type structural_tag.")
    misplaced_schema: Any = Field(None, alias="schema", description="Refused: it belongs into json_schema.")


def wanted_structure(
    outputs: StructuredOutputsBody | None, response_format: ResponseFormat | None, grammar: str | None
) -> StructuredOutputs | None:
    """The one structure that a body asks for, with the field that it stands in. Raises InvalidRequest for two."""
    found = [
        each
        for each in (
            _of_outputs(outputs) if outputs is not None else None,
            _of_format(response_format) if response_format is not None else None,
            StructuredOutputs(kind="grammar", value=grammar, param="grammar") if grammar else None,
        )
        if each is not None
    ]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[0].param} and {found[1].param} both say what the answer has to match: leave one of them out",
            param=found[1].param,
        )
    return found[0] if found else None


def _of_outputs(outputs: StructuredOutputsBody) -> StructuredOutputs | None:
    found = StructuredOutputsParams(
        json=outputs.json_schema,
        regex=outputs.regex,
        choice=outputs.choice,
        grammar=outputs.grammar,
        json_object=outputs.json_object,
        structural_tag=outputs.structural_tag,
    )
    return None if (found.kind, found.value) == ("grammar", "") else found  # as llama.cpp: no grammar


_FORMAT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "json_schema": ("json_schema",),
    "structural_tag": ("structures", "triggers"),
}


def _of_format(response_format: ResponseFormat) -> StructuredOutputs | None:
    if response_format.misplaced_schema is not None:
        raise InvalidRequest(
            "response_format.json_schema.schema is where the schema belongs, with a name beside it: "
            "{type: json_schema, json_schema: {name: ..., schema: ...}}",
            param="response_format.json_schema.schema",
        )
    wanted = _FORMAT_FIELDS.get(response_format.type, ())
    for name in ("json_schema", "structures", "triggers"):
        is_given = getattr(response_format, name) is not None
        if is_given != (name in wanted):
            raise InvalidRequest(
                f"response_format.{name} is {'only for another type' if is_given else 'missing'}: "
                f"type {response_format.type} has {' and '.join(('type', *wanted))}",
                param=f"response_format.{name}",
            )
    match response_format.type:
        case "text":
            return None
        case "json_object":
            return StructuredOutputs(kind="json_object", param="response_format")
        case "structural_tag":
            tag = {"structures": response_format.structures, "triggers": response_format.triggers}
            return StructuredOutputs(kind="structural_tag", value=tag, param="response_format")
        case "json_schema":
            named = response_format.json_schema
            schema = None if named is None else named.json_schema
            return StructuredOutputs(kind="json_schema", value=schema, param="response_format.json_schema.schema")
