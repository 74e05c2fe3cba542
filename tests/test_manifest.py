"""The record of what was built."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from nanite_tools import manifest
from nanite_tools.paths import Layout


@pytest.mark.parametrize(
    ("stock", "module", "name"),
    [(False, False, "cpu"), (False, True, "cpu-module"), (True, False, "stock/cpu"), (True, True, "stock/cpu-module")],
)
def test_entry_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stock: bool, module: bool, name: str) -> None:
    monkeypatch.setenv("NANITE_TOOLS_BUILD", str(tmp_path / "elsewhere"))
    layout = Layout(tmp_path)
    assert manifest.entry_name(layout, layout.build_dir("cpu", stock=stock, module=module)) == name


def test_record_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "build" / "manifest.json"
    manifest.record(path, "cpu", {"head": "a"})
    manifest.record(path, "stock/cpu", {"head": "b"})
    manifest.record(path, "cpu", {"head": "c"})
    assert json.loads(path.read_text()) == {"schema": 1, "builds": {"cpu": {"head": "c"}, "stock/cpu": {"head": "b"}}}
    manifest.record(path, "cpu", None)
    manifest.record(path, "cuda", None)
    assert manifest.read(path) == {"stock/cpu": {"head": "b"}}
    assert not list(path.parent.glob("*.tmp"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"schema": 1, "builds": {"cpu"',
        b"[]",
        b"\xff\xfe",
        b'{"schema": 2, "builds": {"cpu": {"head": "a"}}}',
        b'{"schema": 1, "builds": ["cpu"]}',
        b'{"schema": 1}',
    ],
)
def test_a_bad_manifest_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    assert manifest.read(path) == {}
    manifest.record(path, "cpu", {"head": "a"})
    assert manifest.read(path) == {"cpu": {"head": "a"}}


def test_a_bad_entry_does_not_cost_the_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"schema": 1, "builds": {"cpu": 3, "cuda": {"head": "a"}}}')
    assert manifest.read(path) == {"cuda": {"head": "a"}}


def test_builds_that_end_together_lose_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    names = [f"preset-{n}" for n in range(12)]
    threads = [threading.Thread(target=manifest.record, args=(path, name, {"head": name})) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(manifest.read(path)) == sorted(names)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    manifest.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        manifest.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_cpu_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel\t\t: 143\nmodel name\t: Some CPU @ 2.00GHz\nmodel name\t: other\n")
    assert manifest.cpu_name(info) == "Some CPU @ 2.00GHz"
    assert manifest.cpu_name(tmp_path / "none")  # never empty


def test_host_names_no_person_and_no_pc() -> None:
    assert set(manifest.host()) == {"system", "machine", "cpu"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", manifest.utc_now())
