"""Running cmake and ninja: counters, the log, the first error, interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from nanite_tools import cmake_progress
from nanite_tools.cmake_progress import BuildLog, Counter, FailureScanner, duration, run

# Output of gcc 12, nvcc 13, MSVC, CMake 3.25, ninja 1.11 and GNU ld, shortened; the second value is the line that a
# person would look for.
FIRST_ERRORS = {
    "gcc": (
        """\
        [3/90] Building CXX object a.o
        a.cpp: In function 'int main()':
        a.cpp:1:13: warning: unused variable 'error: no' [-Wunused-variable]
            1 | puts("error: not this one");
        a.cpp:2:20: error: 'x' was not declared in this scope
        b.cpp:1:1: error: a later one""",
        "a.cpp:2:20: error: 'x' was not declared in this scope",
    ),
    "missing header": (
        "b.cpp:1:10: fatal error: nope.h: No such file or directory\ncompilation terminated.",
        "b.cpp:1:10: fatal error: nope.h: No such file or directory",
    ),
    "linker": (
        """\
        /usr/bin/ld: /tmp/c.o: in function `main':
        c.cpp:(.text+0x5): undefined reference to `foo()'
        collect2: error: ld returned 1 exit status""",
        "c.cpp:(.text+0x5): undefined reference to `foo()'",
    ),
    "library": (
        "/usr/bin/ld: cannot find -lnope: No such file\ncollect2: error: ld returned 1 exit status",
        "/usr/bin/ld: cannot find -lnope: No such file",
    ),
    "nvcc": ('e.cu(1): error: identifier "y" is undefined', 'e.cu(1): error: identifier "y" is undefined'),
    "nvcc option": ("nvcc fatal   : Unknown option '-foo'", "nvcc fatal   : Unknown option '-foo'"),
    "msvc": (
        "C:\\a.cpp(3,1): error C2065: 'x': undeclared identifier",
        "C:\\a.cpp(3,1): error C2065: 'x': undeclared identifier",
    ),
    "colour": ("\x1b[1ma.c:1:2: \x1b[31merror: \x1b[0mbad", "a.c:1:2: error: bad"),
    "cmake": (
        """\
        -- Looking for error: no
        CMake Error at CMakeLists.txt:3 (message):
          NANITE_UPSTREAM_SRC and

            more


        -- Configuring incomplete, errors occurred!""",
        "CMake Error at CMakeLists.txt:3 (message): NANITE_UPSTREAM_SRC and more",
    ),
    "ninja": (
        "ninja: error: loading 'build.ninja': No such file or directory",
        "ninja: error: loading 'build.ninja': No such file or directory",
    ),
}


def scan(text: str) -> FailureScanner:
    scanner = FailureScanner()
    for line in textwrap.dedent(text).splitlines():
        scanner.feed(line)
    return scanner


@pytest.mark.parametrize("name", FIRST_ERRORS)
def test_first_error(name: str) -> None:
    text, wanted = FIRST_ERRORS[name]
    scanner = scan(text)
    assert (scanner.first, scanner.disk, scanner.memory) == (wanted, "", "")


@pytest.mark.parametrize(
    "line",
    [
        "c.s: Fatal error: can't write 11 bytes to section .text of /x/a.o: 'No space left on device'",
        "a.cpp:9:1: fatal error: error writing to /tmp/c.s: No space left on device",
        "/usr/bin/ld: final link failed: Disk quota exceeded",
    ],
)
def test_full_disk(line: str) -> None:
    assert scan(f"a.cpp:1:1: error: first\n{line}").disk == line


@pytest.mark.parametrize(
    "line",
    [
        "c++: fatal error: Killed signal terminated program cc1plus",
        "c++: internal compiler error: Killed (program cc1plus)",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "/bin/sh: line 1: 4711 Killed",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
    ],
)
def test_out_of_memory(line: str) -> None:
    assert scan(line).memory == line


def test_clean_output_is_no_failure() -> None:
    scanner = scan(
        """\
        -- Performing Test error: - Success
        [1/2] Building CXX object error-handler: error: x.o
        src/x.cpp:4:1: warning: this 'error: text' is quoted
        [2/2] Linking CXX executable bin/out of memory"""
    )
    assert (scanner.first, scanner.disk, scanner.memory) == ("", "", "")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counter_says_each_tenth_with_the_time_left() -> None:
    said: list[str] = []
    now = [0.0]
    counter = Counter("building cpu", said.append, clock=lambda: now[0])
    for done in range(1, 41):  # 3 s a step: after 4 of 40 there are 36 * 3 = 108 s left
        now[0] += 3.0
        counter(done, 40)
    assert said[0] == "building cpu: 4/40 (10%), about 1 min 48 s left"
    assert said[-1] == "building cpu: 36/40 (90%), about 12 s left"
    assert len(said) == 9


def test_counter_is_quiet_for_a_few_steps() -> None:
    said: list[str] = []
    counter = Counter("x", said.append)
    for done in range(1, 20):
        counter(done, 19)
    assert said == []


def test_log_keeps_the_previous_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "build.log"
    for text in ("first", "second", "third"):
        log = BuildLog(path)
        log.write(text)
        log.close()
    assert path.read_text() == "third\n"
    assert path.with_name("build.log.1").read_text() == "second\n"
    BuildLog(path).close()  # nothing written: nothing rotated
    assert path.read_text() == "third\n"


def run_script(tmp_path: Path, script: str, say: list[str]) -> cmake_progress.Outcome:
    log = BuildLog(tmp_path / "build.log")
    try:
        return run([sys.executable, "-c", script], env=os.environ, log=log, title="t", say=say.append)
    finally:
        log.close()


def test_run_reads_counters_and_keeps_the_output(tmp_path: Path) -> None:
    script = """
