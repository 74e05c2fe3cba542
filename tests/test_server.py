import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fake_llama_server
import pytest

from nanite_tools import server as server_module
from nanite_tools.errors import BuildError, InputError, MissingError, NaniteError, UsageError
from nanite_tools.http_api import Api
from nanite_tools.server import Server, check_port, free_port, new_log, probe_host, tail


def alive(pid: int) -> bool:
    """Is the process there, and not only waiting to be collected?"""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def started(folder: Path) -> Server:
    port = free_port("127.0.0.1")
    argv = [str(fake_llama_server.wrapper(folder)), "--host", "127.0.0.1", "--port", str(port)]
    return Server(argv, folder / "log", Api("127.0.0.1", port))


def quiet(seconds: float) -> None:
    pass


def test_ready_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOAD_S", "0.5")
    with started(tmp_path) as server:
        ticks: list[float] = []
        assert server.wait_ready(30, ticks.append) >= 0.3
        assert ticks == sorted(ticks) and ticks
        assert os.getpgid(server.pid) == server.pid != os.getpgid(0)
        assert "argv [" in server.new_output()
        assert "argv [" not in server.new_output()
        assert server.poll() is None
    assert gone(server.pid)
    assert server.poll() == 0  # SIGINT was enough


def test_a_deaf_server_and_its_child_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEAF", "1")
    monkeypatch.setenv("FAKE_CHILD", str(tmp_path / "child"))
    with started(tmp_path) as server:
        server.wait_ready(30, quiet)
        child = int((tmp_path / "child").read_text())
        assert alive(child)
        server.stop(grace_s=0.2)
    assert server.poll() == -signal.SIGKILL
    assert gone(server.pid) and gone(child)


def test_the_child_of_a_server_that_ended_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CHILD", str(tmp_path / "child"))
    monkeypatch.setenv("FAKE_END_S", "0.5")
    monkeypatch.setenv("FAKE_END_CODE", "7")
    with started(tmp_path) as server:
        assert server.wait_end(lambda server: None) == 7
    assert gone(int((tmp_path / "child").read_text()))


def test_never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOAD_S", "never")
    with pytest.raises(MissingError, match="not ready after"), started(tmp_path) as server:
        server.wait_ready(0.5, quiet)
    assert gone(server.pid)


@pytest.mark.parametrize(
    ("die", "kind", "hint"),
    [
        ("1:E gguf_init_from_reader: failed to read key-value pairs", InputError, "inspect"),
        ("1:E srv load_model: failed to load model, 'x'", InputError, "inspect"),
        ("1:E srv start: couldn't bind HTTP server socket, hostname: h, port: 1", MissingError, "--port 0"),
        ("1:error: invalid argument: --x", UsageError, "--help"),
        ("1:E failed to allocate buffer of size 9\nE srv load_model: failed to load model, 'x'", MissingError, "--ctx"),
        ("127:error while loading shared libraries: libggml.so.0", BuildError, "build"),
        ("-4:loading", BuildError, "--no-repack"),
        ("-11:loading", BuildError, "--no-repack"),
        ("-9:loading", MissingError, "log"),
        ("0:done", MissingError, "log"),
        ("9:", MissingError, "log"),
    ],
)
def test_a_death_while_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, die: str, kind: type[NaniteError], hint: str
) -> None:
    monkeypatch.setenv("FAKE_DIE", die)
    with pytest.raises(kind, match="while it was loading") as caught, started(tmp_path) as server:
        server.wait_ready(30, quiet)
    assert type(caught.value) is kind
    assert hint in caught.value.hint
    code, text = die.split(":", 1)
    assert text.splitlines()[-1:] == [] or text.splitlines()[-1] in caught.value.message
    assert (signal.Signals(-int(code)).name if code.startswith("-") else code) in caught.value.message


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path / "text"):
        (tmp_path / "text").write_text("")
        with pytest.raises(MissingError, match="not there or not a program"):
            Server([str(path)], tmp_path / "log", Api("127.0.0.1", 1))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG")
def test_a_killed_parent_leaves_no_server(tmp_path: Path) -> None:
    fake_llama_server.wrapper(tmp_path)
    script = (
        "import sys, time; from pathlib import Path\n"
        "from nanite_tools.http_api import Api; from nanite_tools.server import *\n"
        "p=free_port('127.0.0.1'); d=Path(sys.argv[1])\n"
        "s=Server([str(d/'llama-server'),'--host','127.0.0.1','--port',str(p)],d/'log',Api('127.0.0.1',p))\n"
        "s.wait_ready(30,lambda t:None); print(s.pid,flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    assert gone(pid)


def test_ports() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(MissingError, match=f"127.0.0.1:{port}") as caught:
            check_port("127.0.0.1", port)
        assert "--port 0" in caught.value.hint
        assert free_port("127.0.0.1") != port
    check_port("127.0.0.1", port)
    with pytest.raises(MissingError, match=r"cannot listen on 192\.0\.2\.1"):  # TEST-NET-1: never an address of this PC
        free_port("192.0.2.1")


@pytest.mark.parametrize(
    ("host", "probe"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1, ::1", "10.0.0.1"), ("h", "h")],  # noqa: S104
)
def test_probe_host(host: str, probe: str) -> None:
    assert probe_host(host) == probe


def test_logs_are_kept_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KEPT_LOGS", 3)
    for day in range(1, 6):
        (tmp_path / f"llama-server-2020010{day}-000000-1.log").write_text("")
    (tmp_path / "other.log").write_text("")
    new_log(tmp_path).write_text("")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:2] == ["llama-server-20200104-000000-1.log", "llama-server-20200105-000000-1.log"]
    assert len(names) == 4 and names[3] == "other.log"


def test_tail_prefers_errors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n0.1 E bad\nlast\n\n")
    assert tail(log) == ["0.1 E bad"]
    log.write_text("x" * 50000 + "\none\ntwo\n\n")
    assert tail(log, 2) == ["one", "two"]
