"""Whether the patch series holds: on the pin, or on another upstream tree that it is to move to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nanite_tools import overlay, paths
from nanite_tools.errors import BuildError, InputError
from nanite_tools.git import git_dir_of, locked, require_git, run, run_fixed
from nanite_tools.paths import Layout
from nanite_tools.prepared_tree import apply_mails, borrow, scratch_repository, tree_paths
from nanite_tools.series import budget_problems, read_series, run_drop_checks
from nanite_tools.submodule import inspect_submodule


@dataclass(frozen=True)
class PatchCheck:
    """One patch on the tree: does it apply, git's reason if not, has upstream what it adds, the drop-check's answer."""

    slug: str
    applies: bool
    reason: str
    upstream_has_it: bool
    drop_check: str


@dataclass(frozen=True)
class Verdict:
    """Every patch's check, and everything that is wrong, one line each. `tree` is a commit or a directory."""

    tree: str
    checks: tuple[PatchCheck, ...]
    added_lines: int
    problems: tuple[str, ...]


def verify(layout: Layout, *, against: Path | None = None, pin: str | None = None) -> Verdict:
    """Try the whole series on the pin, or on the upstream tree `against` (a git clone: its HEAD; else its files).

    All conflicts come out of one run: after each, the next patch is tried on the last good state. Nothing but a scratch
    folder is written. Raises BuildError when the submodule does not hold the pin, InputError for a bad directory.
    """
    require_git()
    pin = pin or paths.UPSTREAM_PIN
    series = read_series(layout.patches)
    with locked(layout.build / ".src.lock"), scratch_repository(layout.build) as scratch:
        if against is not None:
            base, name = _base_of(scratch, against), str(against)
        else:
            state = inspect_submodule(layout, pin)
            if not state.has_pin or state.kind in ("absent", "foreign", "broken"):
                raise BuildError(
                    f"the submodule {layout.submodule} does not hold {pin[:12]}: {state.why}",
                    "`nanite-tools patches apply` fetches it",
                )
            borrow(scratch / ".git", layout.submodule)
            base, name = pin, pin
        head, failed = apply_mails(scratch, base, series.patches)

        def read(path: str) -> str | None:
            blob = run_fixed(scratch, "cat-file", "blob", f"{base}:{path}", check=False)
            return blob.out.decode("utf-8", "replace") if blob.code == 0 else None

        checks = []
        for patch in series.patches:
            has_it, answer = run_drop_checks(patch, read)
            checks.append(PatchCheck(patch.slug, patch.slug not in failed, failed.get(patch.slug, ""), has_it, answer))
        files = overlay.scan(layout.overlay)
        taken = overlay.collisions(files, tree_paths(scratch, head))
    problems = [*series.problems, *budget_problems(series)]
    for check in checks:
        if not check.applies:
            problems.append(f"{check.slug}: does not apply: {check.reason}; drop-check: {check.drop_check}")
        elif check.upstream_has_it and against is None:
            problems.append(f"{check.slug}: its drop-check is true on the pin ({check.drop_check}): it shows nothing")
    problems += [f"overlay: {path} is upstream's path" for path in taken]
    return Verdict(name, tuple(checks), series.added_lines, tuple(problems))


def _base_of(scratch: Path, folder: Path) -> str:
    """The commit to try on: HEAD of the git clone `folder`, or a commit made of the files of a plain directory."""
    if not folder.is_dir() or not any(folder.iterdir()):
        raise InputError(f"{folder} is no directory with files", "--against takes an upstream tree")
    git_dir = git_dir_of(folder)
    if git_dir is not None:
        borrow(scratch / ".git", git_dir)
        head = run(git_dir, "rev-parse", "--verify", "-q", "HEAD^{commit}", check=False)
        if head.code != 0:
            raise InputError(f"{folder} has no commit", "--against takes an upstream tree")
        return head.text
    place = f"--work-tree={folder.absolute()}"
    run_fixed(scratch, place, "add", "-A", "-f")
    tree = run_fixed(scratch, "write-tree").text
    who = {"GIT_AUTHOR_NAME": "upstream", "GIT_AUTHOR_EMAIL": "upstream@nanite-tools.invalid"}
    return run_fixed(scratch, "commit-tree", tree, "-m", "upstream files", env=who).text
