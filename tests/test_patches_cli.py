"""`nanite-tools patches` as a user calls it: exit codes, JSON on stdout, words on stderr."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import Project, git, make_patch, make_project, make_upstream

from nanite_tools import paths
from nanite_tools.cli import main


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with one patch, its submodule empty, and no package index."""
    upstream = tmp_path / "up stream"
    project = make_project(tmp_path / "my project", upstream, *make_upstream(upstream))
    make_patch(project, "hook", {"core.c": ("int line_5;\n", "int line_5;\nint hook_a;\n")})
    project.series("hook")
    project.write("patches/overlay/ours/a.c", "int a;\n")
    monkeypatch.setattr(paths, "UPSTREAM_PIN", project.pin)
    monkeypatch.setattr(paths, "user_cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setenv("NANITE_TOOLS_ROOT", str(project.layout.root))
    monkeypatch.delenv("NANITE_TOOLS_BUILD", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return project


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Any:
    """call(words…) -> (exit code, stdout, stderr)"""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["patches", *words])
        out, err = capfd.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


def test_status_before_and_after_apply(project: Project, call: Any) -> None:
    code, out, _ = call("status", "--json")
    value = json.loads(out)
    assert (code, value["schema"], value["pin"]) == (0, 1, project.pin)
    assert (value["submodule"]["state"], value["tree"]["state"]) == ("absent", "absent")
    assert [(patch["slug"], patch["added_lines"], patch["applied"]) for patch in value["patches"]] == [
        ("hook", 1, False)
    ]
    assert value["budget"] == {"patches": 1, "max_patches": 12, "added_lines": 1, "max_added_lines": 150}
    assert call("apply")[0] == 0
    value = json.loads(call("status", "--json")[1])
    assert (value["submodule"]["state"], value["tree"]["state"]) == ("ready", "current")
    assert value["patches"][0]["applied"] is True
    (project.layout.src / "core.c").write_text("mine\n")
    code, out, _ = call("status")
    assert (code, "changed: core.c" in out, "dirty" in out, "hook" in out) == (0, True, True, True)


def test_apply_twice_gives_one_head(project: Project, call: Any) -> None:
    code, out, err = call("apply", "--json")
    first = json.loads(out)
    assert (code, first["changed"], first["source"]) == (0, True, "git")
    assert first["head"] == git(project.layout.src, "rev-parse", "HEAD")
    assert "patches: 1 applied" in err
    second = json.loads(call("apply", "--json")[1])
    assert second == first | {"changed": False, "source": "present"}
    assert "is current" in call("apply")[2]


def test_apply_on_a_dirty_tree_is_5_and_names_discard(project: Project, call: Any) -> None:
    call("apply")
    (project.layout.src / "core.c").write_text("mine\n")
    code, out, err = call("apply", "--json")
    error = json.loads(out)["error"]
    assert (code, error["exit_code"]) == (5, 5)
    assert "core.c" in error["message"]
    assert "--discard" in error["hint"]
    assert "Traceback" not in err
    assert call("apply", "--discard")[0] == 0


def test_apply_without_a_network_is_4(project: Project, call: Any) -> None:
    hidden = project.upstream.with_name("hidden")
    project.upstream.rename(hidden)
    code, out, err = call("apply")
    assert (code, out) == (4, "")
    assert "--source DIR" in err
    assert call("apply", "--offline")[0] == 4
    assert call("apply", "--source", str(hidden / "lib"))[0] == 3
    assert call("apply", "--offline", "--source", str(hidden))[0] == 0


def test_export_says_what_it_wrote(project: Project, call: Any) -> None:
    assert call("export")[0] == 5
    call("apply")
    assert call("export")[1] == "nothing to export\n"
    (project.layout.src / "ours/a.c").write_text("int b;\n")
    (project.layout.src / "README.md").write_text("ours\n")
    git(project.layout.src, "commit", "-q", "-a", "-m", "nanite: words")
    code, out, err = call("export", "--json")
    value = json.loads(out)
    assert (code, value["written"], value["overlay"], value["removed"]) == (0, ["words"], ["ours/a.c"], [])
    assert "words: its body has no `Why:` line" in err
    assert call("verify")[0] == 5


def test_verify_lists_every_problem_and_exits_5(project: Project, call: Any) -> None:
    call("apply")
    code, out, err = call("verify")
    assert (code, "applies  hook" in out, "0 problems" in err) == (0, True, True)
    for slug in ("clash-a", "clash-b"):
        make_patch(project, slug, {"core.c": ("int line_5;\n", f"int {slug[-1]};\n")})
    make_patch(project, "stray", {"core.c": ("int line_9;\n", "int s;\n")})
    project.series("hook", "clash-a", "clash-b")
    code, out, err = call("verify", "--json")
    value = json.loads(out)
    assert (code, value["ok"]) == (5, False)
    assert [check["applies"] for check in value["checks"]] == [True, False, False]
    assert len(value["problems"]) == 3
    assert err.count(": does not apply:") == 2
    assert "stray.patch" in err
    assert call("verify", "--against", str(project.layout.root / "nowhere"))[0] == 3


def test_words_that_do_not_exist_are_usage(project: Project, call: Any) -> None:
    assert call("appply")[0] == 2
    assert call("apply", "--force")[0] == 2


@pytest.mark.slow
def test_the_real_series_holds_on_the_real_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nanite_tools import patchset
    from nanite_tools.patch_export import export
    from nanite_tools.patch_verify import verify
    from nanite_tools.submodule import inspect_submodule

    layout = paths.find_layout(Path(__file__).parent)
    if inspect_submodule(layout, paths.UPSTREAM_PIN).kind != "ready":
        pytest.skip("the submodule is not initialised")
    copy = tmp_path / "patches"
    shutil.copytree(layout.patches, copy)
    monkeypatch.setattr(paths.Layout, "patches", property(lambda self: copy))
    monkeypatch.setenv("NANITE_TOOLS_BUILD", str(tmp_path / "a build"))
    assert verify(layout).problems == ()
    stamp = patchset.apply(layout, say=lambda text: None)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    result = export(layout, say=lambda text: None)
    assert (result.written, result.removed, result.overlay, result.head) == ((), (), (), stamp.head)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert patchset.is_current(layout)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5
