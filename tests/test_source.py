"""Fetching the upstream source: every way, every half-done state, and what must never be touched."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from fake_upstream import CORE, HOSTILE_CONFIG, Project, git, make_project, make_upstream

from nanite_tools import paths, source, source_archive, submodule
from nanite_tools.errors import BuildError, InputError, MissingError
from nanite_tools.git import execute, git_dir_of, is_toplevel, locked, run
from nanite_tools.source import SourceInfo, cached_repository, ensure_source
from nanite_tools.submodule import inspect_submodule


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project below a path with a space and a percent sign, a user with odd git settings, an empty cache."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "attributes").write_text("* text eol=crlf\n")
    (home / "ignore").write_text("*.c\n")
    (home / "gitconfig").write_text(HOSTILE_CONFIG.format(folder=home.as_posix()))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    monkeypatch.delenv("NANITE_TOOLS_BUILD", raising=False)
    monkeypatch.setattr(paths, "user_cache_dir", lambda: tmp_path / "the cache")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    upstream = tmp_path / "up stream"
    pin, newer = make_upstream(upstream)
    return make_project(tmp_path / "my 50%25 project", upstream, pin, newer)


def ensure(project: Project, **words: object) -> SourceInfo:
    return ensure_source(project.layout, say=lambda text: None, pin=project.pin, **words)  # type: ignore[arg-type]


def assert_pristine(project: Project) -> None:
    folder = project.layout.submodule
    assert git(folder, "rev-parse", "--show-toplevel") == str(folder.resolve())
    assert git(folder, "rev-parse", "HEAD") == project.pin
    assert git(folder, "show", "HEAD:core.c") + "\n" == CORE
    assert git(folder, "fsck", "--strict") == ""
    assert inspect_submodule(project.layout, project.pin).kind == "ready"


def hide_upstream(project: Project) -> None:
    project.upstream.rename(project.upstream.with_name("hidden"))


def pack_archive(project: Project, folder: Path, extra: Callable[[tarfile.TarFile], None] | None = None) -> Path:
    """A source archive like the package's: a shallow git directory, a work tree, a build backend that must not run."""
    top = folder / "llama_cpp_python-0.3.36"
    git_dir = top / ".git/modules/vendor/llama.cpp"
    git_dir.mkdir(parents=True)
    git(git_dir, "init", "-q", "--bare", ".")
    git(git_dir, "fetch", "-q", "--depth", "1", project.upstream.as_uri(), project.pin)
    git(git_dir, "update-ref", "--no-deref", "HEAD", project.pin)
    with (git_dir / "config").open("a") as config:
        config.write('[core]\n\tworktree = ../../../../vendor/llama.cpp\n[includeIf "gitdir:/"]\n\tpath = /nowhere\n')
    (top / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["no-such-backend"]\nbuild-backend = "scikit_build_core.build"\n'
        '[project]\nname = "llama_cpp_python"\ndynamic = ["version"]\n'
    )
    (top / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: 0.3.36\n")
    links = folder / "links"
    links.mkdir()
    archive = links / "llama_cpp_python-0.3.36.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(top, top.name)
        if extra is not None:
            extra(tar)
    return archive


def test_git_fills_the_submodule_and_the_cache(project: Project) -> None:
    assert ensure(project) == SourceInfo("git", project.pin)
    assert_pristine(project)
    assert git(project.layout.submodule, "remote", "get-url", "origin") == str(project.upstream)
    assert git(project.layout.root, "config", "submodule.llama.cpp.url") == str(project.upstream)
    assert git(project.layout.root, "status", "--porcelain") == ""
    assert [path.name for path in cached_repository(project.pin).parent.iterdir() if path.suffix == ".tmp"] == []


def test_the_second_call_looks_and_does_nothing(project: Project) -> None:
    ensure(project)
    hide_upstream(project)
    assert ensure(project, offline=True) == SourceInfo("present", project.pin)


def test_the_cache_serves_the_next_clone(project: Project, tmp_path: Path) -> None:
    ensure(project)
    hide_upstream(project)
    second = make_project(tmp_path / "second", project.upstream, project.pin, project.newer)
    assert ensure(second, offline=True) == SourceInfo("cache", project.pin)
    assert_pristine(second)


def test_a_damaged_cache_is_dropped_and_fetched_again(project: Project, tmp_path: Path) -> None:
    ensure(project)
    pack = next((cached_repository(project.pin) / "objects/pack").glob("*.pack"))
    pack.chmod(0o644)
    pack.write_bytes(pack.read_bytes()[:-200])
    second = make_project(tmp_path / "second", project.upstream, project.pin, project.newer)
    assert ensure(second) == SourceInfo("git", project.pin)
    assert_pristine(second)


def test_the_package_archive_is_the_second_way(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack_archive(project, tmp_path / "package")
    monkeypatch.setenv("PIP_FIND_LINKS", archive.parent.as_uri())
    hide_upstream(project)
    assert ensure(project) == SourceInfo("archive", project.pin)
    assert_pristine(project)
    assert git(project.layout.submodule, "remote", "get-url", "origin") == str(project.upstream)
    assert "includeIf" not in (cached_repository(project.pin) / "config").read_text()


def test_no_way_out_names_both_ways_and_the_third(project: Project) -> None:
    hide_upstream(project)
    with pytest.raises(MissingError) as caught:
        ensure(project)
    assert caught.value.exit_code == 4
    assert str(project.upstream) in caught.value.message
    assert "llama-cpp-python==0.3.36" in caught.value.message
    assert "--source DIR" in caught.value.hint
    assert list(project.layout.submodule.iterdir()) == []


def test_offline_fetches_nothing(project: Project) -> None:
    with pytest.raises(MissingError, match="offline"):
        ensure(project, offline=True)
    assert not cached_repository(project.pin).exists()


def test_an_archive_with_another_commit_is_refused(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Project(project.layout, project.upstream, project.newer, project.newer)
    archive = pack_archive(other, tmp_path / "package")
    monkeypatch.setenv("PIP_FIND_LINKS", archive.parent.as_uri())
    hide_upstream(project)
    with pytest.raises(BuildError, match=project.pin[:12]):
        ensure(project)
    assert inspect_submodule(project.layout, project.pin).kind == "absent"


def test_a_file_changed_under_its_old_name_is_found(project: Project, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--no-local", str(project.upstream), str(clone))
    blob = git(clone, "rev-parse", f"{project.pin}:core.c")
    packs = list((clone / ".git/objects/pack").glob("*.pack"))
    for pack in packs:
        content = pack.read_bytes()
        for part in pack.parent.glob(f"{pack.stem}.*"):
            part.unlink()
        git(clone, "unpack-objects", "-q", stdin=content)
    loose = clone / ".git/objects" / blob[:2] / blob[2:]
    loose.chmod(0o644)
    evil = CORE.replace("line_7", "evil_7").encode()
    loose.write_bytes(zlib.compress(b"blob %d\0" % len(evil) + evil))
    with pytest.raises(BuildError):
        ensure(project, source_dir=clone)
    assert not (project.layout.submodule / "core.c").exists()


@pytest.mark.parametrize("form", ["work tree", "git directory", "bare", "shallow"])
def test_a_directory_serves_in_every_form(project: Project, tmp_path: Path, form: str) -> None:
    clone = tmp_path / "the clone"
    words = {"bare": ["--bare"], "shallow": ["--depth", "2"]}.get(form, [])
    git(tmp_path, "clone", "-q", *words, project.upstream.as_uri(), str(clone))
    folder = clone / ".git" if form == "git directory" else clone
    hide_upstream(project)
    assert ensure(project, source_dir=folder) == SourceInfo("directory", project.pin)
    assert_pristine(project)


def test_a_directory_without_git_is_bad_input_even_inside_a_repository(project: Project) -> None:
    for folder in (project.upstream / "lib", project.layout.submodule, project.layout.root.parent / "home"):
        with pytest.raises(InputError) as caught:
            ensure(project, source_dir=folder)
        assert "clone llama.cpp with git" in caught.value.hint
    with pytest.raises(InputError, match="no directory"):
        ensure(project, source_dir=project.layout.root / "nowhere")


def test_a_directory_without_the_pin_is_a_source_failure(project: Project, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", project.upstream.as_uri(), str(clone))
    with pytest.raises(BuildError, match=f"does not hold the commit {project.pin[:12]}.*{project.newer[:12]}"):
        ensure(project, source_dir=clone)


def test_an_uninitialised_submodule_never_answers_for_its_parent(project: Project) -> None:
    folder = project.layout.submodule
    assert git(folder, "rev-parse", "--show-toplevel") == str(project.layout.root.resolve())  # the trap itself
    assert not is_toplevel(folder)
    assert git_dir_of(folder) is None
    assert run(folder, "rev-parse", "HEAD", check=False).code != 0
    assert inspect_submodule(project.layout, git(project.layout.root, "rev-parse", "HEAD")).kind == "absent"


def test_a_repository_named_by_the_environment_is_not_used(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(project.upstream / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(project.upstream))
    monkeypatch.setenv("GIT_INDEX_FILE", str(project.upstream / "other-index"))
    assert ensure(project).how == "git"
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    assert_pristine(project)
    assert not (project.upstream / "other-index").exists()


@pytest.mark.parametrize("name", ["core.c", "scratch.txt"])
def test_local_changes_are_an_error_and_are_kept(project: Project, name: str) -> None:
    ensure(project)
    (project.layout.submodule / name).write_text("mine\n")
    with pytest.raises(BuildError, match=name):
        ensure(project)
    assert (project.layout.submodule / name).read_text() == "mine\n"


def test_missing_files_are_restored_and_nothing_else_is_written(project: Project) -> None:
    ensure(project)
    (project.layout.submodule / "lib/reg.c").unlink()
    before = (project.layout.submodule / "core.c").stat().st_mtime_ns
    assert inspect_submodule(project.layout, project.pin).kind == "half"
    assert ensure(project) == SourceInfo("repaired", project.pin)
    assert (project.layout.submodule / "core.c").stat().st_mtime_ns == before
    assert_pristine(project)


def test_a_checkout_that_was_killed_is_finished(project: Project) -> None:
    ensure(project)
    git_dir = Path(git(project.layout.submodule, "rev-parse", "--absolute-git-dir"))
    (git_dir / "index").rename(git_dir / "index.lock")
    (project.layout.submodule / "core.c").write_text("int line_1;\nint li")
    (project.layout.submodule / "README.md").unlink()
    assert ensure(project) == SourceInfo("repaired", project.pin)
    assert_pristine(project)


def test_a_clone_that_was_killed_is_started_over(project: Project) -> None:
    module = project.layout.root / ".git/modules/llama.cpp"
    module.mkdir(parents=True)
    git(module, "init", "-q", "--bare", ".")
    (module / "objects/pack/tmp_pack_1").write_bytes(b"PACK torn")
    (project.layout.submodule / ".git").write_text("gitdir: ../.git/modules/llama.cpp\n")
    assert inspect_submodule(project.layout, project.pin).kind == "broken"
    assert ensure(project) == SourceInfo("git", project.pin)
    assert_pristine(project)


def test_files_without_git_are_in_the_way_and_stay(project: Project) -> None:
    (project.layout.submodule / "notes.txt").write_text("mine\n")
    with pytest.raises(BuildError, match="in the way"):
        ensure(project)
    assert (project.layout.submodule / "notes.txt").read_text() == "mine\n"


@pytest.mark.parametrize("moment", ["fetched", "filled"])
def test_an_interrupt_leaves_nothing_that_the_next_run_trips_over(
    project: Project, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def stop(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "fetched":
            patch.setattr(source, "fill", stop)
        else:
            real = run

            def cut(cwd: Path, *args: str, **more: object) -> object:
                if "submodule" in args and "update" in args:
                    folder = project.layout.submodule
                    (folder / "core.c").write_text("torn")
                    (folder / ".git").write_text("gitdir: ../.git/modules/llama.cpp\n")
                    raise KeyboardInterrupt
                return real(cwd, *args, **more)  # type: ignore[arg-type]

            patch.setattr(submodule, "run", cut)
        with pytest.raises(KeyboardInterrupt):
            ensure(project)
    hide_upstream(project)
    assert ensure(project, offline=True) == SourceInfo("cache", project.pin)
    assert_pristine(project)


def test_a_clean_submodule_elsewhere_moves_to_the_pin(project: Project) -> None:
    ensure(project)
    folder = project.layout.submodule
    git(folder, "fetch", "-q", "--depth", "1", "origin", project.newer)
    git(folder, "checkout", "-q", "--detach", project.newer)
    assert inspect_submodule(project.layout, project.pin).kind == "wrong-commit"
    assert ensure(project, offline=True).commit == project.pin
    assert_pristine(project)


def test_a_submodule_without_the_pin_gets_it_from_the_cache(project: Project, tmp_path: Path) -> None:
    ensure(project)
    second = make_project(tmp_path / "second", project.upstream, project.newer, project.newer)
    ensure_source(second.layout, say=lambda text: None, pin=project.newer)
    git(second.layout.root, "update-index", "--cacheinfo", f"160000,{project.pin},llama.cpp")
    assert ensure(Project(second.layout, project.upstream, project.pin, project.newer), offline=True).how == "cache"
    assert_pristine(Project(second.layout, project.upstream, project.pin, project.newer))


def test_a_checkout_that_records_another_commit_is_refused(project: Project) -> None:
    git(project.layout.root, "update-index", "--cacheinfo", f"160000,{project.newer},llama.cpp")
    with pytest.raises(BuildError, match=f"{project.newer[:12]}.*{project.pin[:12]}"):
        ensure(project)


def test_a_project_that_is_no_git_repository_gets_the_source_too(project: Project, tmp_path: Path) -> None:
    (project.layout.root / ".git").rename(tmp_path / "git away")
    assert ensure(project, source_dir=project.upstream) == SourceInfo("directory", project.pin)
    assert_pristine(project)


def test_no_git_says_how_to_install_it(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError) as caught:
        ensure(project)
    assert "install" in caught.value.hint


def test_a_torn_archive_is_missing_source(project: Project, tmp_path: Path) -> None:
    archive = pack_archive(project, tmp_path / "package")
    whole = archive.read_bytes()
    for size in (0, 100, len(whole) // 2):
        archive.write_bytes(whole[:size])
        with pytest.raises(MissingError):
            source_archive.extract_git_dir(archive, source_archive.PACKAGE.git_dir, tmp_path / f"out {size}")


def test_only_plain_files_of_the_git_directory_leave_the_archive(project: Project, tmp_path: Path) -> None:
    top = "llama_cpp_python-0.3.36/.git/modules/vendor/llama.cpp"

    def extra(tar: tarfile.TarFile) -> None:
        for name in ("objects/../../../../../../../evil", "hooks/post-checkout", "objects/C:evil", "config.worktree"):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
        link = tarfile.TarInfo(f"{top}/objects/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)

    archive = pack_archive(project, tmp_path / "package", extra)
    out = source_archive.extract_git_dir(archive, PurePosixPath(".git/modules/vendor/llama.cpp"), tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {"HEAD", "config", "objects", "refs", "shallow"}
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]
    assert not (out / "objects/link").is_symlink()
    assert "worktree" not in (out / "config").read_text()
    assert git(out, "rev-parse", "HEAD") == project.pin


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_a_timeout_ends_the_children_too(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    script = f"(sleep 1; echo yes > '{mark}') & wait"
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        execute(["sh", "-c", script], os.environ, timeout_s=0.2)
    assert time.monotonic() - start < 0.9
    time.sleep(1.2)
    assert not mark.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="inherited locks")
def test_the_next_run_waits_for_the_git_of_a_killed_one(tmp_path: Path) -> None:
    lock, mark = tmp_path / "a lock", tmp_path / "mark"
    script = (
        "import os, sys; from pathlib import Path; from nanite_tools.git import execute, locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    execute(['sh', '-c', 'echo > \"$0.up\"; sleep 1.5; echo > \"$0\"', sys.argv[2]], os.environ)\n"
    )
    root = Path(source.__file__).parent.parent
    env = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", script, str(lock), str(mark)], env=env) as killed:
        while not mark.with_name("mark.up").exists():
            time.sleep(0.02)
        killed.kill()
    assert not mark.exists()
    with locked(lock):
        assert mark.exists()
    with locked(lock):
        pass
