"""One llama-server process: started in a group of its own, watched until it is ready, never left behind.

How it ends, whatever happens to us: SIGINT, STOP_GRACE_S to finish, then SIGKILL to the whole group. When we die
without a chance to do that (SIGKILL, a crash of Python), Linux kills it for us (PR_SET_PDEATHSIG); other systems do
not. Start it in the main thread and inside `stop_signals()`.

When it ends before it is ready, the last lines of its log decide whose fault that is: the model's (InputError, exit 3),
a wrong option (UsageError, 2), the build's — a library missing, an illegal instruction, a crash — (BuildError, 5), and
else the machine's: port, memory, being killed (MissingError, 4).
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from nanite_tools.errors import BuildError, InputError, MissingError, NaniteError, UsageError
from nanite_tools.http_api import Api
from nanite_tools.stop_signals import held_signals

STOP_GRACE_S = 15.0
POLL_S = 0.1
TAIL_BYTES = 16384
KEPT_LOGS = 20

#: Runs on Linux in front of the server, which takes its place and its process id: die when the parent does.
_GUARD = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)

_CAUSES: tuple[tuple[type[NaniteError], str, tuple[str, ...]], ...] = (
    (MissingError, "choose another --port, or --port 0 for a free one", ("couldn't bind",)),
    (UsageError, "see `llama-server --help`", ("invalid argument", "error while handling")),
    (BuildError, "`nanite-tools build` makes it again", ("error while loading shared libraries", "Symbol not found")),
    (
        MissingError,
        "a smaller --ctx, or a PC with more memory",
        ("out of memory", "bad_alloc", "failed to allocate", "unable to allocate", "Cannot allocate"),
    ),
    (
        InputError,
        "`nanite-tools inspect` tells more about the file",
        ("error loading model", "failed to load model", "gguf_init", "model loading error"),
    ),
)
_CRASHES = ("SIGILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE")


def free_port(host: str) -> int:
    """A TCP port on `host` that is free now. Raises MissingError when `host` is no address of this PC."""
    return _bind(host, 0)


def check_port(host: str, port: int) -> None:
    """Raise MissingError when nothing can listen on `host:port`: the port is taken, or not ours to use."""
    _bind(host, port)


def _bind(host: str, port: int) -> int:
    hint = "choose another --port, or --port 0 for a free one"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        where = "no address of this PC" if isinstance(error, socket.gaierror) else str(error.strerror)
        raise MissingError(f"cannot listen on {host}:{port}: {where}", hint) from error


def probe_host(host: str) -> str:
    """The address at which this PC reaches a server that listens on `host` (the first one of a comma list)."""
    first = host.split(",")[0].strip()
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(first, first)  # noqa: S104


def new_log(folder: Path) -> Path:
    """A path for a new log in `folder`, which is made; all but the newest logs there are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("llama-server-*.log"))[: -(KEPT_LOGS - 1)]:
        old.unlink(missing_ok=True)
    return folder / f"llama-server-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def tail(log: Path, lines: int = 5) -> list[str]:
    """The last lines of a log; those that report an error (` E ` in llama-server's format) when there are any."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace").splitlines()
    errors = [line for line in text if " E " in line or "error" in line.lower()]
    return (errors or [line for line in text if line.strip()])[-lines:]


class Server:
    """A started llama-server. Use it as a context manager: leaving the block ends the process, on every path."""

    def __init__(self, argv: Sequence[str], log: Path, api: Api) -> None:
        """Start `argv` (its first word an absolute path) with its output going to `log`. Raises MissingError."""
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())] if sys.platform == "linux" else []
        flags = 0
        if sys.platform == "win32":
            flags = subprocess.CREATE_NEW_PROCESS_GROUP
        if not os.access(argv[0], os.X_OK):
            raise MissingError(f"{argv[0]} is not there or not a program", "`nanite-tools build` makes it")
        self.log = log
        self.api = api
        self._seen = 0
        with log.open("wb") as out, held_signals():
            try:
                self._process = subprocess.Popen(
                    [*guard, *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    creationflags=flags,
                )
            except OSError as error:
                raise MissingError(f"{argv[0]} does not start: {error.strerror}", "`nanite-tools build`") from error
            atexit.register(self.stop)  # for a signal that falls before the caller's `with` holds us

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status (negative: the signal that ended it), None while it runs."""
        return self._process.poll()

    def new_output(self) -> str:
        """What was written to the log since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._seen)
            data = file.read()
        self._seen += len(data)
        return data.decode("utf-8", errors="replace")

    def wait_ready(self, timeout_s: float, tick: Callable[[float], None]) -> float:
        """Wait for GET /health to say 200; seconds that it took. `tick(seconds)` is called about ten times a second.

        Raises what `end_error` says when the process ends, MissingError after `timeout_s`.
        """
        started = time.monotonic()
        while True:
            if self.api.health() == 200 and self.poll() is None:
                return time.monotonic() - started
            status = self.poll()
            if status is not None:
                raise self.end_error(status, "loading")
            waited = time.monotonic() - started
            if waited > timeout_s:
                last = " | ".join(tail(self.log, 2))
                raise MissingError(f"llama-server was not ready after {waited:.0f} s: {last}", f"its log: {self.log}")
            tick(waited)
            time.sleep(POLL_S)

    def wait_end(self, tick: Callable[[Server], None]) -> int:
        """Wait until the process ends by itself; its exit status. `tick` is called about ten times a second."""
        while (status := self.poll()) is None:
            tick(self)
            time.sleep(POLL_S)
        tick(self)
        return status

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End the process: SIGINT, then SIGKILL after `grace_s` seconds, or at once when a stop signal arrives."""
        try:
            if self.poll() is None:
                self._send(signal.SIGINT)
                self._process.wait(grace_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            pass
        finally:
            with held_signals():
                self._send(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
                self._process.wait()
                atexit.unregister(self.stop)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.send_signal(signal.CTRL_BREAK_EVENT if number == signal.SIGINT else number)
            else:
                os.killpg(self._process.pid, number)

    def end_error(self, status: int, doing: str = "serving") -> NaniteError:
        """The error for a process that ended while it was `doing` (table in the module's docstring)."""
        said = " | ".join(line.strip() for line in tail(self.log)) or "it said nothing"
        seen = "\n".join(tail(self.log, 100))
        name = signal.Signals(-status).name if status < 0 else str(status)
        message = f"llama-server ended with {name} while it was {doing}: {said}"
        for kind, hint, marks in _CAUSES:
            if any(mark in seen for mark in marks):
                return kind(message, f"{hint}; its log: {self.log}")
        if name in _CRASHES:
            hint = "a processor that this build does not fit? try `-- --no-repack`, which avoids AMX, or build again"
            return BuildError(message, f"{hint}; its log: {self.log}")
        return MissingError(message, f"its log: {self.log}")
