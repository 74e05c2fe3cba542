"""Reading patches: drop-checks against the real grep, added lines against the real git."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nanite_tools.series import parse_patch, read_series, run_drop_checks

HEAD = (
    b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] a\n\nWhy: because.\n\n"
)
DIFF = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,4 @@\n x\n+++ b/g\n+@@ -1 +1 @@\n--- a/f\n+z\n"
TEXT = "void f(int a);\nab+c\na{2} b|c\n[x] ^y$\n\\d 12\n"


@pytest.mark.skipif(shutil.which("grep") is None, reason="no grep")
@pytest.mark.parametrize("flag", ["", "-E", "-F"])
@pytest.mark.parametrize(
    "pattern",
    ["f(int", "f\\(int\\|x\\)", "ab+c", "ab\\+", "a{2}", "aa", "b|c", "b\\|q", "[x]", "[]x]", "[^a-z]y", "^void", "c$",
     "a.*b", "int a);", "zz", "(int|zz)", "x?y", "[(]int", "f.int"],
)  # fmt: skip
def test_a_drop_check_answers_as_grep_does(tmp_path: Path, flag: str, pattern: str) -> None:
    (tmp_path / "file").write_text(TEXT)
    done = subprocess.run(["grep", "-q", *filter(None, [flag]), "-e", pattern, "file"], cwd=tmp_path, check=False)
    patch = parse_patch("a", HEAD + f"Drop-check: grep {flag} '{pattern}' file\n\n".encode() + DIFF)
    if done.returncode == 2 or (flag == "-E" and patch.problems):
        assert patch.problems
        return
    assert patch.problems == ()
    assert run_drop_checks(patch, lambda name: TEXT)[0] == (done.returncode == 0)


def test_all_drop_checks_must_be_true() -> None:
    body = b"Drop-check: grep one a.h\nDrop-check: grep two b.h c.h\n\n"
    patch = parse_patch("a", HEAD + body + DIFF)
    files = {"a.h": "one", "c.h": "two"}
    assert run_drop_checks(patch, files.get) == (True, "one is in a.h: upstream has it; two is in c.h: upstream has it")
    has_it, answer = run_drop_checks(patch, {"a.h": "one"}.get)
    assert (has_it, answer) == (False, "one is in a.h: upstream has it; not in b.h, c.h (no such file: b.h, c.h)")


@pytest.mark.parametrize("line", ["rm -rf x", "grep", "grep a", "grep -r a b", "grep 'a b", "grep -E '(' f"])
def test_a_drop_check_that_cannot_be_read_is_a_problem(line: str) -> None:
    patch = parse_patch("a", HEAD + f"Drop-check: {line}\n\n".encode() + DIFF)
    assert len(patch.problems) == 1
    assert line in patch.problems[0]


def test_added_lines_are_counted_by_hunk() -> None:
    patch = parse_patch("a", HEAD + b"Drop-check: grep a f\n\n" + DIFF)
    assert (patch.added_lines, patch.files, patch.subject) == (3, ("f",), "a")


def test_a_file_that_is_no_mail_is_a_problem() -> None:
    assert "not in the mail format of git format-patch" in parse_patch("a", DIFF).problems
    assert "it changes no file" in parse_patch("a", HEAD).problems


def test_series_comments_and_suffixes(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "series").write_text("# one\n\n a.patch # why\nb\n")
    for slug in "ab":
        (tmp_path / "hooks" / f"{slug}.patch").write_bytes(HEAD + b"Drop-check: grep a f\n\n" + DIFF)
    series = read_series(tmp_path)
    assert [patch.slug for patch in series.patches] == ["a", "b"]
    assert series.problems == ()
    assert series.added_lines == 6
