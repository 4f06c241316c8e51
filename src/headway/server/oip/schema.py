"""Bodies of the protocol's REST routes. Parameters are read by parameters.py: the protocol leaves them open."""

from typing import Any, ClassVar

from pydantic import Field

from headway.server.body import Body, Refusal


class TensorIn(Body):
    """One of a request's inputs."""

    name: str = Field(min_length=1)
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] | None = Field(None, description="binary_data_size: its bytes, behind the JSON.")
    data: Any = Field(None, description="Its elements, flat or nested row by row; left out with binary_data_size.")


class OutputIn(Body):
    """One of the outputs that are wanted."""

    name: str = Field(min_length=1)
    parameters: dict[str, Any] | None = Field(None, description="binary_data, classification.")


class InferBody(Body):
    """POST /v2/models/MODEL/infer."""

    id: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="binary_data_output, timeout, and the model's own.")
    inputs: list[TensorIn]
    outputs: list[OutputIn] | None = None


class GenerateBody(Body):
    """POST /v2/models/MODEL/generate and /generate_stream."""

    id: str | None = None
    text_input: str
    parameters: dict[str, Any] | None = Field(None, description="How to sample, in the names of POST /generate.")
    stream: bool | None = None


class IndexBody(Body):
    """POST /v2/repository/index."""

    ready: bool | None = Field(None, description="Only models that are ready.")


class LoadBody(Body):
    """POST /v2/repository/models/MODEL/load."""

    parameters: dict[str, Any] | None = Field(None, description="None is taken: a model is configured as it is served.")


class UnloadBody(Body):
    """POST /v2/repository/models/MODEL/unload."""

    parameters: dict[str, Any] | None = Field(None, description="unload_dependents: false.")


class NoParameters(Body):
    """parameters of a load: a model's configuration is the server's."""

    refused: ClassVar[dict[str, Refusal]] = {
        "config": Refusal("a model is configured where it is served: headway models add, or the server's flags"),
    }


class UnloadParameters(Body):
    """parameters of an unload."""

    refused: ClassVar[dict[str, Refusal]] = {
        "unload_dependents": Refusal("unload each model by its name", (False,)),
    }
