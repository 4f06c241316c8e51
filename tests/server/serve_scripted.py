"""A server over a scripted model, as a process: serve_scripted.py SCRIPT_JSON DRAIN_TIMEOUT_S.

Says on stdout when it listens and when it is ready; opens a gate for each line on stdin.
"""

import asyncio
import sys
import threading

import msgspec

from headway.config import ServerConfig
from headway.server.run import Announcements, run
from headway.testing.script import Script
from headway.testing.scripted_service import ScriptedService


def say(*words: object) -> None:
    print(*words, flush=True)


def main() -> int:
    script = msgspec.json.decode(sys.argv[1], type=Script)
    config = ServerConfig(port=0, drain_timeout_s=float(sys.argv[2]))
    service = ScriptedService(script, server=config, is_in_process=False)

    def ready() -> None:
        say("ready", service.worker().pid)  # type: ignore[union-attr]
        loop = asyncio.get_running_loop()

        def open_gates() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(service.open_gate, line.strip())

        threading.Thread(target=open_gates, daemon=True).start()

    told = Announcements(
        on_listening=lambda url: say("listening", url),
        on_ready=ready,
        on_failed=lambda model, error: say("failed", model, error.message),
    )
    return run(service, config, told)


if __name__ == "__main__":
    sys.exit(main())
