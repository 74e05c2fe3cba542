"""What CMake is told: the presets, the compilers, the environment. Pure functions of their arguments, but for jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from nanite_tools.errors import UsageError
from nanite_tools.toolchain import Toolchain

#: builds the C++ tests of the backend
TESTS_TARGET = "nanite-tests"
TESTS_ON = "-DNANITE_BUILD_TESTS=ON"
#: what every preset but `asan` builds
PROGRAMS = ("llama-server", "llama-completion", "llama-bench", "llama-perplexity")

_SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
_COMMON = (
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_CCACHE=OFF",  # ours is the compiler launcher
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_UI=OFF",
)
_MODULE = ("-DGGML_BACKEND_DL=ON", "-DGGML_NATIVE=OFF", "-DGGML_CPU_ALL_VARIANTS=OFF")
#: preset -> its own CMake flags
PRESETS: dict[str, tuple[str, ...]] = {
    "cpu": ("-DCMAKE_BUILD_TYPE=Release",),
    "cuda": ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_CUDA=ON"),
    "debug": ("-DCMAKE_BUILD_TYPE=Debug",),
    "asan": (
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DGGML_OPENMP=OFF",
        f"-DCMAKE_C_FLAGS={_SANITIZE}",
        f"-DCMAKE_CXX_FLAGS={_SANITIZE}",
        *(f"-DCMAKE_{kind}_LINKER_FLAGS={_SANITIZE}" for kind in ("EXE", "SHARED", "MODULE")),
    ),
}
_ARCHITECTURE = re.compile(r"native|all|all-major|\d{2,3}[a-z]?(-real|-virtual)?")
#: flags that CMake reads from the environment when it first runs
_HEARD = ("CFLAGS", "CXXFLAGS", "CUDAFLAGS", "LDFLAGS")


def cuda_architectures(text: str | None) -> str:
    """`--cuda-arch` as CMake wants it: `86,90` → `86;90`, nothing → `native`. UsageError for anything else."""
    parts = [part.strip() for part in re.split("[;,]", text or "native")]
    for part in parts:
        if not _ARCHITECTURE.fullmatch(part):
            raise UsageError(f"not a CUDA architecture: {part!r}", "a list such as 86,90, or native, all, all-major")
    return ";".join(parts)


def compiler_flags(tools: Toolchain) -> tuple[str, ...]:
    """ninja, the compilers, and ccache before each of them when there is one."""
    flags = [f"-DCMAKE_MAKE_PROGRAM={tools.ninja.path}"]
    flags += [f"-DCMAKE_C_COMPILER={tools.cc}", f"-DCMAKE_CXX_COMPILER={tools.cxx.path}"]
    languages = ["C", "CXX"]
    if tools.nvcc:
        flags.append(f"-DCMAKE_CUDA_COMPILER={tools.nvcc.path}")
        languages.append("CUDA")
    if tools.ccache:
        flags += [f"-DCMAKE_{language}_COMPILER_LAUNCHER={tools.ccache.path}" for language in languages]
    return tuple(flags)


def llama_flags(
    preset: str, tools: Toolchain, *, module: bool = False, tests: bool = False, architectures: str = "native"
) -> tuple[str, ...]:
    """Every `-D` of a llama.cpp build, in a fixed order. `architectures` counts only when `tools` holds nvcc."""
    flags = [*PRESETS[preset], *_COMMON]
    flags += [f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"] if tools.nvcc else []
    flags += _MODULE if module else ()
    flags += [TESTS_ON] if tests else []
    return (*flags, *compiler_flags(tools))


def module_flags(preset: str, tools: Toolchain, upstream_src: Path, upstream_build: Path) -> tuple[str, ...]:
    """Every `-D` of the Nanite module that is built alone, for an unpatched llama.cpp build."""
    where = (f"-DNANITE_UPSTREAM_SRC={upstream_src}", f"-DNANITE_UPSTREAM_BUILD={upstream_build}")
    own = tuple(flag for flag in PRESETS[preset] if flag.startswith("-DCMAKE_"))
    return (*own, *where, *compiler_flags(tools))


def build_environment(build: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of cmake and ninja. ccache sees paths relative to `build`, the parent of sources and binary
    folders, so that stock and patched builds share objects; a git hook's GIT_* does not reach upstream's git calls."""
    ours = {"CCACHE_BASEDIR": str(build), "CCACHE_NOHASHDIR": "1", "CCACHE_SLOPPINESS": "time_macros"}
    return {name: value for name, value in inherited.items() if not name.startswith("GIT_")} | ours


def heard_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that change what CMake configures."""
    return {name: env[name] for name in _HEARD if env.get(name)}


def default_jobs() -> int:
    """Parallel compilers: one a core, and 1.5 GiB of free memory for each; at least one."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return jobs_for(cores, psutil.virtual_memory().available)


def jobs_for(cores: int, available_bytes: int) -> int:
    """The rule of `default_jobs`, on given numbers."""
    return max(1, min(cores, int(available_bytes / 2**30 / 1.5)))
