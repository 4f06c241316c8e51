"""Predictors for a child of its own: while they load, something cuts their model's file."""

import os
from pathlib import Path
from typing import Any

import headway_wire as wire
from headway.checkpoint.ggml_types import dequantise
from headway.checkpoint.weights import MappedWeights
from headway.engine import load_weights
from headway.predictors.base import Report
from headway.predictors.headway import HeadwayPredictor


class BetweenTensors(HeadwayPredictor):
    """The file is cut after the first tensor was handed out: the next one is not."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        load_weights._REPORT_INTERVAL_S = 0.0

        def cut(message: wire.Loading) -> None:
            if message.phase == "read" and message.fraction:
                _cut(source)

        return super().load(source, options, cut)


class WithinATensor(HeadwayPredictor):
    """The file is cut when all its tensors were handed out, and none of them touched."""

    def harm(self, source: str) -> None:
        _cut(source)

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        raw, span = MappedWeights.raw, {}

        def raw_of_all(weights: MappedWeights, name: str) -> Any:
            if not span:
                span.update({each: raw(weights, each) for each in weights.shapes()})
                self.harm(source)
            return span[name]

        def read(weights: MappedWeights, name: str) -> Any:
            values = raw_of_all(weights, name)
            return dequantise(values.type, values.data).reshape(values.shape)

        MappedWeights.raw, MappedWeights.read = raw_of_all, read  # type: ignore[method-assign]
        load_weights._REPORT_INTERVAL_S = 1e9
        return super().load(source, options, report)


class Overwritten(WithinATensor):
    """... and is written to in place, which nothing but its time tells."""

    def harm(self, source: str) -> None:
        path = Path(source) / "model.safetensors"
        with path.open("r+b") as file:
            file.seek(-400, os.SEEK_END)
            file.write(bytes(400))
        os.utime(path, ns=(1, 1))  # a clock may be too coarse to tell two writes apart


def _cut(source: str) -> None:
    os.truncate(Path(source) / "model.safetensors", 4096)
