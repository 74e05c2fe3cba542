"""Our own sources inside a prepared tree: files at paths that upstream does not have, kept out of its commits.

The tree's git directory records, for each overlay file, the content hashes that are ours. A file in the tree with
another hash was edited there. A copy writes only what differs, so a build sees only real changes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from nanite_tools.errors import BuildError

_JUNK = ("~", ".swp", ".swo", ".orig", ".rej", ".DS_Store", ".pyc")


def scan(overlay: Path) -> dict[str, str]:
    """Path in the tree (with `/`) → sha256 of each overlay file, in order of path. Editors' leftovers are skipped.

    Raises BuildError for a link or another thing that is not a plain file.
    """
    found = {}
    for path in sorted(overlay.rglob("*")) if overlay.is_dir() else ():
        if path.name.endswith(_JUNK) or "__pycache__" in path.parts:
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BuildError(f"{path} is not a plain file", "an overlay holds plain files only")
        if path.is_file():
            found[path.relative_to(overlay).as_posix()] = file_sha256(path)
    return dict(sorted(found.items()))


def digest(files: dict[str, str]) -> str:
    """One sha256 over the overlay's paths and contents."""
    text = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(files.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def collisions(files: Iterable[str], tree_paths: Iterable[str]) -> list[str]:
    """Overlay paths that the tree has already: as a file, as a folder, below a file, or in another case."""
    taken = {path.casefold(): path for path in tree_paths}
    folders = {str(parent) for path in taken for parent in PurePosixPath(path).parents}
    bad = []
    for path in files:
        low = path.casefold()
        above = [str(parent) for parent in PurePosixPath(low).parents]
        if low in taken or low in folders or any(parent in taken for parent in above):
            bad.append(path)
    return bad


def edited(tree: Path, overlay_files: dict[str, str]) -> tuple[list[str], list[str]]:
    """Overlay files that were changed in the tree, and those that were deleted there.

    A file that is the same as in the overlay now, or as when it was copied, is not changed.
    """
    changed, deleted = [], []
    for path, ours in recorded(tree).items():
        target = tree / path
        if not target.is_file():
            if len(ours) == 1:
                deleted.append(path)
        elif (now := file_sha256(target)) not in ours and now != overlay_files.get(path):
            changed.append(path)
    return changed, deleted


def sync(overlay: Path, files: dict[str, str], tree: Path) -> int:
    """Make the tree's overlay files those of `overlay`: copy what differs, remove what is gone, exclude all from git.

    Returns the number of files written or removed. An interrupted run leaves a record that the next one accepts.
    """
    before = recorded(tree)
    both = {path: list(dict.fromkeys([*before.get(path, []), *_one(files, path)])) for path in {*before, *files}}
    _write_record(tree, {path: [*ours, ""] for path, ours in both.items()})
    _exclude(tree, both)
    count = 0
    for path in sorted(before.keys() - files.keys()):
        (tree / path).unlink(missing_ok=True)
        _prune(tree, tree / path)
        count += 1
    for path, sha256 in files.items():
        target = tree / path
        if target.is_file() and not target.is_symlink() and file_sha256(target) == sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        work = tree / ".git" / "nanite-copy"
        shutil.copyfile(overlay / path, work)
        shutil.copymode(overlay / path, work)
        work.replace(target)
        count += 1
    _write_record(tree, {path: [sha256] for path, sha256 in files.items()})
    _exclude(tree, files)
    return count


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file's content in one step, so that an interrupt leaves the old one or the new one."""
    work = path.with_name(path.name + ".part")
    work.write_bytes(content)
    work.replace(path)


def _one(files: dict[str, str], path: str) -> list[str]:
    return [files[path]] if path in files else []


def _prune(tree: Path, gone: Path) -> None:
    """Remove the folders that are empty now that `gone` is."""
    for folder in gone.parents:
        if folder == tree or not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()


def _record_path(tree: Path) -> Path:
    return tree / ".git" / "nanite-overlay.json"


def recorded(tree: Path) -> dict[str, list[str]]:
    """Path → hashes that are ours, as the last copy wrote them down; more than one where it was interrupted."""
    try:
        value = json.loads(_record_path(tree).read_text(encoding="utf-8"))
        return {str(path): [str(sha256) for sha256 in ours] for path, ours in value.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def _write_record(tree: Path, record: dict[str, list[str]]) -> None:
    write_atomic(_record_path(tree), json.dumps(record, indent=1, sort_keys=True).encode())


def _exclude(tree: Path, paths: Iterable[str]) -> None:
    """Hide exactly these files from the tree's git; a new file beside them still shows."""
    info = tree / ".git" / "info"
    info.mkdir(exist_ok=True)
    lines = ["/" + "".join(f"\\{c}" if c in "\\*?[ !#" else c for c in path) for path in sorted(paths)]
    write_atomic(info / "exclude", ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
