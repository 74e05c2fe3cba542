"""The state of the upstream submodule, its repair, and how it is filled from a repository on this machine.

An uninitialised submodule is an empty directory, and git run there answers for the repository around it. So every
question asks first whether the submodule is a repository of its own. What a person may have written is never removed:
only what a run of ours left half done (a marker in the build folder says so) or what holds no content at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanite_tools.errors import BuildError
from nanite_tools.git import is_toplevel, run
from nanite_tools.paths import Layout


@dataclass(frozen=True)
class Submodule:
    """What the submodule is.

    `kind`: absent (nothing there), foreign (files, no git), broken (git files that hold no commit), half (files are
    missing, none differ), dirty (files differ), wrong-commit (clean, elsewhere), ready (the pin, clean).
    """

    kind: str
    head: str
    has_pin: bool
    why: str


def inspect_submodule(layout: Layout, pin: str) -> Submodule:
    """Look, change nothing. Costs one `git status`."""
    folder = layout.submodule
    module = module_dir(layout)
    if not folder.is_dir() or not any(folder.iterdir()):
        return Submodule("absent", "", module is not None and _holds(module, pin), "it is empty")
    if not (folder / ".git").exists():
        return Submodule("foreign", "", False, "it has files but is no git checkout")
    head = run(folder, "rev-parse", "--verify", "-q", "HEAD^{commit}", check=False)
    if not is_toplevel(folder) or head.code != 0:
        return Submodule("broken", "", False, "its git directory holds no commit")
    commit, has_pin = head.text, _holds(folder, pin)
    git_dir = Path(run(folder, "rev-parse", "--absolute-git-dir").text)
    if not (git_dir / "index").exists():
        return Submodule("half", commit, has_pin, "its files were never checked out")
    listed = run(folder, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal", check=False)
    if listed.code != 0:
        return Submodule("broken", commit, has_pin, listed.reason)
    changed = [entry for entry in listed.out.decode("utf-8", "replace").split("\0") if entry]
    if any(not entry.startswith(" D ") for entry in changed):
        names = ", ".join(entry[3:] for entry in changed[:8])
        more = f" and {len(changed) - 8} more" if len(changed) > 8 else ""
        return Submodule("dirty", commit, has_pin, f"it has local changes: {names}{more}")
    if changed:
        return Submodule("half", commit, has_pin, f"{len(changed)} of its files are missing")
    if commit != pin:
        return Submodule("wrong-commit", commit, has_pin, f"it is at {commit[:12]}")
    return Submodule("ready", commit, True, "")


def repair(layout: Layout, state: Submodule, pin: str, say: Callable[[str], None]) -> Submodule:
    """Bring a half-done submodule back to absent, wrong-commit or ready, and return its new state.

    Raises BuildError when that would touch a person's files.
    """
    folder, marker = layout.submodule, _marker(layout)
    left = json.loads(marker.read_text(encoding="utf-8") or "{}").get("step") if marker.exists() else None
    if left and state.kind != "ready":
        say("upstream source: an earlier run was interrupted, repairing")
    if left == "fresh" and state.kind != "ready":
        _empty(folder)
        _remove_module(layout)
    elif left == "move" and state.kind in ("dirty", "half"):
        _unlock(folder)
        run(folder, "reset", "-q", "--hard")
        run(folder, "clean", "-fdq")
    elif state.kind == "dirty":
        raise BuildError(
            f"the submodule {folder} must stay as upstream made it, but {state.why}",
            f"keep what you need, then: git -C {folder} reset --hard && git -C {folder} clean -fd",
        )
    elif state.kind == "foreign" or (state.kind == "broken" and set(folder.iterdir()) != {folder / ".git"}):
        raise BuildError(f"{folder} is in the way: {state.why}", "move it away and run this again")
    elif state.kind == "half" and "never" in state.why:
        say("upstream source: the submodule was never checked out to its end, repairing")
        _unlock(folder)
        run(folder, "reset", "-q", "--hard")
    elif state.kind == "half":
        say(f"upstream source: {state.why}, restoring them")
        run(folder, "checkout-index", "-q", "-a")
    elif state.kind == "broken":
        say("upstream source: an unfinished clone is in the way, removing it")
        _empty(folder)
    module = module_dir(layout)
    if module is not None and not _has_commits(module):
        _remove_module(layout)
    after = inspect_submodule(layout, pin)
    if after.kind in ("absent", "wrong-commit", "ready"):
        marker.unlink(missing_ok=True)
    return after


def fill(layout: Layout, state: Submodule, pin: str, repository: Path | None) -> None:
    """Check `pin` out in the submodule, which is absent or clean; its objects come from the bare `repository`.

    `repository` may be None when the submodule has the objects already. Raises BuildError when git fails or when the
    checkout around it records another commit.
    """
    folder, recorded = layout.submodule, _recorded(layout)
    if recorded not in ("", pin):
        raise BuildError(
            f"this checkout records llama.cpp at {recorded[:12]}, but this version is built on {pin[:12]}",
            "git restore --staged llama.cpp, or check a released version out",
        )
    marker = _marker(layout)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps({"step": "fresh" if state.kind == "absent" else "move"}), encoding="utf-8")
    module = module_dir(layout) if state.kind == "absent" else folder
    fetch = ["-c", "protocol.file.allow=always", "fetch", "-q", "--update-shallow", "--no-tags"]
    if state.kind == "absent" and recorded:
        folder.mkdir(exist_ok=True)
        words = ["submodule", "-q", "update", "--init", "--checkout", "--", folder.name]
        if module is not None:
            if repository is not None and not state.has_pin:
                run(module, *fetch, repository.as_uri(), "HEAD")
            run(layout.root, *words)
        elif repository is not None:
            here = ["-c", "protocol.file.allow=always", "-c", f"submodule.{folder.name}.url={repository.as_uri()}"]
            run(layout.root, *here, *words)
            run(layout.root, "submodule", "-q", "init", "--", folder.name)
            url = run(layout.root, "config", "--get", f"submodule.{folder.name}.url", check=False).text
            if url:
                run(folder, "remote", "set-url", "origin", url)
    else:
        if state.kind == "absent":
            folder.mkdir(exist_ok=True)
            run(folder, "init", "-q")
        if repository is not None and not state.has_pin:
            run(folder, *fetch, repository.as_uri(), "HEAD")
        run(folder, "checkout", "-q", "--detach", pin)
    _plain_line_ends(folder)
    marker.unlink()


def module_dir(layout: Layout) -> Path | None:
    """The submodule's git directory inside the git directory of the checkout around it, if there is one."""
    if not is_toplevel(layout.root):
        return None
    text = run(layout.root, "rev-parse", "--git-path", f"modules/{layout.submodule.name}", check=False).text
    path = layout.root / text
    return path if text and path.is_dir() else None


