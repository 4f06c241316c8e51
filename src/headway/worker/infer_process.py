"""How the process of a model that takes tensors is started: headway_wire.serve in this interpreter or in another."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import headway_wire
from headway.observe.machine import usable_cores
from headway.predictors.options import CORES_VARIABLE
from headway.worker.channel import Receiver
from headway.worker.process import WorkerProcess, join_process
from headway.worker.spawn import Spawned, spawn_command

_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Say where this interpreter finds its packages: another one has its own."""


async def start_infer_process(
    name: str,
    receiver: Receiver,
    python: str | None = None,
    *,
    take: Callable[[], Spawned | None] = lambda: None,
) -> WorkerProcess:
    """A child that waits for its Load. Raises OSError. What the model starts of its own ends with it.

    Args:
        name: of the model.
        receiver: is told what it says.
        python: see spawn_infer.
        take: one that was started ahead with the same `python`; None: there is none.
    """
    return await join_process(name, receiver, take() or spawn_infer(python))


def spawn_infer(python: str | None = None, modules: Sequence[str] = ()) -> Spawned:
    """Starts the process, which imports `modules` before its Load comes. Raises OSError.

    `python`: another interpreter, in which of all this only headway_wire becomes importable; None: this one.
    """
    cores = {CORES_VARIABLE: str(usable_cores())}
    ahead = [f"--import={module}" for module in modules]
    if python is None:
        # -P: no folder that the server happens to be started in takes the place of a package.
        return spawn_command([sys.executable, "-P", "-m", "headway_wire.serve", *ahead], variables=cores)
    foreign = Path(headway_wire.__file__).with_name("foreign.py")
    return spawn_command([python, "-u", str(foreign), *ahead], without=_OURS, variables=cores)
