"""The lock file."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from nanite_tools import locks

HOLD = """
import sys
from pathlib import Path
from nanite_tools import locks
with locks.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_waits_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.lock"
    said: list[str] = []
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout and other.stdin and other.stdout.readline() == "held\n"
        release = threading.Timer(0.5, other.stdin.close)
        release.start()
        with locks.held(path, lambda: said.append("waiting")):
            assert other.wait(10) == 0
        release.join()
    assert said == ["waiting"]


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        other.kill()
        other.wait()
    said: list[str] = []
    with locks.held(path, lambda: said.append("waiting")):
        pass
    assert said == []


def test_an_error_in_the_body_frees_it(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        try:
            with locks.held(tmp_path / "x.lock", lambda: said.append("waiting")):
                raise ValueError
        except ValueError:
            pass
    assert said == []
