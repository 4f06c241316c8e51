"""A local HTTP server that answers from a table: the stand-in for a package index and for the hub."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Answer:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    sent_bytes: int | None = None
    """Closes the connection after so many, though Content-Length promises all."""


@dataclass
class StandIn:
    url: str
    answers: dict[str, Answer | Callable[[BaseHTTPRequestHandler], Answer]]
    seen: list[str] = field(default_factory=list)
    """METHOD path of every request."""


@contextmanager
def serve() -> Iterator[StandIn]:
    """Serves on loopback, on a free port, until the block ends."""
    stand_in = StandIn("", {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            stand_in.seen.append(f"{self.command} {path}")
            answer = stand_in.answers.get(path, Answer(b"not found", 404))
            if not isinstance(answer, Answer):
                answer = answer(self)
            self._send(answer)

        do_HEAD = do_GET

        def _send(self, answer: Answer) -> None:
            body, status = answer.body, answer.status
            wanted = self.headers.get("Range", "")
            if status == 200 and wanted.startswith("bytes="):
                start, _, end = wanted.removeprefix("bytes=").partition("-")
                total = len(body)
                body, status = body[int(start) : int(end) + 1 if end else None], 206
            self.send_response(status)
            if status == 206 and "Content-Range" not in answer.headers:
                self.send_header("Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/{total}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Accept-Ranges", "bytes")
            for key, value in answer.headers.items():
                self.send_header(key, value)
            if answer.sent_bytes is not None:
                self.send_header("Connection", "close")
                body, self.close_connection = body[: answer.sent_bytes], True
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
