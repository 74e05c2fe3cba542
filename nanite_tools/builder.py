"""Builds the runtime, or the unpatched reference beside it, with CMake and Ninja.

`source` and `patchset` prepare the tree, `cmake_tree` configures and builds it, `manifest` records what was built.
A build is safe to interrupt: ninja keeps finished objects, and the same call goes on.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanite_tools import cmake_flags, locks, manifest
from nanite_tools.cmake_progress import BuildLog, duration
from nanite_tools.cmake_tree import Maker, Tree
from nanite_tools.errors import UsageError
from nanite_tools.paths import UPSTREAM_PIN, Layout
from nanite_tools.toolchain import CMAKE_CUDA_NATIVE, CMAKE_MINIMUM, Toolchain, find_toolchain, require_gpu

Say = Callable[[str], None]
MODULE_DIR = "nanite-module"


@dataclass(frozen=True)
class BuildResult:
    """One finished build. `seconds` is this call's CMake and ninja time; `manifest` is the folder's entry."""

    bin_dir: Path
    build_dir: Path
    up_to_date: bool
    seconds: float
    manifest: dict[str, object]


@dataclass(frozen=True)
class Source:
    """A tree ready to build: `head` is its commit, `patches` slug → sha256, `overlay` the sha256 of our sources, None
    where none of them is built."""

    path: Path
    head: str
    patches: dict[str, str]
    overlay: str | None


def build(
    layout: Layout,
    preset: str,
    *,
    stock: bool = False,
    module: bool = False,
    targets: list[str] | None = None,
    jobs: int | None = None,
    source_dir: Path | None = None,
    cuda_arch: str | None = None,
    clean: bool = False,
    say: Say,
) -> BuildResult:
    """Build one preset into `layout.build_dir(preset, stock=, module=)`.

    `targets` are CMake targets (default: the four programs; for `asan` the C++ tests). `stock` builds unpatched
    upstream; with `module` too, the Nanite module is built alone beside it, in `nanite-module/`. `clean` removes that
    one folder first. Raises UsageError, MissingError (a tool, a GPU) or BuildError (source, patches, compiler).
    """
    architectures = _check(preset, stock=stock, module=module, cuda_arch=cuda_arch)
    names = tuple(targets or ([cmake_flags.TESTS_TARGET] if preset == "asan" else cmake_flags.PROGRAMS))
    tests = cmake_flags.TESTS_TARGET in names
    if tests and (stock or module):
        raise UsageError(
            f"{cmake_flags.TESTS_TARGET} exists in the patched, linked build only", "drop --stock or --module"
        )
    cuda = preset == "cuda"
    native = cuda and architectures == "native"
    tools = find_toolchain(cuda=cuda, cmake_minimum=CMAKE_CUDA_NATIVE if native else CMAKE_MINIMUM)
    if native:
        require_gpu()
    folder = layout.build_dir(preset, stock=stock, module=module)
    name = manifest.entry_name(layout, folder)
    waiting = f"another build of {name} is running; waiting for it"
    with locks.held(folder.with_name(f".{folder.name}.lock"), lambda: say(waiting)):
        if clean:
            shutil.rmtree(folder.resolve(), ignore_errors=not folder.exists())  # it may be a link to another disk
            folder.resolve().mkdir(parents=True)
            manifest.record(layout.manifest, name, None)
        source = prepare(layout, stock=stock, module=module, source_dir=source_dir, say=say)
        flags = cmake_flags.llama_flags(preset, tools, module=module, tests=tests, architectures=architectures)
        trees = [Tree(source.path, folder, flags, names, source.head)]
        if stock and module:
            alone = layout.overlay / "ggml" / "src" / "ggml-nanite"
            flags = cmake_flags.module_flags(preset, tools, source.path, folder)
            trees.append(Tree(alone, folder / MODULE_DIR, flags, (), source.head))
        log = BuildLog(folder / "build.log")
        env = cmake_flags.build_environment(layout.build, os.environ)
        maker = Maker(tools, env, jobs or cmake_flags.default_jobs(), log, say)
        started = time.monotonic()
        up_to_date = True
        try:
            for tree in trees:
                up_to_date &= maker.make(tree)
        finally:
            log.close()
        seconds = round(time.monotonic() - started, 3)
        entry = _record(layout, name, trees[0], source, tools, seconds, up_to_date=up_to_date)
    say(f"{name} is up to date" if up_to_date else f"built {name} in {duration(seconds)}")
    return BuildResult(folder / "bin", folder, up_to_date, seconds, entry)


def _check(preset: str, *, stock: bool, module: bool, cuda_arch: str | None) -> str:
    """The CUDA architectures, after the words of the call have been checked."""
    if preset not in cmake_flags.PRESETS:
        raise UsageError(f"no preset {preset!r}", f"one of {', '.join(cmake_flags.PRESETS)}")
    if cuda_arch is not None and preset != "cuda":
        raise UsageError(f"--cuda-arch is for the cuda preset, this one is {preset}")
    return cmake_flags.cuda_architectures(cuda_arch)


def prepare(layout: Layout, *, stock: bool, module: bool, source_dir: Path | None, say: Say) -> Source:
    """Fetch the source and bring the tree to the pin, patched or not; each of the two steps holds its own lock."""
    from nanite_tools import overlay, patchset, source

    source.ensure_source(layout, source_dir=source_dir, say=say)
    if stock:
        head = patchset.prepare_stock(layout, say)
        ours = overlay.digest(overlay.scan(layout.overlay)) if module else None
        return Source(layout.stock / "src", head, {}, ours)
    stamp = patchset.apply(layout, say=say)
    return Source(layout.src, stamp.head, dict(stamp.patches), stamp.overlay)


def _record(
    layout: Layout, name: str, tree: Tree, source: Source, tools: Toolchain, seconds: float, *, up_to_date: bool
) -> manifest.Entry:
    """Write the manifest's entry, or give back the one that still holds. Targets of earlier calls on the same source
    and flags stay in it: their files are there too."""
    facts: manifest.Entry = {
        "commit": UPSTREAM_PIN,
        "head": source.head,
        "patches": source.patches,
        "overlay": source.overlay,
        "compiler": {"path": str(tools.cxx.path), "version": tools.cxx.version},
        "cmake": tools.cmake.version,
        "ninja": tools.ninja.version,
        "ccache": tools.ccache and tools.ccache.version,
        "cuda": tools.nvcc and tools.nvcc.version,
        "flags": [flag for flag in tree.flags if flag != cmake_flags.TESTS_ON],
        "host": manifest.host(),
    }
    before = manifest.read(layout.manifest).get(name, {})
    same = all(before.get(key) == value for key, value in facts.items())
    earlier = before.get("targets") if same else None
    targets = sorted({*tree.targets, *(earlier if isinstance(earlier, list) else [])})
    if up_to_date and same and targets == earlier:
        return before
    entry = facts | {"targets": targets, "time": manifest.utc_now(), "seconds": seconds}
    manifest.record(layout.manifest, name, entry)
    return entry
