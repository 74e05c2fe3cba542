"""Shared by the tests that run built binaries: the prompts, the environment, and what to do when a build is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

PROMPTS = sorted((Path(__file__).parent / "prompts").glob("*.txt"))

#: complete(bin_dir, prompt_file, n_predict, threads, *flags, env=…) -> what llama-completion prints, greedy
Complete = Callable[..., bytes]


def missing(what: str, how: str) -> None:
    """Skip with a reason; fail where everything has to be there (`ci/run.sh` sets NANITE_REQUIRE_BUILDS)."""
    reason = f"{what} is not built: {how}"
    if os.environ.get("NANITE_REQUIRE_BUILDS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without anything that steers llama.cpp or Nanite, plus `extra`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NANITE_", "LLAMA_", "GGML_"))}
    return {**kept, **extra}
