"""Build the `llama-server` line for this PC: a pure function of model, machine, the binary's flags and the wish.

CPU only for now. Every word, ours and the user's, is checked against the binary's own flags before it is returned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nanite_tools.errors import DegradedError, MissingError, UsageError
from nanite_tools.server_flags import FlagTable, Use

#: The context that a launch gets unless one is asked for, in tokens; less when the model was trained on less.
DEFAULT_CTX = 8192
MODES = ("off", "observe")
#: Options that place work on a GPU, by their long names; the values that ask for none are harmless without one.
_GPU_FLAGS = (
    *("--n-gpu-layers", "--device", "--split-mode", "--tensor-split", "--main-gpu", "--n-cpu-moe", "--cpu-moe"),
    *("--n-cpu-ffn", "--spec-draft-ngl", "--spec-draft-device", "--spec-draft-cpu-moe", "--spec-draft-n-cpu-moe"),
)
_NO_GPU_VALUES = ("0", "none")
#: Options with which we could not ask the server over plain HTTP how it is: such a line is printed, never run.
UNREACHABLE = ("--ssl-key-file", "--ssl-cert-file", "--api-key-file")


class Model(Protocol):
    """What the line needs to know of a model; `nanite_tools.topology` gives it."""

    @property
    def arch(self) -> str: ...
    @property
    def n_experts(self) -> int: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def routed_layers(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Machine:
    """What the line needs to know of this PC: cores that this process may use, and GPUs that the binary sees."""

    physical_cores: int
    logical_cores: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wish:
    """What the user asked for; None and `auto` let us choose. `extra`: flags for llama-server, as typed after `--`."""

    model_path: Path
    mode: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8080
    ctx: int | None = None
    threads: int | None = None
    parallel: int | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchLine:
    """The line, the mode that it runs in, what was chosen and why, and where the server will answer."""

    argv: tuple[str, ...]
    mode: str
    mode_reason: str
    notes: tuple[str, ...]
    api_prefix: str
    api_key: str
    unreachable: tuple[str, ...]


def this_machine(gpus: Sequence[str]) -> Machine:
    """Cores of this PC, no more than this process may run on."""
    import psutil

    logical = psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return Machine(max(1, min(psutil.cpu_count(logical=False) or logical, allowed)), logical, tuple(gpus))


def choose_mode(wished: str, model: Model, flags: FlagTable) -> tuple[str, str]:
    """The mode and why. Raises DegradedError for `observe` on a dense model, MissingError on a stock binary."""
    ours = flags.find("--nanite") is not None
    if not model.routed_layers:
        if wished == "observe":
            raise DegradedError(
                f"{model.arch}: a dense model, it has no routed experts to observe", "leave --mode out, or --mode off"
            )
        return "off", "a dense model: no routed experts, nothing for Nanite to do"
    if wished == "off":
        return "off", "asked for"
    if not ours:
        raise MissingError(
            "this llama-server has no --nanite: it is a stock build",
            "`nanite-tools build` makes ours; --mode off runs this one as it is",
        )
    why = "asked for" if wished == "observe" else f"{len(model.routed_layers)} routed layers"
    return "observe", f"{why}: counts routes, the answer stays byte-identical to stock with --no-repack"


def build_line(binary: Path, flags: FlagTable, model: Model, machine: Machine, wish: Wish) -> LaunchLine:
    """The checked line. Raises UsageError, MissingError or DegradedError with a hint; see `choose_mode`."""
    mode, mode_reason = choose_mode(wish.mode, model, flags)
    extra = flags.read(wish.extra)
    given = {name: use for use in extra for name in use.flag.names}
    for name, option in (("--model", "MODEL"), ("--host", "--host"), ("--port", "--port"), ("--nanite", "--mode")):
        if name in given:
            raise UsageError(f"{given[name].name} after -- would fight our own", f"give {option} before the --")
    if mode == "observe" and "--repack" in given and not given["--repack"].name.startswith(("-nr", "--no")):
        raise UsageError("--repack changes the arithmetic that observe promises to keep", "use --mode off with it")
    notes = _gpu_check(extra, machine)

    ours: list[list[str]] = [["--model", str(wish.model_path)], ["--host", wish.host], ["--port", str(wish.port)]]
    ctx = min(model.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
    for name, wished, chosen, why in (
        ("--ctx-size", wish.ctx, ctx, f"the smaller of {DEFAULT_CTX} and the {model.n_ctx_train} of training"),
        ("--threads", wish.threads, machine.physical_cores, "one for each physical core that may be used"),
        ("--parallel", wish.parallel, 1, "one request at a time has the whole context"),
    ):
        if name in given and wished is not None:
            raise UsageError(f"{name} is given twice, before and after the --", "keep one of them")
        if name in given:
            continue
        ours.append([name, str(chosen if wished is None else wished)])
        if wished is None:
            notes.append(f"{name} {chosen}: {why}")
    if wish.ctx is not None and 0 < model.n_ctx_train < wish.ctx:
        notes.append(f"--ctx-size {wish.ctx} is more than the {model.n_ctx_train} tokens of the model's training")
    if wish.threads is not None and wish.threads > machine.logical_cores:
        notes.append(f"--threads {wish.threads} is more than the {machine.logical_cores} logical cores: slower")
    if flags.find("--nanite") is not None:
        ours.append(["--nanite", mode])
    if mode == "observe" and "--repack" not in given:
        ours.append(["--no-repack"])

    words = [word for option in ours for word in option]
    flags.read(words)
    return LaunchLine(
        argv=(str(binary), *words, *wish.extra),
        mode=mode,
        mode_reason=mode_reason,
        notes=tuple(notes),
        api_prefix=_value(given, "--api-prefix").rstrip("/"),
        api_key=_value(given, "--api-key").split(",")[0],
        unreachable=tuple(name for name in UNREACHABLE if name in given),
    )


def _value(given: Mapping[str, Use], name: str) -> str:
    return given[name].values[0] if name in given else ""


def _gpu_check(extra: Sequence[Use], machine: Machine) -> list[str]:
    """Refuse options that place work on a GPU where the binary sees none; say so where this version does not plan."""
    asked = [use for use in extra if not set(_GPU_FLAGS).isdisjoint(use.flag.names)]
    asked = [use for use in asked if not (use.values and use.values[0] in _NO_GPU_VALUES)]
    if not asked:
        return []
    words = " ".join(asked[0].argv)
    if not machine.gpus:
        raise MissingError(
            f"{words}: this llama-server sees no GPU on this PC",
            "leave it out; with a GPU here, a build that supports it is missing",
        )
    return [f"{words}: passed on as it is; experts on a GPU are outside Nanite's reach"]


def environment_notes(environ: Mapping[str, str]) -> list[str]:
    """Variables that llama-server reads beside its line; they change what runs, so they are named."""
    names = sorted(n for n in environ if n.startswith(("LLAMA_ARG_", "NANITE_MODE", "GGML_BACKEND_PATH")))
    return [f"{', '.join(names)} in the environment also reach llama-server"] if names else []
