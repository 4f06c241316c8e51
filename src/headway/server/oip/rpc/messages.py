"""The messages of open_inference.proto, made of its compiled form in a descriptor pool of their own.

Generated modules would enter protobuf's one pool, where Triton's and KServe's clients have messages of the same names:
whoever is imported second in a process, fails. They would also want the very release of protobuf that made them.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPILED = Path(__file__).with_name("open_inference.binpb")
SERVICE = "inference.GRPCInferenceService"

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))


def method_messages(name: str) -> tuple[Any, Any]:
    """The classes that a method of the service takes and gives."""
    method = _pool.FindServiceByName(SERVICE).methods_by_name[name]
    return (
        message_factory.GetMessageClass(method.input_type),
        message_factory.GetMessageClass(method.output_type),
    )


InferResponse = message("ModelInferResponse")
StreamInferResponse = message("ModelStreamInferResponse")
