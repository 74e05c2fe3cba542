"""What CMake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanite_tools.cmake_flags import (
    PRESETS,
    build_environment,
    cuda_architectures,
    heard_environment,
    jobs_for,
    llama_flags,
    module_flags,
)
from nanite_tools.errors import UsageError
from nanite_tools.toolchain import Tool, Toolchain


def tools(*, ccache: bool = True, nvcc: bool = False) -> Toolchain:
    return Toolchain(
        cmake=Tool(Path("/bin/cmake"), "3.25"),
        ninja=Tool(Path("/bin/ninja"), "1.11"),
        cc=Path("/bin/cc"),
        cxx=Tool(Path("/bin/c++"), "12"),
        ccache=Tool(Path("/bin/ccache"), "4.7") if ccache else None,
        nvcc=Tool(Path("/cuda/nvcc"), "13.0") if nvcc else None,
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_fetches_or_embeds_what_we_do_not_use(preset: str) -> None:
    flags = llama_flags(preset, tools())
    for name in ("OPENSSL", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP", "USE_PREBUILT_UI", "BUILD_UI"):
        assert f"-DLLAMA_{name}=OFF" in flags
    assert "-DBUILD_SHARED_LIBS=ON" in flags
    assert len({flag.partition("=")[0] for flag in flags}) == len(flags), "a flag is given twice"


def test_release_debug_and_sanitizers() -> None:
    assert "-DCMAKE_BUILD_TYPE=Release" in llama_flags("cpu", tools())
    assert "-DCMAKE_BUILD_TYPE=Debug" in llama_flags("debug", tools())
    asan = llama_flags("asan", tools())
    assert "-DGGML_OPENMP=OFF" in asan
    for name in ("C_FLAGS", "CXX_FLAGS", "EXE_LINKER_FLAGS", "SHARED_LINKER_FLAGS", "MODULE_LINKER_FLAGS"):
        value = next(flag for flag in asan if flag.startswith(f"-DCMAKE_{name}=")).partition("=")[2]
        assert "-fsanitize=address,undefined" in value
        assert "-fno-sanitize-recover=undefined" in value  # else a finding prints and the test passes


def test_module_needs_a_portable_cpu_backend() -> None:
    plain, module = llama_flags("cpu", tools()), llama_flags("cpu", tools(), module=True)
    assert set(module) - set(plain) == {"-DGGML_BACKEND_DL=ON", "-DGGML_NATIVE=OFF", "-DGGML_CPU_ALL_VARIANTS=OFF"}


def test_the_module_alone() -> None:
    flags = module_flags("asan", tools(), Path("/b/stock/src"), Path("/b/stock/asan-module"))
    assert "-DNANITE_UPSTREAM_SRC=/b/stock/src" in flags
    assert "-DNANITE_UPSTREAM_BUILD=/b/stock/asan-module" in flags
    assert "-DCMAKE_BUILD_TYPE=RelWithDebInfo" in flags
    assert not [flag for flag in flags if flag.startswith(("-DLLAMA", "-DGGML"))]


def test_cuda_flags_need_nvcc() -> None:
    flags = llama_flags("cuda", tools(nvcc=True), architectures="86;90")
    assert "-DGGML_CUDA=ON" in flags
    assert "-DCMAKE_CUDA_ARCHITECTURES=86;90" in flags
    assert "-DCMAKE_CUDA_COMPILER=/cuda/nvcc" in flags
    assert "-DCMAKE_CUDA_COMPILER_LAUNCHER=/bin/ccache" in flags
    assert not [flag for flag in llama_flags("cpu", tools()) if "CUDA" in flag]


def test_ccache_is_the_launcher_once() -> None:
    with_it = llama_flags("cpu", tools())
    without = llama_flags("cpu", tools(ccache=False))
    launchers = {"-DCMAKE_C_COMPILER_LAUNCHER=/bin/ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=/bin/ccache"}
    assert set(with_it) - set(without) == launchers
    assert "-DGGML_CCACHE=OFF" in with_it  # upstream would put a second one before it
    assert "-DGGML_CCACHE=OFF" in without


def test_environment() -> None:
    env = build_environment(
        Path("/b"), {"PATH": "/bin", "GIT_DIR": "/x/.git", "CCACHE_BASEDIR": "/mine", "CCACHE_DIR": "/c"}
    )
    assert env == {
        "PATH": "/bin",
        "CCACHE_DIR": "/c",
        "CCACHE_BASEDIR": "/b",
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_SLOPPINESS": "time_macros",
    }
    assert heard_environment({"CXXFLAGS": "-O1", "LDFLAGS": "", "HOME": "/h"}) == {"CXXFLAGS": "-O1"}


@pytest.mark.parametrize(
    ("text", "value"),
    [(None, "native"), ("90", "90"), ("86,90", "86;90"), ("86; 120a-real", "86;120a-real"), ("all-major", "all-major")],
)
def test_cuda_architectures(text: str | None, value: str) -> None:
    assert cuda_architectures(text) == value


@pytest.mark.parametrize("text", ["", "sm_90", "8.6", "90,", "90 86", "-D", "native;rm"])
def test_bad_cuda_architectures(text: str) -> None:
    if text == "":
        assert cuda_architectures(text) == "native"
        return
    with pytest.raises(UsageError, match="not a CUDA architecture"):
        cuda_architectures(text)


@pytest.mark.parametrize(
    ("cores", "gib", "jobs"),
    [(8, 64, 8), (16, 6, 4), (16, 5.9, 3), (4, 1, 1), (1, 0, 1), (2, 3, 2)],
)
def test_jobs_for(cores: int, gib: float, jobs: int) -> None:
    assert jobs_for(cores, int(gib * 2**30)) == jobs
