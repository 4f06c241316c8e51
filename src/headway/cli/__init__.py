"""The command line: resolves the configs once and wires the rooms; nothing else decides here."""

import sys


def start() -> None:
    """The entry point. Ends the process with the exit code; a Ctrl-C while the modules are read is one too."""
    try:
        from headway.cli.main import main as run_main

        run_main()
    except KeyboardInterrupt:
        sys.exit(130)
