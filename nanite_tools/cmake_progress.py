"""Runs cmake and ninja: progress from ninja's counters, the whole output in a log, and the first error of it.

ninja is told its status form by NINJA_STATUS, so a user's own setting does not break the counters.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NINJA_STATUS = "[%f/%t] "
NO_WORK = "ninja: no work to do."

_EDGE = re.compile(r"^\[(\d+)/(\d+)\] ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DISK = re.compile(r"No space left on device|not enough space on the disk|disk quota exceeded", re.IGNORECASE)
_MEMORY = re.compile(
    r"Killed signal terminated|internal compiler error: Killed|unable to execute command: Killed|\bKilled$|"
    r"died due to signal 9|virtual memory exhausted|out of memory|Cannot allocate memory|error C1060",
)
_ERROR = re.compile(
    r"\b[Ee]rror( [A-Z]+\d+)?\s?:|undefined reference to|[Uu]ndefined symbols?\b|cannot find -l|multiple definition of|"
    r"cannot open output file|\bfatal\s*: ",
)
# source that a compiler quotes, warnings, and the steps of ninja and CMake
_NO_ERROR = re.compile(r"^\s*\d*\s*\||: warning\b|^\[\d+/\d+\] |^-- ")
_TEXT_CHARS = 300
_STOP_GRACE_S = 10.0


class FailureScanner:
    """Reads output line by line and keeps the line that explains a failure: a full disk or lost memory before the
    first error of a compiler, linker, CMake or ninja."""

    def __init__(self) -> None:
        self.disk = ""
        self.memory = ""
        self.first = ""
        self._cmake = False  # inside the indented text of the CMake message that is `first`

    def feed(self, line: str) -> None:
        """Take one line, without its newline."""
        line = _COLOUR.sub("", line).rstrip()
        if self._cmake and (line.startswith("  ") or not line):
            self.first = (self.first + " " + line.strip()).strip()[:_TEXT_CHARS]
            return
        self._cmake = False
        if _NO_ERROR.search(line):
            return
        if not self.disk and _DISK.search(line):
            self.disk = line.strip()[:_TEXT_CHARS]
        if not self.memory and _MEMORY.search(line):
            self.memory = line.strip()[:_TEXT_CHARS]
        if not self.first and (line.startswith("CMake Error") or _ERROR.search(line)):
            self.first = line.strip()[:_TEXT_CHARS]
            self._cmake = line.startswith("CMake Error at")


@dataclass(frozen=True)
class Outcome:
    """How one program ended. `no_work`: ninja had nothing to do."""

    returncode: int
    no_work: bool
    failure: FailureScanner


class BuildLog:
    """The log of one build. The previous log becomes `.1` when the first line is written, so a build that does
    nothing keeps the log of the one that did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def write(self, line: str) -> None:
        """Append one line."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self.path.open("w", encoding="utf-8", buffering=1)
        self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file; nothing when no line was written."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Counter:
    """Ninja's counters on stderr: a bar with a time left on a terminal, else a line each tenth."""

    def __init__(self, title: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.title = title
        self.say = say
        self.clock = clock
        self.started = clock()
        self.tenth = 0

    def __call__(self, done: int, total: int) -> None:
        """Report `done` of `total` steps."""
        tenth = done * 10 // total if total else 0
        if tenth > self.tenth and done < total and total >= 20:
            left = (self.clock() - self.started) / done * (total - done)
            self.say(f"{self.title}: {done}/{total} ({100 * done // total}%), about {duration(left)} left")
        self.tenth = tenth


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@contextmanager
def _reporter(title: str, say: Callable[[str], None]) -> Iterator[Callable[[int, int], None]]:
    if not sys.stderr.isatty():
        yield Counter(title, say)
        return
    from nanite_tools.console import progress_bar

    with progress_bar() as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _terminate_is_interrupt() -> Iterator[None]:
    """Let SIGTERM stop a build as Ctrl-C does, so that a cancelled job leaves no ninja behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(process: subprocess.Popen[str]) -> None:
    """Interrupt the program's group, which lets ninja remove half-written outputs; kill what is left after a while."""
    import psutil

    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        family = []
    if sys.platform == "win32":
        process.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        try:
            os.killpg(process.pid, signal.SIGINT)
        except ProcessLookupError:
            return
    try:
        process.wait(_STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in psutil.wait_procs(family, timeout=_STOP_GRACE_S)[1]:
        child.kill()
    process.wait()


def run(argv: list[str], *, env: Mapping[str, str], log: BuildLog, title: str, say: Callable[[str], None]) -> Outcome:
    """Run `argv` with its output in `log` and its counters on stderr; interrupting it stops its whole process group."""
    failure = FailureScanner()
    no_work = False
    new_group = 0
    if sys.platform == "win32":
        new_group = subprocess.CREATE_NEW_PROCESS_GROUP
    with _terminate_is_interrupt(), _reporter(title, say) as report:
        process = subprocess.Popen(
            argv,
            env={**env, "NINJA_STATUS": NINJA_STATUS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            creationflags=new_group,
            start_new_session=sys.platform != "win32",
        )
        try:
            for raw in process.stdout or ():
                line = raw.rstrip("\r\n")
                if line == NO_WORK:
                    no_work = True
                elif not line.startswith("ninja: Entering directory"):
                    log.write(line)
                failure.feed(line)
                edge = _EDGE.match(line)
                if edge:
                    report(int(edge[1]), int(edge[2]))
            returncode = process.wait()
        except BaseException:
            _stop(process)
            raise
        finally:
            if process.stdout:
                process.stdout.close()
    return Outcome(returncode, no_work, failure)
