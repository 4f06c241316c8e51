"""SavedModels and TensorFlow's own answers, written in its own environment:  ask_tensorflow.py FOLDER

Each of `numbers`, `words`, `pictures`, `open`, `reads` becomes a folder; TensorFlow's answers are printed as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf


class Numbers(tf.Module):
    """Several types in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable([[1.0, 2.0, 3.0], [-4.0, 5.0, 0.5]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x"), tf.TensorSpec([None], tf.int32, name="offset")])
    def both(self, x: Any, offset: Any) -> dict[str, Any]:
        """x @ weight + offset, in three types."""
        y = x @ self.weight + tf.cast(offset, tf.float32)[:, None]
        return {"y": y, "half": tf.cast(y, tf.float16), "brain": tf.cast(y, tf.bfloat16), "is_more": y > 0}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def total(self, x: Any) -> dict[str, Any]:
        """An output that does not follow the batch."""
        return {"total": tf.reduce_sum(x)}


class Words(tf.Module):
    """Strings in and out."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def run(self, text: Any) -> dict[str, Any]:
        """Lower-case letters, and how many bytes."""
        return {"lower": tf.strings.lower(text, encoding="utf-8"), "num_bytes": tf.strings.length(text)}


class Pictures(tf.Module):
    """A small network over images."""

    def __init__(self) -> None:
        super().__init__()
        tf.random.set_seed(3)
        self.kernel = tf.Variable(tf.random.normal([3, 3, 3, 8], stddev=0.5))
        self.last = tf.Variable(tf.random.normal([8, 4]))

    @tf.function(input_signature=[tf.TensorSpec([None, 32, 32, 3], name="image")])
    def run(self, image: Any) -> dict[str, Any]:
        """Logits of four classes."""
        features = tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(image, self.kernel, 2, "SAME")), [1, 2])
        return {"logits": features @ self.last}


class Open(tf.Module):
    """The number of axes is open."""

    @tf.function(input_signature=[tf.TensorSpec(None, name="x")])
    def run(self, x: Any) -> dict[str, Any]:
        """Its double."""
        return {"y": x * 2}


class Reads(tf.Module):
    """A model that reads any file for its caller."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="path")])
    def run(self, path: Any) -> dict[str, Any]:
        """The file."""
        return {"content": tf.io.read_file(path)}


def main(folder: Path) -> None:
    numbers, pictures = Numbers(), Pictures()
    signatures = {"serving_default": numbers.both, "total": numbers.total}
    tf.saved_model.save(numbers, str(folder / "numbers"), signatures=signatures)
    for name, module in (("words", Words()), ("pictures", pictures), ("open", Open()), ("reads", Reads())):
        tf.saved_model.save(module, str(folder / name), signatures=module.run)
    image = np.linspace(0, 1, 32 * 32 * 3, dtype=np.float32).reshape(1, 32, 32, 3)
    print(json.dumps({"logits": pictures.run(image)["logits"].numpy().tolist()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
