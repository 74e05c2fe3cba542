"""The patch series as it lies in `patches/`: reading it, the rules that it keeps, drop-checks, the budget.

A patch is one mail as `git format-patch` writes it. Its body says `Why:` no public interface serves, and one or more
`Drop-check: grep PATTERN FILE` lines: when PATTERN is in FILE of an upstream tree, upstream has what the patch adds.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nanite_tools.errors import BuildError

MAX_PATCHES = 12
MAX_ADDED_LINES = 150

_HUNK = re.compile(rb"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_SLUG = re.compile(r"^[a-z0-9][a-z0-9._-]*$")


@dataclass(frozen=True)
class DropCheck:
    """One `grep` line of a patch: a regular expression and the upstream files in which to look for it."""

    line: str
    pattern: re.Pattern[str]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Patch:
    """One patch: its slug, its mail (line ends as git writes them), and what that says."""

    slug: str
    mail: bytes = field(repr=False)
    sha256: str
    subject: str
    added_lines: int
    files: tuple[str, ...]
    drop_checks: tuple[DropCheck, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """The patches in order, and everything that is wrong with the folder (one line each; empty is good)."""

    patches: tuple[Patch, ...]
    problems: tuple[str, ...]

    @property
    def added_lines(self) -> int:
        """Added lines over all patches."""
        return sum(patch.added_lines for patch in self.patches)


def read_series(patches_dir: Path) -> Series:
    """Read `series` and `hooks/`. Bad content becomes a problem line. Raises BuildError when `series` is missing."""
    problems: list[str] = []
    patches: list[Patch] = []
    slugs = series_slugs(patches_dir)
    for slug in dict.fromkeys(slugs):
        path = patches_dir / "hooks" / f"{slug}.patch"
        if slugs.count(slug) > 1:
            problems.append(f"{slug}: {slugs.count(slug)} times in the series")
        if not _SLUG.match(slug):
            problems.append(f"{slug}: not a slug (a-z, 0-9, '.', '_', '-')")
        elif not path.is_file():
            problems.append(f"{slug}: in the series, but there is no hooks/{path.name}")
        else:
            patches.append(parse_patch(slug, path.read_bytes()))
    listed = set(slugs)
    for path in sorted((patches_dir / "hooks").glob("*")):
        if path.suffix != ".patch" or path.stem not in listed:
            problems.append(f"{path.name}: in hooks/, but not in the series")
    problems += [f"{patch.slug}: {text}" for patch in patches for text in patch.problems]
    return Series(tuple(patches), tuple(problems))


def series_slugs(patches_dir: Path) -> list[str]:
    """The slugs that `series` lists, in order, doubles and all."""
    path = patches_dir / "series"
    if not path.is_file():
        raise BuildError(f"no {path}", "restore it: git restore patches/series")
    lines = (line.split("#", 1)[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line.removesuffix(".patch") for line in lines if line]


def budget_problems(series: Series) -> list[str]:
    """What is over the budget: too many patches, too many added lines."""
    problems = []
    if len(series.patches) > MAX_PATCHES:
        problems.append(f"budget: {len(series.patches)} patches, at most {MAX_PATCHES}")
    if series.added_lines > MAX_ADDED_LINES:
        problems.append(f"budget: {series.added_lines} added lines, at most {MAX_ADDED_LINES}")
    return problems


def parse_patch(slug: str, raw: bytes) -> Patch:
    """Read one mail. A file whose every line ends in CR LF was converted by a checkout and is read without the CRs."""
    mail = raw.replace(b"\r\n", b"\n") if raw.count(b"\r\n") == raw.count(b"\n") else raw
    head, _, rest = mail.partition(b"\n\n")
    cut = re.search(rb"^(---|diff --git .*)$", rest, re.MULTILINE)
    body = (rest[: cut.start()] if cut else rest).decode("utf-8", "replace")
    problems = []
    if not mail.startswith(b"From "):
        problems.append("not in the mail format of git format-patch")
    if not re.search(r"^Why: *\S", body, re.MULTILINE):
        problems.append("its body has no `Why:` line")
    checks, bad = _drop_checks(body)
    problems += bad
    added, files = _count_added(rest[cut.start() :] if cut else b"")
    if not files:
        problems.append("it changes no file")
    return Patch(
        slug, mail, hashlib.sha256(mail).hexdigest(), _subject(head), added, files, tuple(checks), tuple(problems)
    )


def run_drop_checks(patch: Patch, read: Callable[[str], str | None]) -> tuple[bool, str]:
    """Whether upstream has what the patch adds, and the answer in words. `read` gives a file's text, None for no file.

    Each of the patch's drop-checks must be true for the first value to be.
    """
    answers, found = [], []
    for check in patch.drop_checks:
        texts = {name: read(name) for name in check.files}
        hits = [name for name, text in texts.items() if text is not None and _grep(check.pattern, text)]
        gone = [name for name, text in texts.items() if text is None]
        found.append(bool(hits))
        answers.append(
            f"{check.pattern.pattern} is in {hits[0]}: upstream has it"
            if hits
            else f"not in {', '.join(check.files)}" + (f" (no such file: {', '.join(gone)})" if gone else "")
        )
    return bool(found) and all(found), "; ".join(answers)


def _grep(pattern: re.Pattern[str], text: str) -> bool:
    return any(pattern.search(line) for line in text.splitlines())


def _drop_checks(body: str) -> tuple[list[DropCheck], list[str]]:
    checks, problems = [], []
    for line in re.findall(r"^Drop-check: *(.*)$", body, re.MULTILINE):
        try:
            checks.append(_parse_check(line))
        except (ValueError, re.error) as error:
            problems.append(f"its drop-check `{line}` cannot be read: {error}")
    if not checks and not problems:
        problems.append("its body has no `Drop-check: grep PATTERN FILE` line")
    return checks, problems


def _parse_check(line: str) -> DropCheck:
    words = shlex.split(line)
    if not words or words[0] != "grep":
        raise ValueError("it must be `grep PATTERN FILE`")
    kinds = [word for word in words[1:] if word in ("-E", "-F")]
    rest = [word for word in words[1:] if word not in ("-E", "-F")]
    if len(rest) < 2 or any(word.startswith("-") for word in rest):
        raise ValueError("it must be `grep [-E|-F] PATTERN FILE...`")
    text = re.escape(rest[0]) if "-F" in kinds else rest[0] if "-E" in kinds else _from_basic(rest[0])
    return DropCheck(line, re.compile(text), tuple(rest[1:]))


def _from_basic(pattern: str) -> str:
    """grep's basic syntax in Python's: `( ) { } | + ?` are plain characters, and special after a backslash."""
    return re.sub(
        r"\[\^?\]?[^\]]*\]|\\(.)|([(){}|+?])",
        lambda m: m[1] if m[1] and m[1] in "(){}|+?" else "\\" + m[2] if m[2] else m[0],
        pattern,
    )


def _subject(head: bytes) -> str:
    from email.header import decode_header, make_header

    found = re.search(rb"^Subject: (.*(?:\n[ \t].*)*)", head, re.MULTILINE)
    text = re.sub(r"\n(?=[ \t])", "", found[1].decode("utf-8", "replace")) if found else ""
    return re.sub(r"^\[PATCH[^\]]*\] *", "", str(make_header(decode_header(text))))


def _count_added(diff: bytes) -> tuple[int, tuple[str, ...]]:
    """Added lines and the files touched, counted hunk by hunk, so that no line of content is taken for a header."""
    added, old, new = 0, 0, 0
    files = []
    for line in diff.split(b"\n"):
        if old > 0 or new > 0:
            old -= line[:1] in (b" ", b"-", b"")
            new -= line[:1] in (b" ", b"+", b"")
            added += line[:1] == b"+"
        elif hunk := _HUNK.match(line):
            old, new = (int(count) if count else 1 for count in hunk.groups())
        elif line.startswith(b"diff --git "):
            files.append(line.rsplit(b" b/", 1)[-1].decode("utf-8", "replace"))
    return added, tuple(files)
