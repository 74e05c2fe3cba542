"""Builds of a small CMake project in upstream's place, with the real cmake, ninja and compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nanite_tools import builder, manifest, toolchain
from nanite_tools.builder import BuildResult
from nanite_tools.cmake_flags import PROGRAMS
from nanite_tools.errors import BuildError, MissingError, UsageError
from nanite_tools.paths import UPSTREAM_PIN, Layout

pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in ("cmake", "ninja", "c++", "cc", "git")), reason="no C++ build tools"
)

PROJECT = """\
cmake_minimum_required(VERSION 3.14)
project(upstream C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/.git/index)
add_library(ggml-base SHARED base.cpp)
foreach(name llama-server llama-completion llama-bench llama-perplexity not-wanted)
    add_executable(${name} main.cpp)
    target_link_libraries(${name} PRIVATE ggml-base)
endforeach()
if (NANITE_BUILD_TESTS)
    add_executable(nanite-tests EXCLUDE_FROM_ALL main.cpp)
    target_link_libraries(nanite-tests PRIVATE ggml-base)
endif()
"""
MODULE = """\
cmake_minimum_required(VERSION 3.14)
project(ggml-nanite CXX)
find_library(BASE ggml-base PATHS ${NANITE_UPSTREAM_BUILD}/bin NO_DEFAULT_PATH REQUIRED)
add_library(ggml-nanite MODULE module.cpp)
target_link_libraries(ggml-nanite PRIVATE ${BASE})
"""


def write_project(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CMakeLists.txt").write_text(PROJECT)
    (folder / "base.cpp").write_text("int answer() { return 42; }\n")
    (folder / "main.cpp").write_text("int answer(); int main() { return answer() - 42; }\n")
    (folder / ".git").mkdir(exist_ok=True)
    (folder / ".git" / "index").write_text("")


@dataclass
class Bench:
    """A checkout whose source and patches are faked, and what was said."""

    layout: Layout
    head: str = "a" * 40
    said: list[str] = field(default_factory=list)

    @property
    def configured(self) -> int:
        """How often CMake was run since the last look."""
        count = len([line for line in self.said if line.startswith("configuring")])
        self.said.clear()
        return count

    def build(self, preset: str = "cpu", **options: bool | list[str]) -> BuildResult:
        return builder.build(self.layout, preset, say=self.said.append, jobs=2, **options)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    from nanite_tools.patchset import Stamp

    monkeypatch.setenv("NANITE_TOOLS_BUILD", str(tmp_path / "a build"))  # a space in the path
    for name in ("CXX", "CC", "CXXFLAGS", "CFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)
    made = Bench(Layout(tmp_path / "root"))
    nanite = made.layout.overlay / "ggml" / "src" / "ggml-nanite"
    nanite.mkdir(parents=True)
    (nanite / "CMakeLists.txt").write_text(MODULE)
    (nanite / "module.cpp").write_text("int answer(); int module() { return answer(); }\n")
    write_project(made.layout.src)
    write_project(made.layout.stock / "src")
    monkeypatch.setattr("nanite_tools.source.ensure_source", lambda layout, **kw: None)
    monkeypatch.setattr(
        "nanite_tools.patchset.apply",
        lambda layout, say: Stamp(pin=UPSTREAM_PIN, patches={"one": "1" * 64}, overlay="2" * 64, head=made.head),
    )
    monkeypatch.setattr("nanite_tools.patchset.prepare_stock", lambda layout, say: UPSTREAM_PIN)
    return made


def runs(path: Path) -> bool:
    return subprocess.run([path]).returncode == 0


def test_builds_the_four_programs_and_nothing_else(bench: Bench) -> None:
    result = bench.build()
    assert result.build_dir == bench.layout.build / "cpu"
    assert not result.up_to_date
    programs = {path.name for path in result.bin_dir.iterdir() if os.access(path, os.X_OK) and "lib" not in path.name}
    assert programs == {"llama-server", "llama-completion", "llama-bench", "llama-perplexity"}
    assert runs(result.bin_dir / "llama-server")
    assert "Linking CXX executable" in (result.build_dir / "build.log").read_text()


def test_an_unchanged_tree_costs_no_configure(bench: Bench) -> None:
    first = bench.build()
    assert bench.configured == 1
    later = time.time() + 5
    os.utime(bench.layout.src / ".git" / "index", (later, later))  # as `git status` does
    log = (first.build_dir / "build.log").read_bytes()
    second = bench.build()
    assert (second.up_to_date, bench.configured) == (True, 0)
    assert second.seconds < 2
    assert second.manifest == first.manifest
    assert (first.build_dir / "build.log").read_bytes() == log


def test_a_deleted_binary_comes_back(bench: Bench) -> None:
    result = bench.build()
    assert bench.configured == 1
    (result.bin_dir / "llama-bench").unlink()
    assert not bench.build().up_to_date
    assert bench.configured == 0
    assert runs(result.bin_dir / "llama-bench")


def test_an_edited_source_is_built(bench: Bench) -> None:
    result = bench.build()
    (bench.layout.src / "base.cpp").write_text("int answer() { return 7; }\n")
    assert not bench.build().up_to_date
    assert not runs(result.bin_dir / "llama-server")


def test_a_new_head_or_new_flags_configure_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.build()
    assert bench.configured == 1
    bench.head = "b" * 40
    assert bench.build().manifest["head"] == "b" * 40
    assert bench.configured == 1
    monkeypatch.setenv("CXXFLAGS", "-DNEW")
    bench.build()
    assert bench.configured == 1
    assert "-DNEW" in (bench.layout.build / "cpu" / "build.ninja").read_text()
    monkeypatch.delenv("CXXFLAGS")
    bench.build()  # a flag that is gone must not live on in CMake's cache
    assert "-DNEW" not in (bench.layout.build / "cpu" / "build.ninja").read_text()


def test_tests_are_an_extra_that_stays_configured(bench: Bench) -> None:
    programs = list(PROGRAMS)
    bench.build()
    bench.configured  # noqa: B018
    result = bench.build(targets=[*programs, "nanite-tests"])
    assert bench.configured == 1
    assert runs(result.bin_dir / "nanite-tests")
    assert result.manifest["targets"] == sorted([*programs, "nanite-tests"])
    again = bench.build()
    assert (again.up_to_date, bench.configured) == (True, 0)
    assert again.manifest["targets"] == sorted([*programs, "nanite-tests"])  # they are still there


def test_asan_builds_the_tests_with_sanitizers(bench: Bench) -> None:
    result = bench.build("asan")
    assert result.build_dir.name == "asan"
    assert result.manifest["targets"] == ["nanite-tests"]
    assert "-fsanitize=address,undefined" in (result.build_dir / "build.ninja").read_text()
    (bench.layout.src / "main.cpp").write_text(
        "#include <climits>\nint main(int argc, char **) { volatile int x = INT_MAX; x = x + argc; return 0; }\n"
    )
    bench.build("asan")
    assert subprocess.run([result.bin_dir / "nanite-tests"], stderr=subprocess.PIPE).returncode != 0


def test_stock_and_its_module(bench: Bench) -> None:
    result = bench.build(stock=True, module=True)
    assert result.build_dir == bench.layout.build / "stock" / "cpu-module"
    assert (result.build_dir / "nanite-module" / "libggml-nanite.so").exists() or sys.platform == "darwin"
    entry = manifest.read(bench.layout.manifest)["stock/cpu-module"]
    assert (entry["head"], entry["patches"]) == (UPSTREAM_PIN, {})
    assert entry["overlay"]
    assert bench.build(stock=True, module=True).up_to_date
    module = bench.layout.overlay / "ggml" / "src" / "ggml-nanite" / "module.cpp"
    module.write_text("int answer(); int module() { return 2 * answer(); }\n")
    changed = bench.build(stock=True, module=True)
    assert not changed.up_to_date
    assert changed.manifest["overlay"] != entry["overlay"]
    assert bench.build(stock=True).manifest["overlay"] is None


def test_a_compiler_error_is_named_and_the_next_call_goes_on(bench: Bench) -> None:
    bench.build()
    bench.configured  # noqa: B018
    (bench.layout.src / "base.cpp").write_text("int answer() { return x; }\n")
    with pytest.raises(BuildError) as caught:
        bench.build()
    log = bench.layout.build / "cpu" / "build.log"
    assert "base.cpp:1:23: error: " in caught.value.message
    assert str(log) in caught.value.hint
    assert "FAILED: " in log.read_text()
    assert "Linking CXX executable" in log.with_name("build.log.1").read_text()
    (bench.layout.src / "base.cpp").write_text("int answer() { return 42; }\n")
    result = bench.build()
    assert bench.configured == 0
    assert runs(result.bin_dir / "llama-server")


def test_a_cmake_error_is_named(bench: Bench) -> None:
    (bench.layout.src / "CMakeLists.txt").write_text(PROJECT + 'message(FATAL_ERROR "this tree\\n needs more")\n')
    for _ in range(2):  # a failed configure is not taken for a configured folder
        with pytest.raises(BuildError, match=r"configuring failed: CMake Error at .*: this tree needs more"):
            bench.build()
    assert manifest.read(bench.layout.manifest) == {}


def test_a_linker_error_is_named(bench: Bench) -> None:
    (bench.layout.src / "main.cpp").write_text("int other(); int main() { return other(); }\n")
    with pytest.raises(BuildError, match=r"undefined reference to|[Uu]ndefined symbol"):
        bench.build()


def test_clean_removes_that_folder_only(bench: Bench) -> None:
    bench.build()
    bench.build("debug")
    (bench.layout.build / "cpu" / "left-over").write_text("")
    result = bench.build(clean=True)
    assert not result.up_to_date
    assert not (bench.layout.build / "cpu" / "left-over").exists()
    assert (bench.layout.build / "debug" / "bin" / "llama-server").exists()
    assert sorted(manifest.read(bench.layout.manifest)) == ["cpu", "debug"]


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_clean_follows_a_folder_that_is_elsewhere(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other disk"
    other.mkdir()
    (other / "left-over").write_text("")
    bench.layout.build.mkdir(exist_ok=True)
    (bench.layout.build / "cpu").symlink_to(other)
    result = bench.build(clean=True)
    assert runs(other / "bin" / "llama-server")
    assert result.build_dir.is_symlink()
    assert not (other / "left-over").exists()


def test_a_torn_manifest_is_written_anew(bench: Bench) -> None:
    first = bench.build()
    bench.layout.manifest.write_text('{"schema": 1, "bui')
    second = bench.build()
    assert second.up_to_date
    assert manifest.read(bench.layout.manifest)["cpu"] == second.manifest
    assert second.manifest["flags"] == first.manifest["flags"]


def test_manifest_entry(bench: Bench) -> None:
    entry = bench.build().manifest
    what, how = {"commit", "head", "patches", "overlay"}, {"compiler", "cmake", "ninja", "ccache", "cuda", "flags"}
    assert set(entry) == what | how | {"targets", "host", "time", "seconds"}
    assert entry["commit"] == UPSTREAM_PIN
    assert entry["patches"] == {"one": "1" * 64}
    assert entry["overlay"] == "2" * 64
    assert entry["cuda"] is None
    assert isinstance(entry["compiler"], dict)
    assert entry["compiler"]["path"] == shutil.which("c++")


def test_a_second_build_waits_for_the_first(bench: Bench) -> None:
    slow = (
        "add_custom_command(OUTPUT slow COMMAND ${CMAKE_COMMAND} -E sleep 2 COMMAND ${CMAKE_COMMAND} -E touch slow)\n"
    )
    (bench.layout.src / "CMakeLists.txt").write_text(PROJECT + slow + "add_custom_target(wait DEPENDS slow)\n")
    other: list[str] = []
    first = threading.Thread(
        target=builder.build, args=(bench.layout, "cpu"), kwargs={"targets": ["wait"], "say": other.append}
    )
    first.start()
    while not other:
        time.sleep(0.01)
    result = bench.build(targets=["wait"])
    first.join()
    assert bench.said[0] == "another build of cpu is running; waiting for it"
    assert result.up_to_date


@pytest.mark.parametrize(
    ("preset", "options", "words"),
    [
        ("gpu", {}, "no preset 'gpu'"),
        ("asan", {"stock": True}, "nanite-tests exists in the patched"),
        ("cpu", {"module": True, "targets": ["nanite-tests"]}, "nanite-tests exists in the patched"),
        ("cpu", {"cuda_arch": "90"}, "--cuda-arch is for the cuda preset"),
        ("cuda", {"cuda_arch": "sm_90"}, "not a CUDA architecture"),
    ],
)
def test_usage(bench: Bench, preset: str, options: dict[str, bool | list[str]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        bench.build(preset, **options)
    assert not (bench.layout.build / preset).exists()


def test_nothing_is_prepared_when_a_tool_is_missing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bench.layout.root))
    monkeypatch.setattr(toolchain, "interpreter_bin", lambda: bench.layout.root)
    monkeypatch.setattr("nanite_tools.source.ensure_source", lambda layout, **kw: pytest.fail("prepared"))
    with pytest.raises(MissingError, match=r"git, cmake .*, ninja, a C\+\+ compiler"):
        bench.build()
