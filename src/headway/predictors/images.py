"""Images into tensors, as models of images want them: decoded, turned upright, resized, cropped, normalised.

A value is an image's bytes (PNG, JPEG, WebP, ...), a list of them, or nested lists of numbers, which are taken as the
model's own input. Pillow is imported when the first image comes.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Literal

import msgspec
import numpy as np

from headway.predictors.options import invalid_config, invalid_input, unsupported_model

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Those that are decoded: Pillow knows others, by larger and less tried code."""
MAX_PIXELS = 50_000_000


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an image becomes [channels, height, width] (NCHW) or [height, width, channels] (NHWC)."""

    size: int | tuple[int, int] = 224
    """Of the result: its side, or height and width."""
    resize: int | Literal["crop", "stretch"] = "crop"
    """crop: the image is made as small as covers `size`, and its middle is taken; a number: its shorter side is made so
    long first, as torchvision's 256 before a crop of 224; stretch: to `size`, whatever that does to its proportions."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    scale: float = 1 / 255
    """What each channel's 0 to 255 is multiplied by, first."""
    mean: list[float] = []
    """Subtracted from each channel then; one for all, or one a channel. Empty: 0."""
    std: list[float] = []
    """What the difference is divided by. Empty: 1."""
    channels: Literal["RGB", "BGR", "L"] = "RGB"
    """L: grey, one channel."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    datatype: Literal["FP32", "FP16", "UINT8"] = "FP32"
    """UINT8: neither scaled nor normalised."""
    max_pixels: int = MAX_PIXELS
    """Of an image that comes: a small file can name a huge one. Of one that is resized no more are made either."""

    @property
    def shape(self) -> list[int]:
        """Of one image in the model's input."""
        height, width = self.height_and_width
        depth = 1 if self.channels == "L" else 3
        return [height, width, depth] if self.layout == "NHWC" else [depth, height, width]

    @property
    def height_and_width(self) -> tuple[int, int]:
        """The size as a pair."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def check(self) -> None:
        """Raises PredictorError (InvalidConfig) for sizes that are none, and for a wrong number of means."""
        for name, size in (
            ("size", min(self.height_and_width)),
            ("resize", self.resize),
            ("max_pixels", self.max_pixels),
        ):
            if isinstance(size, int) and size < 1:
                raise invalid_config(f"image.{name} is {size}; it must be 1 or more", f"image.{name}")
        if isinstance(self.resize, int) and self.resize < max(self.height_and_width):
            raise invalid_config(
                f"image.resize is {self.resize}, and size {list(self.height_and_width)}; it must cover it",
                "image.resize",
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, 1, 1 if self.channels == "L" else 3):
                raise invalid_config(f"image.{name} has {len(values)} values for {self.channels}", f"image.{name}")
        if 0 in self.std:
            raise invalid_config("image.std is divided by, and has a 0", "image.std")


def decode_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Any:
    """A PIL image of an encoded one (its first frame), upright as its EXIF says.

    Raises PredictorError for what is no image, for one that is cut off, and for one with more pixels than `max_pixels`,
    of which no pixel is decoded.
    """
    pil, operations = _pillow()
    try:
        image = pil.open(BytesIO(data), formats=FORMATS)
    except Exception as error:  # of each decoder's own: OSError, ValueError, SyntaxError, struct.error, ...
        raise invalid_input(
            f"the {len(data)} bytes are no image that is decoded here ({', '.join(FORMATS)}): {_words(error)}"
        ) from error
    num_pixels = image.width * image.height
    if num_pixels > max_pixels:
        raise invalid_input(
            f"the image has {image.width} x {image.height} = {num_pixels} pixels; at most {max_pixels} are decoded"
        )
    try:
        image.load()
        return operations.exif_transpose(image)
    except Exception as error:
        raise invalid_input(f"the image can not be decoded: {_words(error)}") from error


def prepare_image(image: Any, options: ImageOptions) -> np.ndarray:
    """A PIL image as options.shape of options.datatype. Transparency is laid on black, as converting to RGB does."""
    if image.mode.startswith("I"):
        image = _from_16_bits(image)
    image = _resize(image.convert("L" if options.channels == "L" else "RGB"), options)
    pixels = np.asarray(image)
    if options.channels == "L":
        pixels = pixels[:, :, np.newaxis]
    elif options.channels == "BGR":
        pixels = pixels[:, :, ::-1]
    if options.layout == "NCHW":
        pixels = pixels.transpose(2, 0, 1)
    if options.datatype == "UINT8":
        return np.ascontiguousarray(pixels)
    values = pixels.astype(np.float32) * np.float32(options.scale)
    if options.mean:
        values -= _by_channel(options.mean, options)
    if options.std:
        values /= _by_channel(options.std, options)
    return np.ascontiguousarray(values, dtype=np.float16 if options.datatype == "FP16" else np.float32)


def images_of_value(value: Any) -> list[bytes] | None:
    """The images of what /predict was given: one, or a list of them. None: it has no bytes, so it may be numbers."""
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[0], bytes):
        for place, item in enumerate(value):
            if not isinstance(item, bytes):
                raise invalid_input(f"item {place} of the images is a {type(item).__name__}", "input_data")
        return list(value)
    return None


def prepare_images(images: Sequence[bytes], options: ImageOptions) -> np.ndarray:
    """[num_images, *options.shape]. Raises PredictorError as decode_image."""
    return np.stack([prepare_image(decode_image(data, options.max_pixels), options) for data in images])


def _pillow() -> tuple[Any, Any]:
    """PIL.Image and PIL.ImageOps. Raises PredictorError (UnsupportedModel) where Pillow is not installed."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise unsupported_model("images are decoded by Pillow, which is not installed: pip install pillow") from error
    return Image, ImageOps


def _resize(image: Any, options: ImageOptions) -> Any:
    """To the size, by the rule of options.resize; crops are of the middle, rounded as torchvision rounds them."""
    pil, _ = _pillow()
    method = getattr(pil.Resampling, options.interpolation.upper())
    height, width = options.height_and_width
    if options.resize == "stretch":
        return image.resize((width, height), method)
    if isinstance(options.resize, int):
        shorter = min(image.width, image.height)
        new_width = int(options.resize * image.width / shorter)
        new_height = int(options.resize * image.height / shorter)
    else:
        ratio = max(width / image.width, height / image.height)
        new_width, new_height = max(width, int(image.width * ratio)), max(height, int(image.height * ratio))
    left, top = round((new_width - width) / 2), round((new_height - height) / 2)
    if new_width * new_height > options.max_pixels:
        # What is cut off is not made at all: a thin image of few pixels would become a huge one.
        x, y = image.width / new_width, image.height / new_height
        right, bottom = min((left + width) * x, image.width), min((top + height) * y, image.height)
        return image.resize((width, height), method, box=(left * x, top * y, right, bottom))
    image = image.resize((new_width, new_height), method)
    return image.crop((left, top, left + width, top + height))


def _from_16_bits(image: Any) -> Any:
    """Grey of 16 bits as 8: Pillow's own conversion would make all above 255 white."""
    pil, _ = _pillow()
    return pil.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))


def _by_channel(values: Sequence[float], options: ImageOptions) -> np.ndarray:
    """One value for all, or one a channel, so that it broadcasts over an image."""
    array = np.asarray(values, dtype=np.float32)
    return array if options.layout == "NHWC" else array.reshape(-1, 1, 1)


def _words(error: Exception) -> str:
    return str(error)[:300] or type(error).__name__
