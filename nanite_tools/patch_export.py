"""Bring work that was done in the prepared tree back into `patches/`: commits as patches, edited overlay files."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanite_tools import overlay, paths
from nanite_tools.errors import BuildError
from nanite_tools.git import locked, require_git, run_fixed
from nanite_tools.overlay import write_atomic
from nanite_tools.patchset import Stamp, read_stamp, same_as_overlay, write_stamp
from nanite_tools.paths import Layout
from nanite_tools.prepared_tree import apply_mails, scratch_repository, tree_paths, tree_state, unfinished_move
from nanite_tools.series import Patch, parse_patch, read_series, series_slugs

FORMAT = ["format-patch", "-1", "--stdout", "--zero-commit", "--no-signature", "--no-stat", "--full-index"]
FORMAT += ["--no-numbered", "--subject-prefix=PATCH", "--no-attach", "--no-thread", "--no-base"]


@dataclass(frozen=True)
class Export:
    """What an export changed: patches and overlay files written, patches removed; and the new HEAD of the tree."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    overlay: tuple[str, ...]
    head: str


def export(layout: Layout, *, say: Callable[[str], None], pin: str | None = None) -> Export:
    """Write the tree's commits to `hooks/` and `series`, and its edited overlay files to `overlay/`.

    A commit keeps the slug of the patch that it came from: same subject, else same author and date, else same diff,
    where no second patch has the same. A new one is named after its subject. Before anything is written the patches
    are applied again in a scratch repository, and must give the same files. Raises BuildError: no prepared tree,
    uncommitted edits of upstream files, `patches/` changed since the tree was prepared, a merge, or overlay files
    edited on both sides.
    """
    require_git()
    pin, tree = pin or paths.UPSTREAM_PIN, layout.src
    with locked(layout.build / ".src.lock", lambda: say("waiting for another nanite-tools run to end")):
        stamp = read_stamp(tree)
        if stamp is None or unfinished_move(tree) is not None or stamp.pin != pin:
            raise BuildError(f"{tree} is not a prepared tree of {pin[:12]}", "run `nanite-tools patches apply` first")
        files = overlay.scan(layout.overlay)
        changed_files = _overlay_edits(layout, files)
        patches = _named(layout, _mails(tree, pin))
        _require_unchanged(layout, stamp, patches)
        head = _prove(layout, patches, pin)
        if bad := overlay.collisions(changed_files, tree_paths(tree, head)):
            raise BuildError(f"overlay files at paths that the commits have too: {', '.join(bad)}")
        written, removed = _write(layout, patches)
        for path in changed_files:
            target = layout.overlay / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / path, target)
        run_fixed(tree, "update-ref", "--no-deref", "HEAD", head)
        files = overlay.scan(layout.overlay)
        overlay.sync(layout.overlay, files, tree)
        write_stamp(tree, Stamp(pin, {patch.slug: patch.sha256 for patch in patches}, overlay.digest(files), head))
    for patch in patches:
        for problem in patch.problems:
            say(f"patches: {patch.slug}: {problem}")
    return Export(tuple(written), tuple(removed), tuple(changed_files), head)


def _overlay_edits(layout: Layout, files: dict[str, str]) -> list[str]:
    """Overlay paths to copy back: edited in the tree, or new beside overlay files. Anything else must be committed."""
    tree, record = layout.src, overlay.recorded(layout.src)
    changed, deleted = overlay.edited(tree, files)
    if deleted:
        raise BuildError(
            f"overlay files were deleted in {tree}: {', '.join(deleted)}",
            "delete them in patches/overlay instead, or restore them with `nanite-tools patches apply --discard`",
        )
    beside = {path.rpartition("/")[0] for path in record}
    loose = []
    for how, path in tree_state(tree).changes:
        if same_as_overlay(tree, path, files):
            continue
        if how == "new" and path.rpartition("/")[0] in beside:
            changed.append(path)
        else:
            loose.append(f"{how}: {path}")
    if loose:
        raise BuildError(
            f"{tree} has changes in no commit: {', '.join(loose[:12])}",
            f"commit upstream files (git -C {tree} commit), one commit a patch; remove what is not wanted",
        )
    both = [path for path in changed if path in files and files[path] not in record.get(path, [])]
    if both:
        raise BuildError(
            f"edited in {tree} and in patches/overlay: {', '.join(both)}",
            "merge them by hand in patches/overlay, then `nanite-tools patches apply --discard`",
        )
    return sorted(changed)


def _mails(tree: Path, pin: str) -> list[bytes]:
    if run_fixed(tree, "merge-base", "--is-ancestor", pin, "HEAD", check=False).code != 0:
        raise BuildError(f"HEAD of {tree} does not come from {pin[:12]}", "rebase it, or `patches apply --discard`")
    if merges := run_fixed(tree, "rev-list", "--merges", f"{pin}..HEAD").text.split():
        raise BuildError(f"{tree} has merge commits: {' '.join(merges)}", "rebase them into single commits")
    mails = []
    for commit in run_fixed(tree, "rev-list", "--reverse", f"{pin}..HEAD").text.split():
        mail = run_fixed(tree, *FORMAT, commit).out
        if b"\ndiff --git " not in mail:
            raise BuildError(f"the commit {commit[:12]} of {tree} changes no file", "drop it with git rebase")
        mails.append(mail)
    return mails


