"""A script that starts, answers, rejects and exits like vLLM within a fraction of a second."""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

REFUSED = """(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
(APIServer pid=1) max_num_seqs
(APIServer pid=1)   Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0]
(APIServer pid=1)     For further information visit https://errors.pydantic.dev"""
OUT_OF_MEMORY = """(EngineCore pid=7) ERROR 11-21 08:00:00 [c.py:1] torch.OutOfMemoryError: CUDA out of memory
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."""

STEP = (
    "(EngineCore pid=7) INFO 11-23 07:00:00 [loggers.py:199] Engine 000: Iteration({}): 1 context requests, "
    "8 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 4.10 ms, "
    "GPU KV cache usage: 0.1%\n"
)
JIT = "WARNING [jit_monitor.py:1] Triton kernel JIT compilation during inference: kernel_{}. This causes a\n"

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=8000)
parser.add_argument("--model", default="stub")
parser.add_argument("--api-key", default="")
parser.add_argument("--max-num-seqs", type=int, default=4)
parser.add_argument("--max-model-len", type=int, default=2048)
parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
parser.add_argument("--enable-logging-iteration-details", action="store_true")
parser.add_argument("--busy", type=int, default=0, help="what /metrics says runs")
parser.add_argument("--dies-of-memory", action="store_true")
parser.add_argument(
    "--never-ready", action="store_true", help="as vLLM does while it loads: SIGTERM is ignored"
)
parser.add_argument("--never-stops", action="store_true", help="SIGTERM is ignored when it serves, too")
parser.add_argument("--engine-core", action="store_true", help="has a child that ignores SIGTERM")
parser.add_argument(
    "--completes", choices=("well", "plainly", "never", "with-500", "with-abort", "half"), default="well"
)
parser.add_argument("--compiles", type=int, default=0, help="so many first completions compile a kernel")
parser.add_argument("--says", default="", help="what it writes to its log first")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    flags: argparse.Namespace
    adapters: ClassVar[dict[str, str]] = {}  # paths by name
    counter = itertools.count(1)  # thread-safe, unlike `+=`: requests are handled in threads

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Health probes say nothing."""

    def do_GET(self) -> None:
        match self.path:
            case "/health":
                self.reply(200, b"")
            case "/metrics":
                running = f'vllm:num_requests_running{{engine="0",model_name="stub"}} {self.flags.busy}.0\n'
                waiting = 'vllm:num_requests_waiting{engine="0",model_name="stub"} 1.0\n'
                self.reply(200, (running + waiting).encode())
            case "/v1/models" if self.allowed():
                models = [{"id": self.flags.model, "max_model_len": self.flags.max_model_len}]
                models += [
                    {"id": name, "root": path, "parent": self.flags.model}
                    for name, path in self.adapters.items()
                ]
                self.reply(200, json.dumps({"data": models}).encode())
            case _:
                self.reply(404, b"{}")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        if self.path.endswith("_lora_adapter"):
            self.reply(*self.change_adapter(request))
            return
        sys.stderr.write(self.describe(request))
        if self.has_refused(self.adapters.get(request["model"], "")):
            return
        number = next(Handler.counter)
        if self.flags.enable_logging_iteration_details:
            sys.stderr.write(STEP.format(number))
        if number <= self.flags.compiles:
            sys.stderr.write(JIT.format(number))
        match self.flags.completes:
            case "never":
                time.sleep(3600)
            case "with-500":
                self.reply(500, b'{"error": "the engine is dead"}')
            case "half" if number % 2:
                self.reply(500, b"{}")
            case how:
                finish = "abort" if how == "with-abort" else "length"
                if not request.get("stream"):
                    self.whole(request, finish)
                    return
                chunk = json.dumps({"choices": [{"text": "a", "finish_reason": finish}]})
                self.reply(200, f"data: {chunk}\n\ndata: [DONE]\n\n".encode())

    def has_refused(self, adapter: str) -> bool:
        """Refuse a request for an adapter, or never answer it, if the name of its folder says so."""
        if adapter.endswith("asleep"):
            time.sleep(3600)
        if adapter.endswith("gone"):
            self.reply(404, b'{"error": {"message": "The model does not exist"}}')
        return adapter.endswith("gone")

    def describe(self, request: dict[str, Any]) -> str:
        """What it writes to its log of a completion."""
        if request.get("max_tokens") == 1:  # a prefix, for the cache
            text = request["prompt"] if "prompt" in request else request["messages"][0]["content"]
            return f"prefix of {self.path} for {request['model']}: {text}\n"
        if request["model"] in self.adapters:
            return f"prompt for {request['model']}\n"
        return f"prompt of {len(request['prompt'].split())} words\n"

    def change_adapter(self, request: dict[str, str]) -> tuple[int, bytes]:
        name = request["lora_name"]
        if self.path == "/v1/unload_lora_adapter":
            return (404, b"{}") if self.adapters.pop(name, None) is None else (200, b"")
        if name in self.adapters and not request.get("load_inplace"):
            return 400, b"has already been loaded"
        if "missing" in request["lora_path"]:
            return 404, b"No adapter found"
        self.adapters[name] = request["lora_path"]
        return 200, b""

    def whole(self, request: dict[str, object], finish: str) -> None:
        """A response without streaming; older versions have fewer fields."""
        if self.flags.completes == "plainly" and {"logprobs", "cache_salt"} & request.keys():
            self.reply(400, b"{}")
            return
        tokens = [" so", " it", " is"]
        logprobs = {"tokens": tokens, "token_logprobs": [-0.5, -0.25, 0.0]} if "logprobs" in request else None
        choice = {"text": "".join(tokens), "finish_reason": finish, "logprobs": logprobs}
        body = {"choices": [choice], "usage": {"completion_tokens": len(tokens)}}
        self.reply(200, json.dumps(body).encode())

    def allowed(self) -> bool:
        if self.flags.api_key and self.headers["Authorization"] != f"Bearer {self.flags.api_key}":
            self.reply(401, b"{}")
            return False
        return True

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    flags = Handler.flags = parser.parse_args()
    sys.stderr.write(f"{flags.says}\n")
    if flags.max_num_seqs < 1:
        sys.exit(REFUSED)
    if flags.dies_of_memory:
        sys.exit(OUT_OF_MEMORY)
    if flags.engine_core:
        child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
        subprocess.Popen([sys.executable, "-c", child])
    if flags.never_ready or flags.never_stops:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if flags.never_ready:
        time.sleep(3600)
    ThreadingHTTPServer((flags.host, flags.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
