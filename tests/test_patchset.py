"""The prepared tree, its stamp, export and verify, on a small upstream."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_upstream import CORE, ENV, HOSTILE_CONFIG, Project, git, make_patch, make_project, make_upstream

from nanite_tools import overlay, patchset, paths
from nanite_tools.errors import BuildError, InputError
from nanite_tools.patch_export import Export
from nanite_tools.patch_export import export as export_tree
from nanite_tools.patch_verify import Verdict
from nanite_tools.patch_verify import verify as verify_series
from nanite_tools.patchset import Stamp, is_current, prepare_stock, read_stamp, state_of
from nanite_tools.source import ensure_source


def quiet(text: str) -> None:
    pass


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with two patches and two overlay files, its submodule filled, its user with odd git settings."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "attributes").write_text("* text eol=crlf\n")
    (home / "ignore").write_text("*.txt\n")
    (home / "gitconfig").write_text(HOSTILE_CONFIG.format(folder=home.as_posix()))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    monkeypatch.delenv("NANITE_TOOLS_BUILD", raising=False)
    monkeypatch.setattr(paths, "user_cache_dir", lambda: tmp_path / "cache")
    upstream = tmp_path / "up stream"
    project = make_project(tmp_path / "my project", upstream, *make_upstream(upstream))
    monkeypatch.setattr(paths, "UPSTREAM_PIN", project.pin)
    ensure_source(project.layout, say=quiet)
    make_patch(project, "first-hook", {"core.c": ("int line_5;\n", "int line_5;\nint hook_a;\n")})
    make_patch(project, "second-hook", {"lib/reg.c": ("    add(2);\n", "    add(2);\n    add(ours);\n")})
    project.series("first-hook", "second-hook")
    project.write("patches/overlay/ours/a.c", "int a;\n")
    project.write("patches/overlay/lib/ours.h", "int b;\n")
    return project


def apply(project: Project, discard: bool = False) -> Stamp:
    return patchset.apply(project.layout, say=quiet, discard=discard)


def export(project: Project) -> Export:
    return export_tree(project.layout, say=quiet)


def verify(project: Project, against: Path | None = None) -> Verdict:
    return verify_series(project.layout, against=against)


def mtimes(tree: Path) -> dict[str, int]:
    found = [path for path in tree.rglob("*") if path.is_file() and ".git" not in path.relative_to(tree).parts]
    return {path.relative_to(tree).as_posix(): path.stat().st_mtime_ns for path in found}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def patched_core() -> str:
    return CORE.replace("int line_5;\n", "int line_5;\nint hook_a;\n")


def test_apply_makes_the_pin_the_patches_and_the_overlay(project: Project) -> None:
    stamp = apply(project)
    tree = project.layout.src
    assert (tree / "core.c").read_bytes() == patched_core().encode()
    assert (tree / "lib/reg.c").read_text() == "void reg(void) {\n    add(1);\n    add(2);\n    add(ours);\n}\n"
    assert (tree / "ours/a.c").read_text() == "int a;\n"
    assert git(tree, "rev-parse", "HEAD") == stamp.head
    assert git(tree, "rev-parse", "HEAD~2") == project.pin
    assert git(tree, "status", "--porcelain") == ""
    assert list(stamp.patches) == ["first-hook", "second-hook"]
    assert read_stamp(tree) == stamp
    assert is_current(project.layout)


def test_head_is_what_plain_git_am_makes(project: Project, tmp_path: Path) -> None:
    clone = tmp_path / "by hand"
    git(tmp_path, "clone", "-q", str(project.upstream), str(clone))
    git(clone, "checkout", "-q", "--detach", project.pin)
    hooks = project.layout.patches / "hooks"
    files = [str(hooks / f"{slug}.patch") for slug in ("first-hook", "second-hook")]
    git(
        clone,
        *["am", "-q", "--committer-date-is-author-date", *files],
        GIT_COMMITTER_NAME="nanite-tools",
        GIT_COMMITTER_EMAIL="patches@nanite-tools.invalid",
    )
    assert apply(project).head == git(clone, "rev-parse", "HEAD")


def test_head_is_the_same_elsewhere_and_for_another_user(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = apply(project).head
    other = make_project(tmp_path / "else/where", project.upstream, project.pin, project.newer)
    shutil.rmtree(other.layout.patches)
    shutil.copytree(project.layout.patches, other.layout.patches)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for name, value in ENV.items():
        if "COMMITTER" in name or "AUTHOR" in name:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    ensure_source(other.layout, say=quiet)
    assert apply(other).head == here


def test_the_second_apply_does_nothing(project: Project) -> None:
    first = apply(project)
    before = mtimes(project.layout.src)
    said: list[str] = []
    assert patchset.apply(project.layout, say=said.append) == first
    assert mtimes(project.layout.src) == before
    assert said == []


def test_a_changed_series_touches_only_what_changes(project: Project) -> None:
    apply(project)
    before = mtimes(project.layout.src)
    project.series("first-hook")
    (project.layout.patches / "hooks/second-hook.patch").unlink()
    assert not is_current(project.layout)
    apply(project)
    after = mtimes(project.layout.src)
    assert {path for path in after if after[path] != before[path]} == {"lib/reg.c"}


def test_a_patch_reworded_moves_the_head_and_no_file(project: Project) -> None:
    head = apply(project).head
    before = mtimes(project.layout.src)
    path = project.layout.patches / "hooks/first-hook.patch"
    path.write_bytes(path.read_bytes().replace(b"Why: nothing else", b"Why: no public interface"))
    assert apply(project).head != head
    assert mtimes(project.layout.src) == before


def test_order_in_the_series_counts(project: Project) -> None:
    head = apply(project).head
    project.series("second-hook", "first-hook")
    assert state_of(project.layout) == ("stale", ())
    assert apply(project).head != head


def test_overlay_files_follow_by_content(project: Project) -> None:
    apply(project)
    before = mtimes(project.layout.src)
    project.write("patches/overlay/ours/a.c", "int a2;\n")
    project.write("patches/overlay/ours/deep/new.c", "int n;\n")
    (project.layout.overlay / "lib/ours.h").touch()
    apply(project)
    after = mtimes(project.layout.src)
    assert {path for path in after if after[path] != before.get(path)} == {"ours/a.c", "ours/deep/new.c"}
    shutil.rmtree(project.layout.overlay / "ours")
    apply(project)
    assert not (project.layout.src / "ours").exists()
    assert (project.layout.src / "lib/ours.h").is_file()
    assert state_of(project.layout)[0] == "current"


@pytest.mark.parametrize("path", ["core.c", "lib/reg.c", "LIB/Reg.c", "core.c/below", "lib"])
def test_an_overlay_path_of_upstream_is_refused(project: Project, path: str) -> None:
    if path == "lib":
        shutil.rmtree(project.layout.overlay / "lib")
    project.write(f"patches/overlay/{path}", "ours\n")
    with pytest.raises(BuildError, match=path):
        apply(project)
    assert (project.upstream / "core.c").read_text() == CORE


def test_overlay_collisions_by_hand() -> None:
    tree = ["a/b.c", "README"]
    assert overlay.collisions(["a/c.c", "d/b.c", "READ"], tree) == []
    assert overlay.collisions(["a", "A/B.C", "README/x", "a/b.c/x"], tree) == ["a", "A/B.C", "README/x", "a/b.c/x"]


def test_edits_in_the_tree_stop_apply_and_discard_drops_them(project: Project) -> None:
    stamp = apply(project)
    tree = project.layout.src
    (tree / "core.c").write_text("mine\n")
    (tree / "new file.txt").write_text("mine\n")
    (tree / "ours/a.c").write_text("mine\n")
    (tree / "lib/ours.h").unlink()
    (tree / "README.md").unlink()
    state, changes = state_of(project.layout)
    assert state == "dirty"
    assert set(changes) == {
        "changed: core.c",
        "new: new file.txt",
        "changed: ours/a.c (overlay)",
        "deleted: lib/ours.h (overlay)",
        "deleted: README.md",
    }
    with pytest.raises(BuildError) as caught:
        apply(project)
    assert "core.c" in caught.value.message
    assert "--discard" in caught.value.hint
    assert (tree / "core.c").read_text() == "mine\n"
    assert apply(project, discard=True) == stamp
    assert state_of(project.layout) == ("current", ())
    assert not (tree / "new file.txt").exists()


def test_a_commit_in_the_tree_stops_apply(project: Project) -> None:
    stamp = apply(project)
    (project.layout.src / "core.c").write_text("mine\n")
    git(project.layout.src, "commit", "-q", "-a", "-m", "mine")
    with pytest.raises(BuildError, match="commits that no patch holds"):
        apply(project)
    assert apply(project, discard=True) == stamp


def test_a_folder_that_is_no_prepared_tree_is_kept(project: Project) -> None:
    project.layout.src.mkdir(parents=True)
    (project.layout.src / "file").write_text("mine\n")
    with pytest.raises(BuildError, match="no prepared tree"):
        apply(project)
    assert (project.layout.src / "file").read_text() == "mine\n"
    apply(project, discard=True)
    assert state_of(project.layout) == ("current", ())


def test_a_clone_without_a_stamp_is_an_error(project: Project) -> None:
    project.layout.build.mkdir(exist_ok=True)
    git(project.layout.build, "clone", "-q", str(project.upstream), str(project.layout.src))
    with pytest.raises(BuildError, match="no stamp"):
        apply(project)


def test_an_uninitialised_submodule_is_an_error(project: Project) -> None:
    git(project.layout.root, "submodule", "deinit", "-q", "-f", "llama.cpp")
    with pytest.raises(BuildError, match="is empty"):
        apply(project)
    assert not (project.layout.src / ".git").exists()


def test_a_tree_whose_objects_are_gone_says_so(project: Project) -> None:
    apply(project)
    shutil.rmtree(project.layout.root / ".git/modules/llama.cpp")
    (project.layout.src / "core.c").write_text("mine\n")
    assert state_of(project.layout)[0] == "dirty"
    with pytest.raises(BuildError, match="submodule"):
        apply(project, discard=True)
    assert (project.layout.src / "core.c").read_text() == "mine\n"


def test_the_tree_follows_a_project_that_was_moved(project: Project, tmp_path: Path) -> None:
    stamp = apply(project)
    moved = tmp_path / "moved away"
    project.layout.root.rename(moved)
    again = Project(type(project.layout)(moved), project.upstream, project.pin, project.newer)
    assert apply(again) == stamp
    assert is_current(again.layout)


@pytest.mark.parametrize("moment", ["checkout", "overlay", "stamp"])
@pytest.mark.parametrize("first", [True, False])
def test_an_interrupted_apply_recovers(
    project: Project, monkeypatch: pytest.MonkeyPatch, moment: str, first: bool
) -> None:
    if not first:
        hooks = project.layout.patches / "hooks"
        project.series("first-hook")
        (hooks / "second-hook.patch").rename(hooks.parent / "kept")
        apply(project)
        (hooks.parent / "kept").rename(hooks / "second-hook.patch")
        project.series("first-hook", "second-hook")
        project.write("patches/overlay/ours/a.c", "int a2;\n")
        project.write("patches/overlay/ours/b.c", "int b2;\n")
    tree = project.layout.src
    old_head = "" if first else git(tree, "rev-parse", "HEAD")

    def stop(*words: object) -> None:
        if moment == "checkout":
            git(tree, "update-ref", "--no-deref", "HEAD", old_head or project.pin)
            (tree / "lib/reg.c").write_text("half a fi")
            (tree / ".git/index.lock").write_text("")
            (tree / ".git/rebase-apply").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "overlay":
            real = shutil.copyfile

            def copy(source: Path, target: Path) -> object:
                if source.name == "b.c" or first:
                    raise KeyboardInterrupt
                return real(source, target)

            patch.setattr(shutil, "copyfile", copy)
        else:
            patch.setattr(
                patchset if moment == "stamp" else overlay, "write_stamp" if moment == "stamp" else "sync", stop
            )
        with pytest.raises(KeyboardInterrupt):
            apply(project)
    assert not is_current(project.layout)
    stamp = apply(project)
    assert list(stamp.patches) == ["first-hook", "second-hook"]
    assert (tree / "lib/reg.c").read_text().count("add(ours);") == 1
    assert git(tree, "status", "--porcelain") == ""
    assert not (tree / ".git/rebase-apply").exists()
    assert state_of(project.layout) == ("current", ())


def test_an_edit_of_another_file_survives_an_interrupt(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(project)
    path = project.layout.patches / "hooks/second-hook.patch"
    path.write_bytes(path.read_bytes().replace(b"+    add(ours);", b"+    add(mine);"))
    with monkeypatch.context() as patch:
        patch.setattr(overlay, "sync", lambda *words: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            apply(project)
    (project.layout.src / "core.c").write_text("mine\n")
    with pytest.raises(BuildError, match=r"core\.c"):
        apply(project)


def test_a_leftover_of_git_am_recovers(project: Project) -> None:
    stamp = apply(project)
    bad = project.layout.root / "bad.patch"
    bad.write_bytes((project.layout.patches / "hooks/first-hook.patch").read_bytes())
    done = subprocess.run(
        ["git", "am", str(bad)], cwd=project.layout.src, env={**os.environ, **ENV}, capture_output=True
    )
    assert done.returncode != 0
    assert (project.layout.src / ".git/rebase-apply").is_dir()
    assert state_of(project.layout)[0] == "stale"
    assert apply(project) == stamp
    assert not (project.layout.src / ".git/rebase-apply").exists()


def overlapping(project: Project) -> None:
    make_patch(project, "overlap", {"core.c": ("int line_5;\n", "int line_5;\nint other;\n")})
    make_patch(project, "also-bad", {"core.c": ("int line_5;\nint line_6;\n", "int line_56;\n")})
    make_patch(project, "after", {"core.c": ("int line_20;\n", "int line_20;\nint hook_b;\n")})
    project.series("first-hook", "overlap", "second-hook", "also-bad", "after")


def test_every_conflict_comes_out_of_one_run(project: Project) -> None:
    overlapping(project)
    verdict = verify(project)
    assert [(check.slug, check.applies) for check in verdict.checks] == [
        ("first-hook", True),
        ("overlap", False),
        ("second-hook", True),
        ("also-bad", False),
        ("after", True),
    ]
    assert "core.c" in verdict.checks[1].reason
    assert len([line for line in verdict.problems if "does not apply" in line]) == 2
    with pytest.raises(BuildError, match=r"overlap.*also-bad"):
        apply(project)
    assert state_of(project.layout)[0] in ("absent", "stale")


def test_a_conflict_leaves_a_prepared_tree_as_it_was(project: Project) -> None:
    stamp = apply(project)
    before = mtimes(project.layout.src)
    overlapping(project)
    with pytest.raises(BuildError):
        apply(project)
    assert mtimes(project.layout.src) == before
    assert git(project.layout.src, "rev-parse", "HEAD") == stamp.head
    assert [path.name for path in project.layout.build.glob(".scratch-*")] == []


def test_verify_on_a_newer_upstream_gives_the_drop_checks(project: Project, tmp_path: Path) -> None:
    make_patch(project, "second-hook", {"lib/reg.c": ("    add(2);\n", "    add(2);\n    hook_api();\n")})
    path = project.layout.patches / "hooks/second-hook.patch"
    path.write_bytes(path.read_bytes().replace(b"grep second-hook_api lib/reg.c", b"grep 'hook_api()' lib/reg.c"))
    assert verify(project).problems == ()
    for form in ("git", "plain"):
        folder = project.upstream
        if form == "plain":
            folder = tmp_path / "unpacked"
            shutil.copytree(project.upstream, folder, ignore=shutil.ignore_patterns(".git"))
        before = snapshot(folder)
        verdict = verify(project, folder)
        assert [check.applies for check in verdict.checks] == [True, False]
        assert [check.upstream_has_it for check in verdict.checks] == [False, True]
        assert len(verdict.problems) == 1
        assert "hook_api() is in lib/reg.c" in verdict.problems[0].replace("\\", "")
        assert snapshot(folder) == before
    with pytest.raises(InputError):
        verify(project, tmp_path / "nowhere")


def test_verify_names_every_fault_of_the_folder(project: Project) -> None:
    make_patch(project, "bare", {"core.c": ("int line_9;\n", "int line_9;\nint x;\n")}, body="no reason given")
    make_patch(project, "stray", {"core.c": ("int line_2;\n", "int line_22;\n")})
    project.write("patches/hooks/notes.txt", "x")
    project.series("first-hook", "second-hook", "second-hook", "gone", "bare", "Not A Slug")
    text = "\n".join(verify(project).problems)
    for part in (
        "second-hook: 2 times in the series",
        "gone: in the series, but there is no hooks/gone.patch",
        "bare: its body has no `Why:` line",
        "bare: its body has no `Drop-check: grep PATTERN FILE` line",
        "stray.patch: in hooks/, but not in the series",
        "notes.txt: in hooks/, but not in the series",
        "Not A Slug: not a slug",
    ):
        assert part in text
    with pytest.raises(BuildError, match="not sound"):
        apply(project)


def test_verify_finds_a_drop_check_that_is_true_already(project: Project) -> None:
    path = project.layout.patches / "hooks/first-hook.patch"
    path.write_bytes(path.read_bytes().replace(b"grep first-hook_api lib/reg.c", b"grep 'line_1[23];$' core.c"))
    assert [line for line in verify(project).problems if "true on the pin" in line]


def test_verify_keeps_the_budget(project: Project) -> None:
    lines = "".join(f"int extra_{n};\n" for n in range(149))
    make_patch(project, "big", {"core.c": ("int line_30;\n", "int line_30;\n" + lines)})
    project.series("first-hook", "second-hook", "big")
    verdict = verify(project)
    assert verdict.added_lines == 151
    assert verdict.problems == ("budget: 151 added lines, at most 150",)


def test_verify_sees_an_overlay_path_of_upstream(project: Project) -> None:
    project.write("patches/overlay/README.md", "ours\n")
    assert verify(project).problems == ("overlay: README.md is upstream's path",)


def test_patches_with_crlf_from_a_checkout_are_the_same_patches(project: Project) -> None:
    stamp = apply(project)
    for path in (project.layout.patches / "hooks").iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert is_current(project.layout)
    shutil.rmtree(project.layout.src)
    assert apply(project) == stamp


def test_stock_is_the_pin_and_stays_clean(project: Project) -> None:
    assert prepare_stock(project.layout, quiet) == project.pin
    tree = project.layout.stock / "src"
    assert (tree / "core.c").read_bytes() == CORE.encode()
    assert not (tree / "ours").exists()
    before = mtimes(tree)
    assert prepare_stock(project.layout, quiet) == project.pin
    assert mtimes(tree) == before
    (tree / "core.c").write_text("mine\n")
    with pytest.raises(BuildError, match=r"core\.c"):
        prepare_stock(project.layout, quiet)


def test_export_after_apply_changes_no_byte(project: Project) -> None:
    make_patch(
        project,
        "third",
        {"hook.h": ("", "int ours;\n"), "README.md": ("upstream\n", "upstream\n--- x\n+++ y")},
        subject="[area] größer, and so long a subject that git has to fold it over two lines of the mail",
    )
    project.series("first-hook", "second-hook", "third")
    apply(project)
    before = snapshot(project.layout.patches)
    assert export(project) == Export((), (), (), git(project.layout.src, "rev-parse", "HEAD"))
    assert snapshot(project.layout.patches) == before
    assert state_of(project.layout) == ("current", ())


def test_export_keeps_slugs_through_an_amend_a_new_commit_and_a_drop(project: Project) -> None:
    project.write("patches/series", "# top\n\n# why first\nfirst-hook.patch\n# why second\nsecond-hook.patch\n# end\n")
    apply(project)
    tree = project.layout.src
    git(tree, "reset", "-q", "--hard", "HEAD~1")
    (tree / "core.c").write_text(patched_core().replace("hook_a", "hook_z"))
    git(tree, "commit", "-q", "-a", "--amend", "-m", "nanite: renamed\n\nWhy: x.\n\nDrop-check: grep z core.c")
    (tree / "README.md").write_text("ours\n")
    git(tree, "commit", "-q", "-a", "-m", "nanite: Say it's ours!\n\nWhy: y.\n\nDrop-check: grep ours README.md")
    result = export(project)
    assert (result.written, result.removed) == (("first-hook", "say-it-s-ours"), ("second-hook",))
    series = (project.layout.patches / "series").read_text()
    assert series == "# top\n\n# why first\nfirst-hook.patch\nsay-it-s-ours.patch\n# end\n"
    assert b"+int hook_z;\n" in (project.layout.patches / "hooks/first-hook.patch").read_bytes()
    assert not (project.layout.patches / "hooks/second-hook.patch").exists()
    assert state_of(project.layout) == ("current", ())
    before = mtimes(tree)
    shutil.copytree(project.layout.patches, project.layout.root / "copy")
    shutil.rmtree(tree / ".git")
    assert apply(project, discard=True).head == result.head
    assert mtimes(tree).keys() == before.keys()
    assert export(project).written == ()


def test_export_tells_two_patches_of_one_second_apart(project: Project) -> None:
    apply(project)
    tree = project.layout.src
    git(tree, "commit", "-q", "--amend", "-m", "nanite: new words\n\nWhy: x.\n\nDrop-check: grep z core.c")
    assert export(project).written == ("second-hook",)


def test_export_brings_overlay_files_back(project: Project) -> None:
    apply(project)
    (project.layout.src / "ours/a.c").write_text("int edited;\n")
    (project.layout.src / "ours/fresh.c").write_text("int fresh;\n")
    assert export(project).overlay == ("ours/a.c", "ours/fresh.c")
    assert (project.layout.overlay / "ours/a.c").read_text() == "int edited;\n"
    assert (project.layout.overlay / "ours/fresh.c").read_text() == "int fresh;\n"
    assert state_of(project.layout) == ("current", ())


def test_export_refuses_what_it_would_lose(project: Project) -> None:
    with pytest.raises(BuildError, match="not a prepared tree"):
        export(project)
    apply(project)
    tree = project.layout.src
    before = snapshot(project.layout.patches)
    (tree / "core.c").write_text("mine\n")
    with pytest.raises(BuildError, match=r"in no commit: changed: core\.c"):
        export(project)
    git(tree, "checkout", "-q", "core.c")
    (tree / "ours/a.c").write_text("int mine;\n")
    project.write("patches/overlay/ours/a.c", "int theirs;\n")
    with pytest.raises(BuildError, match=r"both|edited in .* and in patches/overlay: ours/a\.c"):
        export(project)
    project.write("patches/overlay/ours/a.c", "int a;\n")
    (tree / "ours/a.c").unlink()
    with pytest.raises(BuildError, match="deleted"):
        export(project)
    assert snapshot(project.layout.patches) == before


def test_export_does_not_write_over_newer_patches(project: Project) -> None:
    apply(project)
    path = project.layout.patches / "hooks/first-hook.patch"
    path.write_bytes(path.read_bytes().replace(b"Why: nothing", b"Why: really nothing"))
    with pytest.raises(BuildError, match="changed since the tree was prepared"):
        export(project)
    assert b"really" in path.read_bytes()


def test_an_unreadable_stamp_is_no_stamp(project: Project) -> None:
    apply(project)
    stamp = project.layout.src / ".git/nanite-stamp.json"
    for text in ("", "{", "[]", json.dumps({"schema": 1, "pin": project.pin})):
        stamp.write_text(text)
        assert read_stamp(project.layout.src) is None
    assert state_of(project.layout) == ("dirty", ("it has no stamp",))