def _named(layout: Layout, mails: list[bytes]) -> list[Patch]:
    """A slug for each mail: the one of the patch that it was, else a new one from its subject."""
    old = list(read_series(layout.patches).patches)
    names: dict[int, str] = {}
    for key in (_subject, _origin, _diff, _origin_and_files):
        fresh = {index: parse_patch("-", mail) for index, mail in enumerate(mails) if index not in names}
        left = [patch for patch in old if patch.slug not in names.values()]
        for index, patch in fresh.items():
            same_old = [other for other in left if key(other) == key(patch)]
            same_new = [other for other in fresh.values() if key(other) == key(patch)]
            if len(same_old) == len(same_new) == 1:
                names[index] = same_old[0].slug
    taken = {patch.slug for patch in old}
    for index, mail in enumerate(mails):
        if index not in names:
            names[index] = _slug(parse_patch("-", mail).subject, taken)
            taken.add(names[index])
    return [parse_patch(names[index], mail) for index, mail in enumerate(mails)]


def _subject(patch: Patch) -> object:
    return patch.subject


def _origin(patch: Patch) -> object:
    """Author and date, which an amended commit keeps."""
    return re.findall(rb"^(?:From|Date): .*$", patch.mail.partition(b"\n\n")[0], re.MULTILINE)


def _diff(patch: Patch) -> object:
    return patch.mail.partition(b"\ndiff --git ")[2]


def _origin_and_files(patch: Patch) -> object:
    return _origin(patch), patch.files


def _slug(subject: str, taken: set[str]) -> str:
    text = unicodedata.normalize("NFKD", re.sub(r"^nanite: *", "", subject)).encode("ascii", "ignore").decode().lower()
    base = re.sub(r"[^a-z0-9]+", "-", text).strip("-")[:48].strip("-") or "patch"
    count = 1
    while (slug := base if count == 1 else f"{base}-{count}") in taken:
        count += 1
    return slug


def _require_unchanged(layout: Layout, stamp: Stamp, patches: list[Patch]) -> None:
    """Refuse to write over patches that were edited after the tree was prepared."""
    now = [(patch.slug, patch.sha256) for patch in read_series(layout.patches).patches]
    same_list = len(now) == len(series_slugs(layout.patches))
    if now == [(patch.slug, patch.sha256) for patch in patches] or (same_list and now == list(stamp.patches.items())):
        return
    raise BuildError(
        "patches/ changed since the tree was prepared; an export would write over that",
        "put the tree's work aside (git format-patch), then `nanite-tools patches apply --discard`",
    )


def _prove(layout: Layout, patches: list[Patch], pin: str) -> str:
    """Apply the exported patches anew; the commit that they give, whose files must be those of the tree's HEAD."""
    tree = layout.src
    with scratch_repository(layout.build, layout.submodule) as scratch:
        head, failed = apply_mails(scratch, pin, patches, (tree / ".git" / "objects").absolute())
    same = not failed and (
        run_fixed(tree, "rev-parse", f"{head}^{{tree}}").out == run_fixed(tree, "rev-parse", "HEAD^{tree}").out
    )
    if not same:
        why = "; ".join(f"{slug}: {reason}" for slug, reason in failed.items()) or "they give other files"
        raise BuildError(f"the exported patches do not make the tree again: {why}")
    return head


def _write(layout: Layout, patches: list[Patch]) -> tuple[list[str], list[str]]:
    hooks = layout.patches / "hooks"
    hooks.mkdir(exist_ok=True)
    before = series_slugs(layout.patches)
    written = []
    for patch in patches:
        path = hooks / f"{patch.slug}.patch"
        if not path.is_file() or path.read_bytes() != patch.mail:
            write_atomic(path, patch.mail)
            written.append(patch.slug)
    slugs = [patch.slug for patch in patches]
    if slugs != before:
        text = _series_text((layout.patches / "series").read_text(encoding="utf-8"), slugs)
        write_atomic(layout.patches / "series", text.encode())
    removed = [slug for slug in before if slug not in slugs]
    for slug in removed:
        (hooks / f"{slug}.patch").unlink(missing_ok=True)
    return written, removed


def _series_text(old: str, slugs: list[str]) -> str:
    """The series with these slugs; the first comment block stays on top, another comment stays above its patch."""
    comments: dict[str, list[str]] = {}
    top: list[str] | None = None
    block: list[str] = []
    for line in old.splitlines():
        name = line.split("#", 1)[0].strip()
        if not name:
            block.append(line)
            continue
        slug = name.removesuffix(".patch")
        if top is None:
            top, block = block, []
        comments[slug], block = [*block, line], []
    lines = list(top or [])
    for slug in slugs:
        lines += comments.get(slug, [f"{slug}.patch"])
    return "\n".join([*lines, *block]) + "\n"
