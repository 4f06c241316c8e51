"""Images into arrays: right values from Pillow's own steps and from arithmetic."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headway.predictors.images import ImageOptions, decode_image, images_of_value, prepare_image, prepare_images
from headway_wire import PredictorError

COLOURS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3
"""An image of 4 rows and 6 columns, each pixel and channel another."""


def encoded(array: np.ndarray, kind: str = "PNG", **settings: Any) -> bytes:
    buffer = BytesIO()
    Image.fromarray(array).save(buffer, kind, **settings)
    return buffer.getvalue()


def prepared(array: np.ndarray, **options: Any) -> np.ndarray:
    return prepare_image(Image.fromarray(array), ImageOptions(**options))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "JPEG", "GIF"])
def test_formats_are_decoded(kind: str) -> None:
    settings = {"lossless": True} if kind == "WEBP" else {}
    image = decode_image(encoded(np.full((5, 7, 3), 128, dtype=np.uint8), kind, **settings)).convert("RGB")
    assert image.size == (7, 5)
    assert np.abs(np.asarray(image).astype(int) - 128).max() <= 1


def test_an_image_is_turned_as_its_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rows are columns, from the right
    image = decode_image(encoded(COLOURS, exif=exif))
    np.testing.assert_array_equal(np.asarray(image), np.rot90(COLOURS, -1))


def test_channels_layout_and_datatype_are_as_told() -> None:
    size = (4, 6)
    np.testing.assert_array_equal(prepared(COLOURS, size=size, layout="NHWC", datatype="UINT8"), COLOURS)
    np.testing.assert_array_equal(prepared(COLOURS, size=size, datatype="UINT8"), COLOURS.transpose(2, 0, 1))
    np.testing.assert_array_equal(
        prepared(COLOURS, size=size, layout="NHWC", channels="BGR", datatype="UINT8"), COLOURS[:, :, ::-1]
    )
    grey = np.asarray(Image.fromarray(COLOURS).convert("L"))
    np.testing.assert_array_equal(prepared(COLOURS, size=size, channels="L", datatype="UINT8"), grey[None])
    assert prepared(COLOURS, size=size, datatype="FP16").dtype == np.float16


def test_each_channel_is_scaled_then_normalised_by_its_own_mean_and_std() -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    wanted = (COLOURS / 255 - mean) / std
    found = prepared(COLOURS, size=(4, 6), mean=mean, std=std)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.transpose(2, 0, 1), rtol=1e-6, atol=1e-6)
    efficientnet = prepared(COLOURS, size=(4, 6), scale=1.0, mean=[127.0], std=[128.0], layout="NHWC")
    np.testing.assert_allclose(efficientnet, (COLOURS.astype(float) - 127) / 128, rtol=1e-6)


def test_the_shorter_side_is_resized_and_the_middle_is_taken() -> None:
    wide = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    resized = Image.fromarray(wide).resize((36, 24), Image.Resampling.BICUBIC)
    found = prepared(wide, size=20, resize=24, interpolation="bicubic", layout="NHWC", datatype="UINT8")
    np.testing.assert_array_equal(found, np.asarray(resized)[2:22, 8:28])


def test_crop_makes_the_image_just_cover_the_size() -> None:
    tall = np.random.default_rng(1).integers(0, 256, (100, 40, 3), dtype=np.uint8)
    resized = Image.fromarray(tall).resize((20, 50), Image.Resampling.BILINEAR)
    found = prepared(tall, size=20, layout="NHWC", datatype="UINT8")
    np.testing.assert_array_equal(found, np.asarray(resized)[15:35])


def test_stretch_keeps_all_of_the_image() -> None:
    found = prepared(COLOURS, size=(2, 3), resize="stretch", interpolation="nearest", layout="NHWC", datatype="UINT8")
    np.testing.assert_array_equal(found, COLOURS[1::2, 1::2])


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 1000), (1000, 1), (223, 225), (224, 224)])
def test_any_proportions_give_the_size(height: int, width: int) -> None:
    assert prepared(np.zeros((height, width, 3), dtype=np.uint8)).shape == (3, 224, 224)


def test_transparent_palette_and_16_bit_images_are_taken() -> None:
    options = ImageOptions(size=1, layout="NHWC", datatype="UINT8")
    assert prepare_image(Image.new("RGBA", (1, 1), (1, 2, 3, 0)), options).tolist() == [[[1, 2, 3]]]
    assert prepare_image(Image.new("P", (1, 1)), options).shape == (1, 1, 3)
    # 257 x 130: Pillow's own conversion would give 255.
    assert prepare_image(Image.fromarray(np.array([[33410]], dtype=np.uint16)), options).tolist() == [[[130] * 3]]


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that says its size and has no pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_small_file_of_many_pixels_is_not_decoded() -> None:
    with pytest.raises(PredictorError, match="8000 x 8000 = 64000000 pixels; at most 50000000"):
        decode_image(png_of_size(8000, 8000))
    with pytest.raises(PredictorError, match=r"no image|pixels"):
        decode_image(png_of_size(100_000, 100_000))
    with pytest.raises(PredictorError, match="9 x 9 = 81 pixels; at most 80"):
        decode_image(png_of_size(9, 9), max_pixels=80)


@pytest.mark.parametrize("resize", ["crop", 256])
@pytest.mark.parametrize(("height", "width"), [(1, 200_000), (200_000, 1)])
def test_a_thin_image_is_not_made_a_huge_one(height: int, width: int, resize: Any) -> None:
    # Its shorter side made 224 long, the longer one would be 44,800,000.
    assert prepared(np.zeros((height, width, 3), np.uint8), resize=resize).shape == (3, 224, 224)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("height", "width"), [(5, 90), (90, 5), (37, 41)])
def test_what_is_cut_off_need_not_be_made(height: int, width: int, interpolation: Any) -> None:
    # Without jumps: between its two passes Pillow rounds and clips, and the order of these is its own choice.
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([40 + 2 * rows + columns // 2, 200 - rows, 50 + columns], axis=-1).astype(np.uint8)
    options = {"size": (12, 10), "resize": 16, "datatype": "UINT8", "interpolation": interpolation}
    whole, part = prepared(image, **options), prepared(image, **options, max_pixels=1)
    assert np.abs(whole.astype(int) - part.astype(int)).max() <= 1


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"%PDF-1.4", b"\xff\xd8\xff\xe0" + bytes(40)])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(PredictorError, match=f"the {len(data)} bytes are no image"):
        decode_image(data)


def test_formats_beside_the_known_ones_are_refused() -> None:
    with pytest.raises(PredictorError, match="PNG, JPEG, WEBP"):
        decode_image(encoded(COLOURS, "ICO"))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_an_image_that_is_cut_off_is_refused(kind: str) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = encoded(noise, kind)
    with pytest.raises(PredictorError) as caught:
        decode_image(whole[: len(whole) // 2])
    assert caught.value.error.kind == "InvalidRequest"


def test_values_are_images_or_not() -> None:
    assert images_of_value(b"one") == [b"one"]
    assert images_of_value([b"one", b"two"]) == [b"one", b"two"]
    assert images_of_value([[0.5]]) is None
    assert images_of_value("text") is None
    assert images_of_value([]) is None
    with pytest.raises(PredictorError, match="item 1 of the images is a str"):
        images_of_value([b"one", "two"])


def test_several_images_are_one_batch() -> None:
    options = ImageOptions(size=2)
    batch = prepare_images([encoded(COLOURS), encoded(COLOURS[::-1])], options)
    assert batch.shape == (2, 3, 2, 2)
    np.testing.assert_array_equal(batch[0], prepare_image(Image.fromarray(COLOURS), options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "image.size is 0"),
        ({"size": (4, -1)}, "image.size is -1"),
        ({"size": 224, "resize": 200}, "image.resize is 200"),
        ({"mean": [0.5, 0.5]}, "image.mean has 2 values for RGB"),
        ({"std": [1.0, 1.0, 1.0], "channels": "L"}, "image.std has 3 values for L"),
        ({"std": [0.0]}, "image.std is divided by"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PredictorError, match=words) as caught:
        ImageOptions(**options).check()
    assert caught.value.error.kind == "InvalidConfig"
