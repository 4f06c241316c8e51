"""The command line: resolves the configs once and wires the rooms; nothing else decides here."""

import os
import sys


def start() -> None:
    """The entry point. Ends the process with the exit code; a Ctrl-C while the modules are read is one too."""
    try:
        _open_closed_output()
        from headway.cli import startup

        startup.begin(sys.argv[1:])
        from headway.cli.main import main as run_main

        run_main()
    except KeyboardInterrupt:
        sys.exit(130)


def _open_closed_output() -> None:
    """Leads a closed standard descriptor (2>&-) to nowhere: else the next socket would take its number, and what is
    printed would go into it. A closed stdin stays None, so that reading it is told."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
