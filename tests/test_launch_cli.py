"""The verb as a process of its own: signals, exit codes, streams."""

import json
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_llama_server
import pytest
from test_server import gone

from nanite_tools.paths import find_layout

MODEL = str(find_layout().embedded_model)
ALIVE = json.dumps({"schema": 1, "mode": "observe", "weights": {"tensors": 24, "mapped_bytes": 9, "copied_bytes": 0}})
INERT = json.dumps(
    {
        "schema": 1,
        "mode": "observe",
        "weights": {"tensors": 0},
        "reasons": [{"code": "no_expert_weights", "detail": "none on the CPU"}],
    }
)


class Launch:
    """`nanite-tools launch --json --port 0` on the fake server; `ready` is the document that it prints."""

    def __init__(self, folder: Path, *options: str, extra: tuple[str, ...] = ()) -> None:
        fake_llama_server.wrapper(folder)
        argv = [sys.executable, "-m", "nanite_tools", "launch", MODEL, "--json", "--port", "0", "--bin", str(folder)]
        self.err = folder / "err"
        with self.err.open("w") as err:
            self.process = subprocess.Popen(
                [*argv, "--log", str(folder / "log"), *options, "--", *extra],
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    def ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        document: dict[str, Any] = json.loads(text)
        return document

    def end(self) -> int:
        try:
            rest, _ = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        assert rest == ""
        return self.process.returncode


@pytest.fixture(autouse=True)
def alive_nanite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NANITE", ALIVE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_server_and_is_told(tmp_path: Path, number: int, code: int) -> None:
    launch = Launch(tmp_path)
    ready = launch.ready()
    assert (ready["schema"], ready["mode"], ready["inert"]) == (1, "observe", False)
    assert ready["nanite"] == json.loads(ALIVE)
    assert Path(ready["log"]) == tmp_path / "log"
    launch.process.send_signal(number)
    assert launch.end() == code
    assert gone(ready["pid"])


def test_a_second_ctrl_c_kills_a_deaf_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEAF", "1")
    launch = Launch(tmp_path)
    pid = launch.ready()["pid"]
    launch.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        launch.process.wait(1)  # it waits for the server
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 130
    assert gone(pid)


def test_ctrl_c_while_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOAD_S", "never")
    monkeypatch.setenv("FAKE_CHILD", str(tmp_path / "child"))
    launch = Launch(tmp_path)
    child = tmp_path / "child"
    while not child.exists() or not child.read_text():
        assert launch.process.poll() is None
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 130
    assert gone(int(child.read_text()))


@pytest.mark.parametrize(("code", "exit_code"), [("0", 0), ("1", 4)])
def test_a_server_that_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, exit_code: int
) -> None:
    monkeypatch.setenv("FAKE_END_S", "2")
    monkeypatch.setenv("FAKE_END_CODE", code)
    launch = Launch(tmp_path, "--verbose")
    launch.ready()
    assert launch.end() == exit_code
    assert "argv [" in launch.err.read_text()  # --verbose copies the log


def test_an_inert_nanite_is_told_and_ends_with_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NANITE", INERT)
    launch = Launch(tmp_path)
    assert launch.ready()["inert"] is True
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 7
    assert "warning: Nanite is inert: no_expert_weights: none on the CPU" in launch.err.read_text()
    strict = Launch(tmp_path, "--strict")
    assert "no_expert_weights" in strict.ready()["error"]["message"]
    assert strict.end() == 7


def test_a_broken_model_and_a_server_that_never_gets_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOAD_S", "never")
    never = Launch(tmp_path, "--wait", "0.5")
    assert never.ready()["error"]["exit_code"] == 4
    assert never.end() == 4
    monkeypatch.setenv("FAKE_DIE", "1:E load_model: failed to load model, 'x'")
    broken = Launch(tmp_path)
    assert "failed to load model, 'x'" in broken.ready()["error"]["message"]
    assert broken.end() == 3


def test_a_busy_port(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        launch = Launch(tmp_path, "--port", str(busy.getsockname()[1]))
        assert "--port 0" in launch.ready()["error"]["hint"]
        assert launch.end() == 4


def test_print_writes_the_line_alone_on_stdout(tmp_path: Path) -> None:
    fake_llama_server.wrapper(tmp_path / "a b")
    argv = [sys.executable, "-m", "nanite_tools", "launch", MODEL, "--print", "--bin", str(tmp_path / "a b")]
    done = subprocess.run([*argv, "--shell", "posix", "--", "-fa", "on"], capture_output=True, text=True, check=True)
    words = shlex.split(done.stdout)
    assert done.stdout.count("\n") == 1
    assert words[0] == str(tmp_path / "a b" / "llama-server")
    assert words[-5:] == ["--nanite", "observe", "--no-repack", "-fa", "on"]
    assert "mode observe" in done.stderr
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["argv"] == words[:-2]


def test_shell_without_print_and_a_missing_model_are_refused(tmp_path: Path) -> None:
    launch = Launch(tmp_path, "--shell", "cmd")
    assert launch.ready()["error"]["exit_code"] == 2
    assert launch.end() == 2
    argv = [sys.executable, "-m", "nanite_tools", "launch", str(tmp_path / "absent.gguf"), "--print"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 3


@pytest.mark.model
def test_the_real_server(tmp_path: Path, our_bin: Path) -> None:
    argv = [sys.executable, "-m", "nanite_tools", "launch", MODEL, "--json", "--port", "0", "--bin", str(our_bin)]
    with subprocess.Popen([*argv, "--log", str(tmp_path / "log")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            text += process.stdout.readline()
        ready = json.loads(text)
        assert ready["nanite"]["weights"]["tensors"] > 0
        assert not ready["inert"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert gone(ready["pid"])
