"""The prepared tree: the pin, the hook patches, the overlay, and a stamp that says which of each it holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanite_tools import overlay, paths
from nanite_tools.errors import BuildError, NaniteError
from nanite_tools.git import locked, require_git, run_fixed
from nanite_tools.overlay import write_atomic
from nanite_tools.paths import Layout
from nanite_tools.prepared_tree import (
    apply_mails,
    changed_between,
    finish_move,
    move_tree,
    open_tree,
    scratch_repository,
    tree_paths,
    tree_state,
    unfinished_move,
)
from nanite_tools.series import Series, read_series
from nanite_tools.submodule import inspect_submodule

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stamp:
    """What a prepared tree holds: the pin, slug → sha256 of each patch in order, the overlay's sha256, its HEAD."""

    pin: str
    patches: dict[str, str]
    overlay: str
    head: str


def read_stamp(tree: Path) -> Stamp | None:
    """The stamp of a prepared tree; None when it has none that can be read."""
    try:
        value = json.loads((tree / ".git" / "nanite-stamp.json").read_text(encoding="utf-8"))
        patches = {str(slug): str(sha256) for slug, sha256 in value["patches"].items()}
        return Stamp(str(value["pin"]), patches, str(value["overlay"]), str(value["head"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_stamp(tree: Path, stamp: Stamp) -> None:
    """Write the stamp in one step."""
    value = {"schema": 1, "pin": stamp.pin, "patches": stamp.patches, "overlay": stamp.overlay, "head": stamp.head}
    write_atomic(tree / ".git" / "nanite-stamp.json", json.dumps(value, indent=1).encode())


def is_current(layout: Layout, pin: str | None = None) -> bool:
    """Whether the prepared tree is what `apply` would make now; False for any doubt, and raises nothing."""
    try:
        return state_of(layout, pin)[0] == "current"
    except NaniteError:
        return False


def state_of(layout: Layout, pin: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The prepared tree's state (`absent`, `current`, `stale`, `dirty`), and what is dirty in it, one line each."""
    pin, tree = pin or paths.UPSTREAM_PIN, layout.src
    if not tree.is_dir() or not any(tree.iterdir()):
        return "absent", ()
    files = overlay.scan(layout.overlay)
    dirt = find_dirt(tree, files)
    if dirt:
        return "dirty", tuple(dirt)
    stamp, series = read_stamp(tree), read_series(layout.patches)
    resting = unfinished_move(tree) is None and not any((tree / ".git").glob("rebase-*"))
    same = stamp is not None and _matches(stamp, pin, series) and stamp.overlay == overlay.digest(files)
    return ("current" if same and resting and not series.problems else "stale"), ()


def find_dirt(tree: Path, overlay_files: dict[str, str]) -> list[str]:
    """What in the tree is not ours: edited or new files, commits, overlay files edited in place. One line each."""
    if not (tree / ".git").is_dir():
        return ["it has files but is no prepared tree"]
    try:
        state = tree_state(tree)
    except BuildError as error:
        return [f"its git data cannot be read ({error.message})"]
    stamp, between = read_stamp(tree), unfinished_move(tree)
    changes = [(how, path) for how, path in state.changes if not same_as_overlay(tree, path, overlay_files)]
    if between is not None:
        old, new = between
        ours = changed_between(tree, old, new) if old else None
        dirt = [f"{how}: {path}" for how, path in changes if ours is not None and path not in ours]
        if old and state.head not in (old, new):
            dirt.insert(0, f"commits that no patch holds: HEAD is {state.head[:12]}")
    elif stamp is None:
        return ["it has no stamp"] if state.head or changes else []
    else:
        dirt = [f"{how}: {path}" for how, path in changes]
        if state.head != stamp.head:
            dirt.insert(0, f"commits that no patch holds: HEAD is {state.head[:12]}, not {stamp.head[:12]}")
    changed, deleted = overlay.edited(tree, overlay_files)
    dirt += [f"changed: {path} (overlay)" for path in changed]
    dirt += [f"deleted: {path} (overlay)" for path in deleted]
    return dirt


def apply(layout: Layout, *, discard: bool = False, say: Say, pin: str | None = None) -> Stamp:
    """Bring `layout.src` to the pin, the patches and the overlay; files whose content stays keep their time stamps.

    The submodule must be ready (`source.ensure_source`). Does nothing when the tree is current. `discard` drops what
    was edited in the tree. Raises BuildError: the submodule is not ready, the series is wrong, patches do not apply
    (all of them are named), an overlay path is upstream's, or the tree is dirty.
    """
    require_git()
    pin, tree = pin or paths.UPSTREAM_PIN, layout.src
    with locked(layout.build / ".src.lock", lambda: say("waiting for another nanite-tools run to end")):
        series = _sound_series(layout)
        files = overlay.scan(layout.overlay)
        _require_submodule(layout, pin)
        if discard and tree.is_dir() and (not (tree / ".git").is_dir() or _unreadable(tree)):
            say(f"patches: {tree} is not a prepared tree, removing it")
            shutil.rmtree(tree)
        if (tree / ".git").is_dir():
            open_tree(tree, layout.submodule)
        state, dirt = state_of(layout, pin)
        stamp = read_stamp(tree)
        if state == "current" and stamp is not None:
            return stamp
        if dirt and not discard:
            raise dirty_error(tree, list(dirt))
        open_tree(tree, layout.submodule)
        head, old = _head_for(layout, series, pin, say), tree_state(tree).head
        if bad := overlay.collisions(files, tree_paths(tree, head)):
            raise BuildError(
                f"overlay files at paths that the patched upstream tree has already: {', '.join(bad)}",
                "move them to new paths in patches/overlay",
            )
        left_over = bool(dirt) or unfinished_move(tree) is not None
        move_tree(tree, old, head)
        if left_over:
            run_fixed(tree, "clean", "-ffdq")
        count = overlay.sync(layout.overlay, files, tree)
        stamp = Stamp(pin, {patch.slug: patch.sha256 for patch in series.patches}, overlay.digest(files), head)
        write_stamp(tree, stamp)
        finish_move(tree)
    say(f"patches: {len(series.patches)} applied, {len(files)} overlay files ({count} written): {head[:12]}")
    return stamp


def prepare_stock(layout: Layout, say: Say, pin: str | None = None) -> str:
    """Check the pin out, unpatched, in `layout.stock/"src"`; returns its commit. Raises BuildError when it is dirty."""
    require_git()
    pin, tree = pin or paths.UPSTREAM_PIN, layout.stock / "src"
    with locked(layout.build / ".src.lock", lambda: say("waiting for another nanite-tools run to end")):
        _require_submodule(layout, pin)
        open_tree(tree, layout.submodule)
        state = tree_state(tree)
        if state.head == pin and not state.changes and unfinished_move(tree) is None:
            return pin
        if not (state.changes and state.head) or unfinished_move(tree) is not None:
            move_tree(tree, state.head, pin)
            state = tree_state(tree)
        if state.changes:
            raise BuildError(
                f"{tree} must stay as upstream made it: {_listing([f'{how}: {path}' for how, path in state.changes])}",
                f"delete {tree} and run this again",
            )
        finish_move(tree)
    say(f"patches: stock tree at {pin[:12]}")
    return pin


def dirty_error(tree: Path, dirt: list[str]) -> BuildError:
    """The error for a tree with a person's work in it."""
    return BuildError(
        f"{tree} holds changes that are not in patches/: {_listing(dirt)}",
        "keep them with `nanite-tools patches export` (commit edits of upstream files first), or drop them with "
        "`nanite-tools patches apply --discard`",
    )


def _head_for(layout: Layout, series: Series, pin: str, say: Say) -> str:
    """The commit of the pin with the patches; made in a scratch repository, stored in the prepared tree."""
    stamp, tree = read_stamp(layout.src), layout.src
    if stamp is not None and _matches(stamp, pin, series):
        return stamp.head
    say(f"patches: applying {len(series.patches)} on {pin[:12]}")
    with scratch_repository(layout.build) as scratch:
        if (tree / ".git" / "shallow").is_file():
            shutil.copyfile(tree / ".git" / "shallow", scratch / ".git" / "shallow")
        head, failed = apply_mails(scratch, pin, series.patches, (tree / ".git" / "objects").absolute())
    if failed:
        lines = "; ".join(f"{slug} ({reason})" for slug, reason in failed.items())
        raise BuildError(f"patches that do not apply on {pin[:12]}: {lines}", "see `nanite-tools patches verify`")
    return head


def _matches(stamp: Stamp, pin: str, series: Series) -> bool:
    """Whether the stamp is of this pin and of these patches in this order."""
    return stamp.pin == pin and list(stamp.patches.items()) == [(p.slug, p.sha256) for p in series.patches]


def _sound_series(layout: Layout) -> Series:
    series = read_series(layout.patches)
    if series.problems:
        raise BuildError(f"the patch series is not sound: {'; '.join(series.problems)}", "mend it in patches/")
    return series


def _require_submodule(layout: Layout, pin: str) -> None:
    state = inspect_submodule(layout, pin)
    if state.kind != "ready":
        raise BuildError(
            f"the submodule {layout.submodule} is not upstream at {pin[:12]}: {state.why}",
            "run `nanite-tools patches apply` or `nanite-tools build`, which fetch and check it",
        )


def _unreadable(tree: Path) -> bool:
    try:
        tree_state(tree)
    except BuildError:
        return True
    return False


def same_as_overlay(tree: Path, path: str, overlay_files: dict[str, str]) -> bool:
    """Whether the tree's file at `path` is what the overlay has for it now."""
    target = tree / path
    return path in overlay_files and target.is_file() and overlay.file_sha256(target) == overlay_files[path]


def _listing(lines: list[str]) -> str:
    more = f" and {len(lines) - 12} more" if len(lines) > 12 else ""
    return ", ".join(lines[:12]) + more
