"""How the process of a model that takes tensors is started: headway_wire.serve in this interpreter or in another."""

import sys
from pathlib import Path

import headway_wire
from headway.observe.machine import usable_cores
from headway.predictors.options import CORES_VARIABLE
from headway.worker.channel import Receiver
from headway.worker.process import WorkerProcess, join_process
from headway.worker.spawn import spawn_command

_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Say where this interpreter finds its packages: another one has its own."""


async def start_infer_process(name: str, receiver: Receiver, python: str | None = None) -> WorkerProcess:
    """A child that waits for its Load. Raises OSError. What the model starts of its own ends with it.

    `python`: another interpreter, in which of all this only headway_wire becomes importable; None: this one.
    """
    cores = {CORES_VARIABLE: str(usable_cores())}
    if python is None:
        # -P: no folder that the server happens to be started in takes the place of a package.
        spawned = spawn_command([sys.executable, "-P", "-m", "headway_wire.serve"], variables=cores, leads_group=True)
    else:
        foreign = Path(headway_wire.__file__).with_name("foreign.py")
        spawned = spawn_command([python, "-u", str(foreign)], without=_OURS, variables=cores, leads_group=True)
    return await join_process(name, receiver, spawned)
