"""Stands for an environment's Python that has vLLM: `fake_vllm.py -P -m vllm... --model SOURCE --port N ...`.

Serves what vLLM would; the SOURCE says how it fails: "bad" at its start, "dies" after its first answer. Starts a
process of its own, as vLLM does. Answers tell what came, and both processes.
"""

import http.server
import json
import os
import subprocess
import sys

ARGUMENTS = sys.argv[sys.argv.index("--model") + 1 :]
SOURCE = ARGUMENTS[0]
NAME = ARGUMENTS[ARGUMENTS.index("--served-model-name") + 1]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer({})
        elif self.headers["authorization"] != f"Bearer {os.environ['VLLM_API_KEY']}":
            self.answer({"error": "no key"}, 401)
        else:
            self.answer({"data": [{"id": NAME, "max_model_len": 99}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        told = {"arguments": ARGUMENTS, "body": body, "pids": [os.getpid(), HELPER.pid]}
        choice = {"index": 0, "message": {"content": json.dumps(told)}, "finish_reason": "stop"}
        self.answer({"choices": [choice]})
        if SOURCE.endswith("dies"):
            self.wfile.flush()
            os._exit(7)

    def answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


if SOURCE.endswith("bad"):
    print("vLLM knows no such architecture", flush=True)
    sys.exit(3)
HELPER = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
port = int(ARGUMENTS[ARGUMENTS.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
