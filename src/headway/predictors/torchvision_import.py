"""torchvision imported beside a PyTorch that its compiled operators were not built for.

The wheel of PyPI is built for CUDA's PyTorch. Beside the CPU's its operators (of detection alone) can not be loaded,
and registering what belongs to them ends the import. Declared without an implementation, they let it go on: classifiers
and transforms use none of them.
"""

import sys
from typing import Any

from headway_wire import PredictorError

_BOX = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONVOLUTION = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w,"
    " SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups,"
    " bool use_mask"
)
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_BOX}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_BOX}, {_SIZE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_BOX}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_BOX}, {_SIZE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_BOX}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor mapping, {_BOX}, int sampling_ratio, {_SIZE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_BOX}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor mapping, {_BOX}, {_SIZE}) -> Tensor",
    f"deform_conv2d({_CONVOLUTION}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_CONVOLUTION}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
"""Of torchvision's operators, as its csrc/ops defines them."""
_libraries: list[Any] = []
"""A library's declarations end with it."""


def import_torchvision() -> Any:
    """The module torchvision. Raises PredictorError (UnsupportedModel) where it can not be imported."""
    try:
        return _import()
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise _refused(error) from error
    except ImportError as error:
        raise _refused(error) from error
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declare()
    try:
        return _import()
    except (ImportError, RuntimeError) as error:
        raise _refused(error) from error


def _import() -> Any:
    import torchvision

    return torchvision


def _declare() -> None:
    import torch

    make: Any = torch.library.Library
    library = make("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    _libraries.append(library)


def _refused(error: Exception) -> PredictorError:
    return PredictorError(
        "UnsupportedModel", f"torchvision can not be imported: {error}; install the one of this PyTorch's version"
    )
