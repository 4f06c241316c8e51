"""JSON schemas of draft 7, drawn by hypothesis-jsonschema, one a line: what `structured.py schemas --file` answers.

    draw_schemas.py NUMBER [--seed 0] [--depth 1] > FILE        by the environment that `prepare.sh DIR schemas` makes

hypothesis-jsonschema draws instances of a schema; the schema here describes schemas: every keyword that constrained
output takes, any of them together, with schemas inside of schemas so deep (1,000 take two minutes; of depth 2 each
takes a second). Strings are of any characters, also those that a model has no tokens for; what makes no sense together
(a minimum over its maximum) is drawn as well.
"""

import argparse
import json
import sys
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis_jsonschema import from_schema

Schema = dict[str, Any]

PATTERNS = ["^[a-f0-9]{4}$", "^(yes|no)$", r"^\d{3}-\d{2}$", "[A-Z]+", "^é+$", r"^\w+@\w+\.com$", "a|b", "^.{2,5}$"]
FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
ANY_VALUE: Schema = {"type": ["null", "boolean", "integer", "number", "string"]}


def integers(low: int, high: int) -> Schema:
    """Of integers in low..high."""
    return {"type": "integer", "minimum": low, "maximum": high}


def listed(items: Schema, low: int, high: int) -> Schema:
    """Of lists of low..high of these, none twice."""
    return {"type": "array", "items": items, "minItems": low, "maxItems": high, "uniqueItems": True}


def named(values: Schema, high: int) -> Schema:
    """Of objects of at most `high` of these, by any names."""
    return {"type": "object", "additionalProperties": values, "maxProperties": high}


def an_object(properties: Schema, *required: str) -> Schema:
    """Of objects that may have these and no other, and must have those."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def schemas_of_values() -> list[Schema]:
    """Of schemas that hold no other."""
    bounds = {
        "minimum": integers(-1000, 100),
        "maximum": integers(0, 10**6),
        "exclusiveMinimum": {"type": "number", "minimum": -100, "maximum": 1},
        "exclusiveMaximum": {"type": "number", "minimum": 1, "maximum": 10**6},
        "multipleOf": integers(1, 12),
    }
    lengths = {"minLength": integers(0, 4), "maxLength": integers(2, 24)}
    text = {"type": {"const": "string"}}
    return [
        an_object({"type": {"enum": ["integer", "number"]}, **bounds}, "type"),
        an_object(text | lengths, "type", "maxLength"),
        an_object(text | {"format": {"enum": FORMATS}}, "type", "format"),
        an_object(text | {"pattern": {"enum": PATTERNS}}, "type", "pattern"),
        an_object({"type": {"enum": ["boolean", "null"]}}, "type"),
        an_object({"const": ANY_VALUE}, "const"),
        an_object({"enum": listed(ANY_VALUE, 1, 6)}, "enum"),
        an_object({"type": listed({"enum": TYPES}, 1, 3)}, "type"),
    ]


def schemas_of(depth: int) -> Schema:
    """Of schemas that hold others so deep."""
    if depth == 0:
        return {"anyOf": schemas_of_values()}
    inner = schemas_of(depth - 1)
    closed: Schema = {"const": False}
    sizes = {"minItems": integers(0, 2), "maxItems": integers(1, 5)}
    array, mapping = {"type": {"const": "array"}}, {"type": {"const": "object"}}
    more = {"additionalProperties": {"anyOf": [closed, inner]}}
    patterned = {
        "type": "object",
        "additionalProperties": inner,
        "propertyNames": {"enum": PATTERNS},
        "maxProperties": 2,
    }
    return {
        "anyOf": [
            *schemas_of_values(),
            an_object(array | sizes | {"items": inner}, "type", "items", "maxItems"),
            an_object(
                array | {"items": {"type": "array", "items": inner, "minItems": 1, "maxItems": 3}}, "type", "items"
            ),
            an_object(mapping | more | {"properties": named(inner, 4)}, "type", "properties", "additionalProperties"),
            an_object(mapping | more | {"patternProperties": patterned}, "type", "patternProperties"),
            *(an_object({key: listed(inner, 1, 3)}, key) for key in ("anyOf", "oneOf", "allOf")),
        ]
    }


def require(schema: Any) -> Any:
    """The same where half of the properties of each object are required, which hypothesis can not say by a schema."""
    if isinstance(schema, list):
        return [require(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in ("const", "enum") else require(value) for key, value in schema.items()}
    if "properties" in made and made.get("type") == "object":
        made["required"] = sorted(made["properties"])[::2]
    return made


def main() -> None:
    """Prints as many as are asked for, none twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int, default=1)
    arguments = parser.parse_args()
    drawn: dict[str, None] = {}

    class Enough(Exception):
        pass

    @seed(arguments.seed)
    @settings(
        max_examples=20 * arguments.number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(from_schema(schemas_of(arguments.depth)))
    def collect(schema: Any) -> None:
        drawn.setdefault(json.dumps(require(schema), sort_keys=True))
        if len(drawn) >= arguments.number:
            raise Enough

    try:
        collect()
    except Enough:
        print(*drawn, sep="\n")
    else:
        sys.exit(f"{len(drawn)} different schemas were drawn, and no more came")


if __name__ == "__main__":
    main()
