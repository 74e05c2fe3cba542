"""Finding the build's programs, with programs that the test makes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nanite_tools import toolchain
from nanite_tools.errors import MissingError
from nanite_tools.toolchain import find_toolchain, install_hint, version_numbers

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake programs are shell scripts")

VERSIONS = {
    "git": "git version 2.39.5",
    "cmake": "cmake version 3.25.1\n\nCMake suite maintained by Kitware",
    "ninja": "1.11.1",
    "c++": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright",
    "cc": "cc 12.2.0",
    "nvcc": "nvcc: NVIDIA (R) Cuda compiler driver\nBuilt 2025\nCuda compilation tools, release 13.0, V13.0.88",
}


def program(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\nwhile read -r line; do echo \"$line\"; done <<'EOF'\n{says}\nEOF\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the whole PATH; the interpreter's own folder and CUDA's are empty too."""
    for name in ("CXX", "CC", "CUDACXX", "CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "interpreter_bin", lambda: tmp_path / "own")
    monkeypatch.setattr(toolchain, "_cuda_folders", lambda env: [tmp_path / "cuda" / "bin"])
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def fill(folder: Path, *without: str) -> None:
    for name, says in VERSIONS.items():
        if name not in without:
            program(folder, name, says)


def test_finds_all(path_dir: Path) -> None:
    fill(path_dir)
    program(path_dir, "ccache", "ccache version 4.7.5")
    tools = find_toolchain(cuda=True)
    assert tools.cmake.version == "cmake version 3.25.1"
    assert tools.cxx.path == path_dir / "c++"
    assert tools.cxx.version == "c++ (Debian 12.2.0-14+deb12u1) 12.2.0"
    assert tools.cc == path_dir / "cc"
    assert tools.nvcc is not None
    assert tools.nvcc.version == "Cuda compilation tools, release 13.0, V13.0.88"
    assert tools.ccache is not None
    assert find_toolchain(cuda=False).nvcc is None


def test_names_every_missing_tool_and_one_install_line(path_dir: Path) -> None:
    program(path_dir, "apt-get", "apt 2.6.1")
    with pytest.raises(MissingError) as caught:
        find_toolchain(cuda=True)
    for word in ("git", "cmake", "ninja", "C++ compiler", "nvcc"):
        assert word in caught.value.message
    assert caught.value.hint == "sudo apt-get install git cmake ninja-build g++ nvidia-cuda-toolkit"
    assert caught.value.exit_code == 4


def test_a_compiler_without_its_c_compiler_is_missing(path_dir: Path) -> None:
    fill(path_dir, "cc")
    with pytest.raises(MissingError, match=r"lacks: a C\+\+ compiler$"):
        find_toolchain(cuda=False)


def test_takes_cmake_and_ninja_of_the_interpreter(path_dir: Path, tmp_path: Path) -> None:
    fill(path_dir, "cmake", "ninja")
    program(tmp_path / "own", "cmake", "cmake version 4.1.0")
    program(tmp_path / "own", "ninja", "1.13.0")
    tools = find_toolchain(cuda=False)
    assert tools.cmake.path == tmp_path / "own" / "cmake"
    assert tools.ninja.path == tmp_path / "own" / "ninja"


def test_passes_over_a_cmake_that_is_too_old(path_dir: Path, tmp_path: Path) -> None:
    fill(path_dir)
    program(path_dir, "cmake", "cmake version 3.9.6")  # older than 3.14, though "9" > "14" as text
    with pytest.raises(MissingError, match=r"lacks: cmake \(3.14 or later\)$"):
        find_toolchain(cuda=False)
    program(tmp_path / "own", "cmake", "cmake version 3.14.0")
    assert find_toolchain(cuda=False).cmake.path == tmp_path / "own" / "cmake"


def test_hears_cxx_and_cc(path_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path_dir)
    mine = program(tmp_path / "llvm", "clang++", "clang version 17.0.1")
    program(path_dir, "clang", "clang version 17.0.1")
    monkeypatch.setenv("CXX", f"{mine} -stdlib=libc++")
    tools = find_toolchain(cuda=False)
    assert (tools.cxx.path, tools.cc) == (mine, path_dir / "clang")
    monkeypatch.setenv("CC", str(path_dir / "cc"))
    assert find_toolchain(cuda=False).cc == path_dir / "cc"
    monkeypatch.setenv("CXX", str(tmp_path / "gone"))
    with pytest.raises(MissingError):
        find_toolchain(cuda=False)


def test_finds_nvcc_beside_path(path_dir: Path, tmp_path: Path) -> None:
    fill(path_dir, "nvcc")
    nvcc = program(tmp_path / "cuda" / "bin", "nvcc", VERSIONS["nvcc"])
    found = find_toolchain(cuda=True).nvcc
    assert found is not None
    assert found.path == nvcc


@pytest.mark.parametrize(
    ("manager", "hint"),
    [
        ("dnf", "sudo dnf install ninja-build gcc-c++"),
        ("pacman", "sudo pacman -S ninja gcc"),
        ("brew", "brew install ninja; xcode-select --install"),
        ("winget", "winget install Ninja-build.Ninja Microsoft.VisualStudio.2022.BuildTools"),
        ("none", f"{sys.executable} -m pip install ninja; install a C++ compiler and put it on PATH"),
    ],
)
def test_install_hint(path_dir: Path, manager: str, hint: str) -> None:
    program(path_dir, manager, "1.0")
    assert install_hint(["ninja", "c++"]) == hint


@pytest.mark.parametrize(
    ("text", "numbers"), [("git version 2.39.5", (2, 39, 5)), ("1.11.1.git.kitware", (1, 11, 1)), ("none", ())]
)
def test_version_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(text) == numbers