def object_store(folder: Path) -> tuple[Path, Path | None]:
    """The object directory of the repository at `folder`, and its `shallow` file if it has one."""
    objects = folder / run(folder, "rev-parse", "--git-path", "objects").text
    shallow = folder / run(folder, "rev-parse", "--git-path", "shallow").text
    return objects.resolve(), shallow if shallow.is_file() else None


def _plain_line_ends(folder: Path) -> None:
    """Upstream's own line ends in the files, whatever the user's git makes of them elsewhere."""
    for key, value in (("core.autocrlf", "false"), ("core.eol", "lf"), ("core.attributesFile", os.devnull)):
        run(folder, "config", key, value)
    if any(line.split()[:2] == ["i/lf", "w/crlf"] for line in run(folder, "ls-files", "--eol").text.splitlines()):
        run(folder, "read-tree", "--empty")
        run(folder, "reset", "-q", "--hard")


def _recorded(layout: Layout) -> str:
    """The commit that the checkout around it records for the submodule; empty when there is no such checkout."""
    if not is_toplevel(layout.root):
        return ""
    entry = run(layout.root, "ls-files", "-s", "--", layout.submodule.name, check=False).text.split()
    return entry[1] if len(entry) >= 2 and entry[0] == "160000" else ""


def _marker(layout: Layout) -> Path:
    return layout.build / ".source-unfinished"


def _holds(folder: Path, pin: str) -> bool:
    return run(folder, "cat-file", "-e", f"{pin}^{{commit}}", check=False).code == 0


def _has_commits(git_dir: Path) -> bool:
    if run(git_dir, "rev-parse", "--verify", "-q", "HEAD^{commit}", check=False).code == 0:
        return True
    return bool(run(git_dir, "for-each-ref", "--count=1", "refs/heads", check=False).text)


def _remove_module(layout: Layout) -> None:
    module = module_dir(layout)
    if module is not None:
        shutil.rmtree(module)


def _empty(folder: Path) -> None:
    for child in folder.iterdir() if folder.is_dir() else ():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def _unlock(folder: Path) -> None:
    (Path(run(folder, "rev-parse", "--absolute-git-dir").text) / "index.lock").unlink(missing_ok=True)