import os
print(os.environ["NINJA_STATUS"])
for i in range(1, 31): print(f"[{i}/30] step")
print("x.cpp:1:1: error: \\udc80 bad".encode("utf-8", "surrogateescape").decode("latin-1"))
raise SystemExit(3)
"""
    said: list[str] = []
    outcome = run_script(tmp_path, script, said)
    lines = (tmp_path / "build.log").read_text(encoding="utf-8").splitlines()
    assert outcome.returncode == 3
    assert not outcome.no_work
    assert outcome.failure.first.startswith("x.cpp:1:1: error:")
    assert lines[0] == "[%f/%t] "
    assert lines[30] == "[30/30] step"
    assert [line.split(",")[0] for line in said] == [f"t: {n}/30 ({n * 100 // 30}%)" for n in range(3, 30, 3)]


def test_run_without_work_writes_no_log(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, "print('ninja: no work to do.')", [])
    assert (outcome.returncode, outcome.no_work) == (0, True)
    assert not (tmp_path / "build.log").exists()


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_stops_the_whole_family(tmp_path: Path, signum: signal.Signals) -> None:
    """A parent that runs `run` is interrupted: the program below it, and that one's child, are gone afterwards."""
    child = "import time; time.sleep(60)"
    program = f"""
import subprocess, sys
p = subprocess.Popen([sys.executable, "-c", {child!r}])
print(p.pid, flush=True)
p.wait()
"""
    parent = f"""
import os, sys
from pathlib import Path
from nanite_tools.cmake_progress import BuildLog, run
log = BuildLog(Path({str(tmp_path / "log")!r}))
try:
    run([sys.executable, "-c", {program!r}], env=os.environ, log=log, title="t", say=print)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    log = tmp_path / "log"
    deadline = time.monotonic() + 20
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.05)
    grandchild = psutil.Process(int(log.read_text()))
    process.send_signal(signum)
    assert process.wait(20) == 130
    psutil.wait_procs([grandchild], timeout=5)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
