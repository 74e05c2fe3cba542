"""Finds the programs that a build needs, and names all the missing ones in one go."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanite_tools.errors import MissingError

#: upstream needs 3.14; `CMAKE_CUDA_ARCHITECTURES=native` needs 3.24
CMAKE_MINIMUM = (3, 14)
CMAKE_CUDA_NATIVE = (3, 24)

#: package manager -> (its command, what it calls each tool); the first one that exists is named in the hint
_INSTALLERS: dict[str, tuple[str, dict[str, str]]] = {
    "apt-get": (
        "sudo apt-get install",
        {"git": "git", "cmake": "cmake", "ninja": "ninja-build", "c++": "g++", "nvcc": "nvidia-cuda-toolkit"},
    ),
    "dnf": (
        "sudo dnf install",
        {"git": "git", "cmake": "cmake", "ninja": "ninja-build", "c++": "gcc-c++", "nvcc": "cuda-toolkit"},
    ),
    "pacman": (
        "sudo pacman -S",
        {"git": "git", "cmake": "cmake", "ninja": "ninja", "c++": "gcc", "nvcc": "cuda"},
    ),
    "brew": ("brew install", {"git": "git", "cmake": "cmake", "ninja": "ninja"}),
    "winget": (
        "winget install",
        {
            "git": "Git.Git",
            "cmake": "Kitware.CMake",
            "ninja": "Ninja-build.Ninja",
            "c++": "Microsoft.VisualStudio.2022.BuildTools",
            "nvcc": "Nvidia.CUDA",
        },
    ),
}

#: what Homebrew has no package for
_NO_PACKAGE = {"c++": "xcode-select --install", "nvcc": "CUDA does not exist for macOS: build the cpu preset"}

#: C++ compilers by name, best first, each with the C compiler that belongs to it
_COMPILERS = (("c++", "cc"), ("g++", "gcc"), ("clang++", "clang"), ("cl", "cl"))


@dataclass(frozen=True)
class Tool:
    """One program: where it is and what it says of itself."""

    path: Path
    version: str


@dataclass(frozen=True)
class Toolchain:
    """What one build runs. `ccache` and `nvcc` are None when absent or not asked for."""

    cmake: Tool
    ninja: Tool
    cc: Path
    cxx: Tool
    ccache: Tool | None
    nvcc: Tool | None


def version_numbers(text: str) -> tuple[int, ...]:
    """The first dotted number in `text`, as a tuple; empty when there is none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def interpreter_bin() -> Path:
    """Where pip puts programs (`cmake`, `ninja`) of the running interpreter."""
    return Path(sys.prefix) / ("Scripts" if os.name == "nt" else "bin")


def _say_version(path: str) -> str:
    """The first line with a version that a program prints; "unknown" when it prints none or does not run."""
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = (run.stdout + run.stderr).splitlines()
    release = next((line for line in lines if re.search(r"release \d+\.\d+", line)), "")  # nvcc's fourth line
    return (release or next((line for line in lines if version_numbers(line)), "unknown")).strip()


def _places(names: tuple[str, ...], extra: list[Path]) -> list[str]:
    """Each of `names` on PATH, then in the `extra` folders."""
    found = [shutil.which(name) for name in names]
    found += [shutil.which(name, path=str(folder)) for folder in extra for name in names]
    return [path for path in found if path]


def _find(names: tuple[str, ...], extra: list[Path], minimum: tuple[int, ...] = ()) -> Tool | None:
    for path in _places(names, extra):
        version = _say_version(path)
        if version_numbers(version) >= minimum:
            return Tool(Path(path), version)
    return None


def _find_compiler(env: Mapping[str, str]) -> tuple[Tool, Path] | None:
    """The C++ compiler and its C compiler: CXX and CC when set (their first word), else the first pair on PATH."""
    chosen = [shlex.split(env[name], posix=os.name != "nt")[0] if env.get(name) else "" for name in ("CXX", "CC")]
    pairs = ((chosen[0], ""),) if chosen[0] else _COMPILERS
    for cxx_name, cc_name in pairs:
        partner = cc_name or dict(_COMPILERS).get(Path(cxx_name).stem, "cc")
        cxx, cc = shutil.which(cxx_name), shutil.which(chosen[1] or partner)
        if cxx and cc:
            return Tool(Path(cxx), _say_version(cxx)), Path(cc)
    return None


def _cuda_folders(env: Mapping[str, str]) -> list[Path]:
    homes = [env[name] for name in ("CUDA_PATH", "CUDA_HOME") if env.get(name)]
    return [Path(home) / "bin" for home in [*homes, "/usr/local/cuda", "/opt/cuda"]]


def install_hint(missing: list[str]) -> str:
    """One line that installs `missing` (names as in the table) with this system's package manager."""
    for manager, (command, packages) in _INSTALLERS.items():
        if shutil.which(manager):
            known = [packages[tool] for tool in missing if tool in packages]
            unknown = [tool for tool in missing if tool not in packages]
            parts = [f"{command} {' '.join(known)}"] if known else []
            return "; ".join(parts + [_NO_PACKAGE.get(tool, f"install {tool} by hand") for tool in unknown])
    pip = [tool for tool in missing if tool in ("cmake", "ninja")]
    rest = ["a C++ compiler" if tool == "c++" else tool for tool in missing if tool not in pip]
    parts = [f"{sys.executable} -m pip install {' '.join(pip)}"] if pip else []
    them = "it" if len(rest) == 1 else "them"
    return "; ".join(parts + ([f"install {', '.join(rest)} and put {them} on PATH"] if rest else []))


def find_toolchain(*, cuda: bool, cmake_minimum: tuple[int, ...] = CMAKE_MINIMUM) -> Toolchain:
    """Find git, cmake, ninja, the compilers, ccache (optional) and, for `cuda`, nvcc.

    Looks on PATH, then in the running interpreter's folder; CXX, CC and CUDACXX are heard. Raises MissingError that
    names every missing tool and the line that installs them.
    """
    env = os.environ
    own = [interpreter_bin()]
    git = _find(("git",), [])
    cmake = _find(("cmake",), own, cmake_minimum)
    ninja = _find(("ninja", "ninja-build"), own)
    compiler = _find_compiler(env)
    nvcc_names = (env["CUDACXX"],) if env.get("CUDACXX") else ("nvcc",)
    nvcc = _find(nvcc_names, _cuda_folders(env)) if cuda else None
    there = {"git": git, "cmake": cmake, "ninja": ninja, "c++": compiler, **({"nvcc": nvcc} if cuda else {})}
    missing = [name for name, tool in there.items() if tool is None]
    if cmake is None or ninja is None or compiler is None or missing:
        wanted = ".".join(map(str, cmake_minimum))
        words = {"cmake": f"cmake ({wanted} or later)", "c++": "a C++ compiler", "nvcc": "nvcc (the CUDA toolkit)"}
        raise MissingError(
            "the build needs what this PC lacks: " + ", ".join(words.get(name, name) for name in missing),
            install_hint(missing),
        )
    return Toolchain(cmake, ninja, compiler[1], compiler[0], _find(("ccache",), []), nvcc)


def require_gpu() -> None:
    """Raise MissingError when no NVIDIA GPU answers: without one there is nothing to choose an architecture by."""
    pynvml = importlib.import_module("pynvml")  # it has no types
    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        count = 0
    if count == 0:
        raise MissingError(
            "no NVIDIA GPU answers, so the architecture to build for is unknown",
            "name it: --cuda-arch 89 (Ada), 86 (Ampere), 120 (Blackwell), 90 (Hopper)",
        )
