"""The git work of a prepared tree: a repository that borrows the submodule's objects, its state, its moves.

Patches are applied by `git am` in a scratch repository that has an index but no files, and the tree then moves to the
result in one checkout. So a file whose content does not change keeps its time stamp, a conflict never reaches the tree,
and an interrupt leaves either the old commit or the new one to finish.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nanite_tools.errors import BuildError
from nanite_tools.git import run_fixed
from nanite_tools.overlay import write_atomic
from nanite_tools.series import Patch
from nanite_tools.submodule import object_store

AM = ["am", "-q", "--no-3way", "--keep-non-patch", "--keep-cr", "--no-scissors", "--patch-format=mbox"]
AM += ["--whitespace=nowarn", "--committer-date-is-author-date", "--no-gpg-sign"]


@dataclass(frozen=True)
class TreeState:
    """The commit that the tree is at (empty: none) and each file that differs from it, as (how, path)."""

    head: str
    changes: tuple[tuple[str, str], ...]


def open_tree(tree: Path, submodule: Path) -> None:
    """Make `tree` a repository that reads the submodule's objects; nothing happens to its files.

    Raises BuildError when `tree` has files but no git directory of its own.
    """
    if not (tree / ".git").is_dir():
        if tree.is_dir() and any(tree.iterdir()):
            raise BuildError(f"{tree} is not a prepared tree", "move it away, or delete it with --discard")
        tree.mkdir(parents=True, exist_ok=True)
        run_fixed(tree, "init", "-q", "--template=")
        for key, value in (("core.autocrlf", "false"), ("core.eol", "lf"), ("gc.auto", "0")):
            run_fixed(tree, "config", key, value)
    borrow(tree / ".git", submodule)


def borrow(git_dir: Path, source: Path) -> None:
    """Let the repository at `git_dir` read the objects of the one at `source`, shallow or not, without copying."""
    objects, shallow = object_store(source)
    (git_dir / "objects" / "info").mkdir(parents=True, exist_ok=True)
    alternates = git_dir / "objects" / "info" / "alternates"
    line = f"{objects.as_posix()}\n".encode()
    if not alternates.is_file() or alternates.read_bytes() != line:
        write_atomic(alternates, line)
    if shallow is not None and (
        not (git_dir / "shallow").is_file() or (git_dir / "shallow").read_bytes() != shallow.read_bytes()
    ):
        write_atomic(git_dir / "shallow", shallow.read_bytes())


def tree_state(tree: Path) -> TreeState:
    """The state of the tree, by one `git status`. Raises BuildError when its objects are gone."""
    words = ["status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=all"]
    head, changes = "", []
    for entry in run_fixed(tree, *words).out.decode("utf-8", "surrogateescape").split("\0"):
        if entry.startswith("# branch.oid "):
            head = entry.split(" ")[2].replace("(initial)", "")
        elif entry.startswith("? "):
            changes.append(("new", entry[2:]))
        elif entry.startswith("1 "):
            changes.append(("deleted" if "D" in entry[2:4] else "changed", entry.split(" ", 8)[8]))
        elif entry.startswith("u "):
            changes.append(("in conflict", entry.split(" ", 10)[10]))
    return TreeState(head, tuple(changes))


def move_tree(tree: Path, old: str, new: str) -> None:
    """Check `new` out, over what a run before may have left half done. Only files that differ are written."""
    unfinished = tree / ".git" / "nanite-unfinished"
    if unfinished.exists():
        (tree / ".git" / "index.lock").unlink(missing_ok=True)
    write_atomic(unfinished, json.dumps({"from": old, "to": new}).encode())
    for name in ("rebase-apply", "rebase-merge"):
        shutil.rmtree(tree / ".git" / name, ignore_errors=True)
    run_fixed(tree, "checkout", "-q", "--force", "--detach", new)


def finish_move(tree: Path) -> None:
    """Say that the tree is whole."""
    (tree / ".git" / "nanite-unfinished").unlink(missing_ok=True)


def unfinished_move(tree: Path) -> tuple[str, str] | None:
    """The commits (from, to) between which a run was interrupted, if one was."""
    try:
        value = json.loads((tree / ".git" / "nanite-unfinished").read_text(encoding="utf-8"))
        return str(value["from"]), str(value["to"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return "", ""


def changed_between(tree: Path, old: str, new: str) -> set[str]:
    """Paths that differ between two commits."""
    listed = run_fixed(tree, "diff", "--name-only", "-z", "--no-renames", old, new, check=False)
    return set(listed.out.decode("utf-8", "surrogateescape").split("\0")) - {""}


def tree_paths(repository: Path, commit: str) -> list[str]:
    """Every file path of a commit."""
    listed = run_fixed(repository, "ls-tree", "-r", "-z", "--name-only", commit).out
    return [path for path in listed.decode("utf-8", "surrogateescape").split("\0") if path]


@contextmanager
def scratch_repository(parent: Path, objects_of: Path | None = None) -> Iterator[Path]:
    """An empty repository in a new folder below `parent`, removed at the end.

    `objects_of`: a repository whose objects it reads. Folders that a killed run left there are removed first, so the
    caller holds a lock.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(".scratch-*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".scratch-", dir=parent))
    try:
        run_fixed(folder, "init", "-q", "--template=")
        if objects_of is not None:
            borrow(folder / ".git", objects_of)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def apply_mails(
    scratch: Path, base: str, patches: Sequence[Patch], store: Path | None = None
) -> tuple[str, dict[str, str]]:
    """`git am` each patch on `base` in the scratch repository, from the last good state.

    `store` is an object directory that the new commits are written to. Returns the last commit, and slug → reason of
    each patch that does not apply.
    """
    env = {"GIT_OBJECT_DIRECTORY": str(store)} if store is not None else {}
    run_fixed(scratch, "update-ref", "--no-deref", "HEAD", base, env=env)
    run_fixed(scratch, "read-tree", "HEAD", env=env)
    failed = {}
    for patch in patches:
        result = run_fixed(scratch, *AM, stdin=patch.mail, env=env, check=False)
        if result.code != 0:
            lines = [line[7:] for line in result.err.splitlines() if line.startswith("error: ")]
            failed[patch.slug] = "; ".join(lines) or result.reason
            shutil.rmtree(scratch / ".git" / "rebase-apply", ignore_errors=True)
            for child in scratch.iterdir():
                if child.name != ".git":
                    shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
            run_fixed(scratch, "read-tree", "HEAD", env=env)
    return run_fixed(scratch, "rev-parse", "HEAD", env=env).text, failed
