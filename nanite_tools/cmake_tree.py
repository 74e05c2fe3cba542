"""One CMake binary folder: configured when its inputs change, built by ninja always (ninja itself sees what is new)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanite_tools import manifest
from nanite_tools.cmake_flags import TESTS_ON, heard_environment
from nanite_tools.cmake_progress import BuildLog, Outcome, run
from nanite_tools.errors import BuildError
from nanite_tools.toolchain import Toolchain


@dataclass(frozen=True)
class Tree:
    """A binary folder and what it is made from. `head` is the source's commit: upstream bakes it in at configure."""

    source: Path
    binary: Path
    flags: tuple[str, ...]
    targets: tuple[str, ...]
    head: str

    @property
    def configured(self) -> Path:
        """What CMake was last run with, as JSON; missing while the folder is not configured."""
        return self.binary / "configured.json"


@dataclass(frozen=True)
class Maker:
    """What one call uses for each of its trees."""

    tools: Toolchain
    env: dict[str, str]
    jobs: int
    log: BuildLog
    say: Callable[[str], None]

    def make(self, tree: Tree) -> bool:
        """Configure when needed, then build. True: neither had anything to do. BuildError with the first error."""
        key = self._key(tree)
        before = manifest.read_json(tree.configured)
        current = (tree.binary / "build.ninja").is_file() and _covers(before.get("key"), key)
        if current:
            _calm_index(tree.source, before.get("index_mtime_ns"))
        else:
            self.say(f"configuring {tree.binary}")
            self._configure(tree, key)
        ninja = [str(self.tools.ninja.path), "-C", str(tree.binary), "-j", str(self.jobs), *tree.targets]
        return self._run(ninja, f"building {tree.binary.name}").no_work and current

    def _key(self, tree: Tree) -> dict[str, object]:
        tools = self.tools
        versions = {"cmake": tools.cmake.version, "c++": tools.cxx.version, "nvcc": tools.nvcc and tools.nvcc.version}
        return {
            "source": str(tree.source),
            "binary": str(tree.binary),
            "head": tree.head,
            "flags": list(tree.flags),
            "versions": versions,
            "environment": heard_environment(self.env),
        }

    def _configure(self, tree: Tree, key: dict[str, object]) -> None:
        """Run CMake on a folder without a cache: a flag that is gone, or a new compiler, must leave no trace in it.
        Objects stay, and ninja keeps those whose command line is the same."""
        tree.configured.unlink(missing_ok=True)
        (tree.binary / "CMakeCache.txt").unlink(missing_ok=True)
        shutil.rmtree(tree.binary / "CMakeFiles" / "CMakeTmp", ignore_errors=True)
        argv = [str(self.tools.cmake.path), "-S", str(tree.source), "-B", str(tree.binary), "-G", "Ninja", *tree.flags]
        self._run(argv, "configuring")
        index = _index_file(tree.source)
        stamp = index.stat().st_mtime_ns if index else None
        manifest.write_json(tree.configured, {"key": key, "index_mtime_ns": stamp})

    def _run(self, argv: list[str], title: str) -> Outcome:
        outcome = run(argv, env=self.env, log=self.log, title=title, say=self.say)
        if outcome.returncode == 0:
            return outcome
        failure, where = outcome.failure, f"the whole output is in {self.log.path}"
        if failure.disk:
            raise BuildError(f"the disk is full: {failure.disk}", f"free some space and build again; {where}")
        if failure.memory or outcome.returncode in (-9, 137):
            what = failure.memory or f"{Path(argv[0]).name} was killed"
            raise BuildError(f"out of memory: {what}", f"build again with --jobs {max(1, self.jobs // 2)}; {where}")
        raise BuildError(f"{title} failed: {failure.first or f'exit code {outcome.returncode}'}", where)


def _covers(before: object, key: dict[str, object]) -> bool:
    """Is a folder configured with `before` good for `key`? A folder that also has the tests is good for one without."""
    if not isinstance(before, dict) or not isinstance(before.get("flags"), list):
        return False
    without_tests = before | {"flags": [flag for flag in before["flags"] if flag != TESTS_ON]}
    return key in (before, without_tests)


def _index_file(source: Path) -> Path | None:
    """The git index of a source tree; None when it has none of its own."""
    git = source / ".git"
    try:
        if git.is_file():
            git = source / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        return git / "index" if (git / "index").is_file() else None
    except OSError:
        return None


def _calm_index(source: Path, mtime_ns: object) -> None:
    """Give the git index the time that it had when CMake ran. Upstream makes CMake depend on that file, and each
    `git status` may touch it; the commit is in the key, so only a time has changed. An older time is safe for git:
    it then looks at more files, not fewer."""
    index = _index_file(source)
    if index and isinstance(mtime_ns, int) and index.stat().st_mtime_ns > mtime_ns:
        os.utime(index, ns=(mtime_ns, mtime_ns))
