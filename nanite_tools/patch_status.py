"""What `patches status` says: the pin, the submodule, the prepared tree, each patch, the budget."""

from __future__ import annotations

from dataclasses import dataclass

from nanite_tools import paths
from nanite_tools.git import require_git
from nanite_tools.patchset import read_stamp, state_of
from nanite_tools.paths import Layout
from nanite_tools.series import MAX_ADDED_LINES, MAX_PATCHES, budget_problems, read_series
from nanite_tools.submodule import inspect_submodule


@dataclass(frozen=True)
class SubmoduleStatus:
    """A kind of `submodule.Submodule`, its commit (empty: none) and why it is not ready."""

    state: str
    commit: str
    why: str


@dataclass(frozen=True)
class TreeStatus:
    """absent, current, stale or dirty; what is dirty in it."""

    state: str
    path: str
    head: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class PatchStatus:
    """One patch of the series, and whether the prepared tree holds it as it is now."""

    slug: str
    sha256: str
    subject: str
    files: tuple[str, ...]
    added_lines: int
    applied: bool


@dataclass(frozen=True)
class Budget:
    """Patches and added lines, and how many there may be."""

    patches: int
    max_patches: int
    added_lines: int
    max_added_lines: int


@dataclass(frozen=True)
class Status:
    """The whole of it; `problems` are the faults of the series, one line each."""

    pin: str
    submodule: SubmoduleStatus
    tree: TreeStatus
    patches: tuple[PatchStatus, ...]
    budget: Budget
    problems: tuple[str, ...]


def status(layout: Layout, pin: str | None = None) -> Status:
    """Look at everything, change nothing. Raises MissingError without git, BuildError without a series."""
    require_git()
    pin = pin or paths.UPSTREAM_PIN
    submodule = inspect_submodule(layout, pin)
    state, changes = state_of(layout, pin)
    series, stamp = read_series(layout.patches), read_stamp(layout.src)
    applied = stamp.patches if stamp else {}
    patches = tuple(
        PatchStatus(p.slug, p.sha256, p.subject, p.files, p.added_lines, applied.get(p.slug) == p.sha256)
        for p in series.patches
    )
    return Status(
        pin,
        SubmoduleStatus(submodule.kind, submodule.head, submodule.why),
        TreeStatus(state, str(layout.src), stamp.head if stamp else "", changes),
        patches,
        Budget(len(patches), MAX_PATCHES, series.added_lines, MAX_ADDED_LINES),
        (*series.problems, *budget_problems(series)),
    )
