import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_llama_server
import pytest

from nanite_tools.errors import DegradedError, MissingError
from nanite_tools.http_api import Api
from nanite_tools.server import free_port


@contextmanager
def serving(folder: Path, *options: str, prefix: str = "", key: str = "") -> Iterator[Api]:
    port = free_port("127.0.0.1")
    argv = [str(fake_llama_server.wrapper(folder)), "--host", "127.0.0.1", "--port", str(port), *options]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        api = Api("127.0.0.1", port, prefix, key)
        deadline = time.monotonic() + 30
        while api.health() == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield api
    finally:
        process.kill()
        process.wait()


def test_addresses() -> None:
    assert Api("127.0.0.1", 80, "/x").url == "http://127.0.0.1:80/x"
    assert Api("::1", 80).url == "http://[::1]:80"


def test_health_completion_and_nanite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NANITE", '{"schema": 1, "mode": "observe"}')
    monkeypatch.setenv("FAKE_ANSWER", "für")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy is never asked
    with serving(tmp_path, "--api-prefix", "/p", "--api-key", "k", prefix="/p", key="k") as api:
        assert api.health() == 200
        assert api.nanite() == {"schema": 1, "mode": "observe"}
        document = api.completion("one two", 7)
        assert document["content"] == "für"
        sent = {"prompt": "one two", "n_predict": 7, "temperature": 0, "cache_prompt": False, "stream": False}
        assert document["echo"] == sent
        with pytest.raises(MissingError, match="500: no slot"):
            api.completion("fail", 1)
        with pytest.raises(DegradedError, match="401"):
            Api(api.host, api.port, "/p", "wrong").nanite()


def test_loading_and_stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOAD_S", "never")
    monkeypatch.setenv("FAKE_STOCK", "1")
    with serving(tmp_path) as api:
        assert api.health() == 503
        assert api.nanite() is None


@pytest.mark.parametrize("text", ["[]", "no json", "{}", '{"schema": 2}'])
def test_a_document_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FAKE_NANITE", text)
    with serving(tmp_path) as api, pytest.raises(DegradedError):
        api.nanite()


def test_nobody_answers() -> None:
    api = Api("127.0.0.1", free_port("127.0.0.1"))
    assert api.health() == 0
    with pytest.raises(MissingError, match="refused"):
        api.nanite()


def test_no_answer_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        api = Api("127.0.0.1", silent.getsockname()[1])
        assert api.health(timeout_s=0.1) == 0
        with pytest.raises(MissingError, match="no answer in 0 s"):
            api.completion("x", 1, timeout_s=0.1)
