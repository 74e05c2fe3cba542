"""Fixtures of the tests that run built binaries: where the builds are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from runs import Complete, clean_environment, missing

from nanite_tools.paths import Layout, find_layout


@pytest.fixture(scope="session")
def layout() -> Layout:
    return find_layout()


@pytest.fixture(scope="session")
def our_bin(layout: Layout) -> Path:
    """Binaries of our own build, Nanite linked in."""
    folder = layout.build_dir("cpu") / "bin"
    if not (folder / "llama-completion").exists():
        missing("the runtime", "nanite-tools build")
    return folder


@pytest.fixture(scope="session")
def stock_bin(layout: Layout) -> Path:
    """Binaries of the unpatched pin, built with the same flags."""
    folder = layout.build_dir("cpu", stock=True) / "bin"
    if not (folder / "llama-completion").exists():
        missing("the unpatched reference", "nanite-tools build --stock")
    return folder


@pytest.fixture(scope="session")
def stock_module_bin(layout: Layout) -> Path:
    """Binaries of the unpatched pin that load backends as modules."""
    folder = layout.build_dir("cpu", stock=True, module=True) / "bin"
    if not (folder / "llama-completion").exists():
        missing("the unpatched reference with modules", "nanite-tools build --stock --module")
    return folder


@pytest.fixture(scope="session")
def nanite_module(layout: Layout, stock_module_bin: Path) -> Path:
    """Nanite as a module for that build."""
    module = stock_module_bin.parent / "nanite-module" / "libggml-nanite.so"
    if not module.exists():
        missing("the Nanite module", "nanite-tools build --stock --module")
    return module


@pytest.fixture(scope="session")
def complete(layout: Layout) -> Complete:
    """Runs llama-completion greedily, with upstream's kernels (no repacking): see runs.Complete."""

    def run(
        bin_dir: Path, prompt: Path, n_predict: int, threads: int, *flags: str, env: dict[str, str] | None = None
    ) -> bytes:
        arguments = ["-m", str(layout.embedded_model), "-f", str(prompt), "-n", str(n_predict), "-t", str(threads)]
        fixed = ["--temp", "0", "--ignore-eos", "--no-escape", "--no-repack", "--no-warmup", "-no-cnv", "--simple-io"]
        done = subprocess.run(
            [str(bin_dir / "llama-completion"), *arguments, *fixed, *flags],
            env=clean_environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
        return done.stdout

    return run
