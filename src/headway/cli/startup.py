"""The start of a command that runs a model: what is done before anything is imported, and what ends it.

The model's process starts at once, so that its imports run beside ours on another core; and no garbage is looked for
while a thousand modules are imported, which makes none: the collector took a fifth of the time. The interpreter changes
threads more often than usual, since the loop that speaks with the model's process shares it with a thread that imports.
"""

import gc
import sys

_COMMANDS = ("serve", "chat", "generate")
_WITHOUT_A_WORKER = frozenset({"--help", "--predictor", "--url"})
_USUAL_INTERVAL_S = sys.getswitchinterval()
_SWITCH_INTERVAL_S = 0.0002
_YOUNG_OBJECTS = 50_000
"""Made before the collector looks: with the usual 700 a burst of requests, some hundred objects each, is looked at over
and over while it lives. What is dropped is freed at once in any case, unless it is a cycle."""
_IMPORTED_BY_WORKERS = "headway.predictors.headway"


def begin(arguments: list[str]) -> None:
    """Called first, with what was typed. Does nothing for a command that will start no worker of ours."""
    flags = {argument.partition("=")[0] for argument in arguments}
    if not arguments or arguments[0] not in _COMMANDS or flags & _WITHOUT_A_WORKER:
        return
    gc.disable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    from headway.worker.spawn import spawn_ahead

    spawn_ahead(_IMPORTED_BY_WORKERS)


def end() -> None:
    """All is imported and made; from now on garbage is collected, but what is there stays and is not looked at again.
    Without begin() before it: nothing."""
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
        gc.enable()
        sys.setswitchinterval(_USUAL_INTERVAL_S)
