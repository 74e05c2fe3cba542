"""A stand-in for llama-server: same options, same paths, and the ways to fail that a real one has. Steered by FAKE_*.

FAKE_STOCK=1: no --nanite, no /nanite. FAKE_LOAD_S: seconds of 503 before 200 (`never` for ever).
FAKE_DIE="CODE:TEXT": write TEXT and end with CODE while loading (CODE below 0: by that signal). FAKE_END_S: end with
FAKE_END_CODE that long after the start. FAKE_DEAF=1: ignore SIGINT. FAKE_NANITE: the JSON of GET /nanite;
FAKE_NANITE_AFTER: the same after an answer. FAKE_CHILD=PATH: start a child process and write its id there.
FAKE_GPU=1: list a GPU. FAKE_ANSWER: the text of POST /completion.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HELP = """----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-t,    --threads N                      number of CPU threads to use during generation (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
-e,    --escape, --no-escape            whether to process escapes sequences (\\n, \\r, \\t, \\', \\", \\\\)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable KV cache offloading (default: enabled)
--repack, -nr, --no-repack              whether to enable weight repacking (default: enabled)
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM, either an exact number,
                                        'auto', or 'all' (default: auto)
--control-vector-layer-range START END
                                        layer range to apply the control vector(s) to, start and end inclusive
-m,    --model FNAME                    model path to load
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
----- example-specific params -----

-np,   --parallel N                     number of server slots (default: -1, -1 = auto)
-l,    --logit-bias TOKEN_ID(+/-)BIAS   modifies the likelihood of token appearing in the completion,
                                        i.e. `--logit-bias 15043+1` to increase likelihood of token ' Hello'
--host HOST                             IP addresses to listen on, comma-separated, or UNIX socket paths
--port PORT                             port to listen (default: 8080)
--api-prefix PREFIX                     prefix path the server serves from, without the trailing slash
--api-key KEY                           API key to use for authentication
--ssl-cert-file FNAME                   path to file a PEM-encoded SSL certificate
"""
NANITE_HELP = "--nanite MODE                           what Nanite does: off, observe\n"


def wrapper(folder: Path) -> Path:
    """An executable `llama-server` in `folder` that runs this file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" "$@"\n')
    path.chmod(0o755)
    return path


class Handler(BaseHTTPRequestHandler):
    """/health, /nanite and /completion of one fake server."""

    ready_at = 0.0
    prefix = ""
    key = ""
    answered = False

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _allowed(self) -> bool:
        if self.key and self.headers["Authorization"] != f"Bearer {self.key}":
            self._answer(401, '{"error":{"message":"Invalid API Key"}}')
            return False
        return True

    def do_GET(self) -> None:
        ours = os.environ.get("FAKE_STOCK") != "1"
        if self.path == f"{self.prefix}/health":
            loading = time.monotonic() < self.ready_at
            self._answer(503 if loading else 200, '{"status":"ok"}')
        elif self.path == f"{self.prefix}/nanite" and ours:
            if self._allowed():
                name = "FAKE_NANITE_AFTER" if Handler.answered and "FAKE_NANITE_AFTER" in os.environ else "FAKE_NANITE"
                self._answer(200, os.environ.get(name, '{"schema":1}'))
        else:
            self._answer(404, '{"error":{"message":"File Not Found"}}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        if body["prompt"] == "fail":
            self._answer(500, '{"error":{"message":"no slot"}}')
            return
        answer = {
            "content": os.environ.get("FAKE_ANSWER", "answer"),
            "tokens_predicted": body["n_predict"],
            "tokens_evaluated": len(body["prompt"].split()),
            "timings": {"prompt_per_second": 100.0, "predicted_per_second": 50.0},
            "echo": body,
        }
        Handler.answered = True
        self._answer(200, json.dumps(answer))


def main() -> None:
    env, argv = os.environ, sys.argv[1:]
    if argv == ["--help"]:
        print(HELP + ("" if env.get("FAKE_STOCK") == "1" else NANITE_HELP), end="")
        return
    if argv == ["--list-devices"]:
        names = "  Nanite: experts (0 MiB, 0 MiB free)\n"
        names += "  CUDA0: NVIDIA Test (1024 MiB, 1000 MiB free)\n" if env.get("FAKE_GPU") == "1" else ""
        print(f"Available devices:\n{names}", end="")
        return
    if env.get("FAKE_DEAF") == "1":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(0))
    print("argv " + json.dumps(argv), flush=True)
    if child := env.get("FAKE_CHILD"):
        started = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        Path(child).write_text(str(started.pid))
    if die := env.get("FAKE_DIE"):
        code, _, text = die.partition(":")
        print(text, flush=True)
        if int(code) < 0:
            signal.signal(-int(code), signal.SIG_DFL) if int(code) != -9 else None
            os.kill(os.getpid(), -int(code))
        os._exit(int(code))
    value = dict(itertools.pairwise(argv))
    load = env.get("FAKE_LOAD_S", "0")
    Handler.ready_at = float("inf") if load == "never" else time.monotonic() + float(load)
    Handler.prefix, Handler.key = value.get("--api-prefix", ""), value.get("--api-key", "")
    if end := env.get("FAKE_END_S"):
        threading.Timer(float(end), lambda: os._exit(int(env.get("FAKE_END_CODE", "0")))).start()
    ThreadingHTTPServer((value["--host"], int(value["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
