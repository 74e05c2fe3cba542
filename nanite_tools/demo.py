"""From a fresh clone to an answer, step by step; each step calls a function that skips what is done already."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nanite_tools import launcher
from nanite_tools.demo_figures import Figures, read_figures, since
from nanite_tools.errors import DegradedError
from nanite_tools.launch_line import Wish
from nanite_tools.paths import Layout

if TYPE_CHECKING:
    from nanite_tools.topology import Topology

PROMPT = "And the LORD said unto Moses"
N_PREDICT = 48
READY_S = 300.0

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """One finished step: its name, what came of it in one line, how long it took."""

    name: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Answer:
    """What POST /completion gave; the rates are the server's own timings, 0 when it gives none."""

    prompt: str
    text: str
    n_prompt_tokens: int
    n_tokens: int
    prompt_per_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Demo:
    """The whole run. `nanite` is the document of GET /nanite after the answer, less what the start counted."""

    steps: tuple[Step, ...]
    answer: Answer
    figures: Figures
    nanite: dict[str, Any]
    model: Topology
    running: launcher.Running


class _Steps:
    """Runs steps one after another, tells about each, and keeps what they were and how long they took."""

    def __init__(self, say: Say, total: int) -> None:
        self.done: list[Step] = []
        self._say = say
        self._total = total

    def run(self, name: str, work: Callable[[], T], describe: Callable[[T], str]) -> T:
        number = len(self.done) + 1
        self._say(f"[{number}/{self._total}] {name} …")
        started = time.monotonic()
        result = work()
        step = Step(name, describe(result), time.monotonic() - started)
        self.done.append(step)
        self._say(f"[{number}/{self._total}] {name}: {step.detail} ({step.seconds:.1f} s)")
        return result


def run(
    layout: Layout,
    *,
    prompt: str = PROMPT,
    n_predict: int = N_PREDICT,
    source_dir: Path | None = None,
    log: Path | None = None,
    say: Say,
) -> Demo:
    """Source, patches, build, inspect, launch, answer, counters. The caller ends `running.server`.

    Call it inside `stop_signals()`. Raises each step's own errors, and DegradedError when no route went through Nanite
    or when it missed a routed layer; the server is ended then. Calling it again goes on where it stopped.
    """
    from nanite_tools import builder, patchset, source, topology

    steps = _Steps(say, total=7)
    steps.run(
        "source",
        lambda: source.ensure_source(layout, source_dir=source_dir, say=say),
        lambda info: f"llama.cpp {info.commit[:12]} ({info.how})",
    )
    steps.run(
        "patches",
        lambda: patchset.apply(layout, say=say),
        lambda stamp: f"{len(stamp.patches)} hook patches and the overlay on {stamp.pin[:12]}",
    )
    built = steps.run(
        "build",
        lambda: builder.build(layout, "cpu", source_dir=source_dir, say=say),
        lambda result: f"{'up to date' if result.up_to_date else 'built'}: {result.bin_dir}",
    )
    model = steps.run(
        "inspect",
        lambda: topology.inspect_model(layout.embedded_model),
        lambda model: (
            f"{model.arch}, {len(model.routed_layers)} routed layers of {model.n_experts} experts,"
            f" {model.n_experts_used} used for a token"
        ),
    )
    wish = Wish(layout.embedded_model, mode="observe", port=0)
    running = steps.run(
        "launch",
        lambda: launcher.start(
            launcher.prepare(wish, built.bin_dir), log=log, wait_s=READY_S, tick=lambda server, seconds: None
        ),
        lambda running: f"{running.server.api.url}, pid {running.server.pid}, log {running.server.log}",
    )
    try:
        api = running.server.api
        answer = steps.run(
            "answer",
            lambda: _answer(prompt, api.completion(prompt, n_predict)),
            lambda answer: f"{answer.n_tokens} tokens after a prompt of {answer.n_prompt_tokens}",
        )
        nanite = steps.run(
            "counters",
            lambda: since(api.nanite() or {}, running.verdict.document or {}),
            lambda document: f"mode {document.get('mode')}",
        )
        figures = read_figures(nanite, model)
        if figures.problem:
            raise DegradedError(figures.problem, f"the server's log: {running.server.log}")
        return Demo(tuple(steps.done), answer, figures, nanite, model, running)
    except BaseException:
        running.server.stop()
        raise


def _answer(prompt: str, document: dict[str, Any]) -> Answer:
    timings = document.get("timings") or {}
    return Answer(
        prompt=prompt,
        text=document["content"],
        n_prompt_tokens=int(document.get("tokens_evaluated", 0)),
        n_tokens=int(document.get("tokens_predicted", 0)),
        prompt_per_s=float(timings.get("prompt_per_second", 0.0)),
        tokens_per_s=float(timings.get("predicted_per_second", 0.0)),
    )


def document(demo: Demo) -> dict[str, Any]:
    """The JSON result, schema 1."""
    from dataclasses import asdict

    return {
        "schema": 1,
        "steps": [asdict(step) for step in demo.steps],
        "seconds": sum(step.seconds for step in demo.steps),
        "model": demo.model.path,
        "answer": asdict(demo.answer),
        "figures": asdict(demo.figures),
        "nanite": demo.nanite,
        "url": demo.running.server.api.url,
        "log": str(demo.running.server.log),
    }
