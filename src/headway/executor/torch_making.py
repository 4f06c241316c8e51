"""make_torch_executor: a TorchExecutor on the device that a config names, with what belongs to that device."""

import torch

from headway.config import EngineConfig
from headway.executor.base import KVBuffers, Weights
from headway.executor.device import choose_device, is_cuda
from headway.executor.meeting import Meeting
from headway.executor.native_writer import PlanLimits
from headway.executor.torch import DecodePlan, TorchExecutor
from headway.executor.torch_capture import CudaCapture
from headway.executor.torch_memory import told_out_of_memory
from headway.executor.torch_ranks import Group
from headway.model.program import Program


def make_torch_executor(
    program: Program,
    weights: Weights,
    kv: KVBuffers,
    config: EngineConfig,
    limits: PlanLimits,
    *,
    threads: int,
    meeting: Meeting | None = None,
) -> TorchExecutor:
    """Loads the weights; blocks. Raises as make_executor.

    Args:
        limits: of the steps.
        meeting: the group that this rank joins first. On GPUs rank r takes the r-th one from the config's on.
    """
    device = torch.device(_name_of_rank(choose_device(config), meeting))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = None if meeting is None else _join(meeting, device)
    with told_out_of_memory(device, "the model is loaded"):
        return TorchExecutor(
            program,
            weights,
            kv,
            dtype=kv.dtype,
            threads=threads,
            device=str(device),
            group=group,
            decode=_plan_decode(program, config, limits, device),
        )


def _join(meeting: Meeting, device: torch.device) -> Group:
    # Not every build of torch has torch.distributed.
    from headway.executor.torch_group import DistGroup

    return DistGroup(meeting, device)


def _plan_decode(program: Program, config: EngineConfig, limits: PlanLimits, device: torch.device) -> DecodePlan | None:
    """On a GPU, unless the config says eager."""
    if device.type != "cuda" or config.enforce_eager or program.is_encoder:
        return None
    return DecodePlan(limits.max_seqs, limits.max_context, CudaCapture(device))


def _name_of_rank(device: str, meeting: Meeting | None) -> str:
    if meeting is None or not is_cuda(device):
        return device
    return f"cuda:{int(device.partition(':')[2]) + meeting.rank}"
