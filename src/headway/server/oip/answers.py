"""An inference's answer over REST: JSON, and behind it what is told as binary data."""

from typing import Any

import orjson
from starlette.responses import Response

from headway.server.inferring import load_headers
from headway.server.oip.binary import HEADER
from headway.server.oip.plane import Answered, Asked
from headway.server.tensors import json_elements


def infer_response(asked: Asked, answered: Answered) -> Response:
    """The whole answer. Raises InvalidRequest for an output that JSON can not tell."""
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for tensor, is_binary in answered.outputs:
        told: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if is_binary:
            told["parameters"] = {"binary_data_size": len(tensor.data)}
            blobs.append(tensor.data)
        else:
            told["data"] = json_elements(tensor)
        outputs.append(told)
    body = {"model_name": asked.target.name, "model_version": asked.target.version, "outputs": outputs}
    head = orjson.dumps({"id": asked.id, **body} if asked.id else body, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = dict(load_headers(answered.made))
    if not blobs:
        return Response(head, headers=headers, media_type="application/json")
    headers[HEADER] = str(len(head))
    return Response(b"".join([head, *blobs]), headers=headers, media_type="application/octet-stream")
