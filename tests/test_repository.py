"""The repository's own rules: sizes of modules, links in pages, words that do not belong in a public file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nanite_tools import cli

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {"llama.cpp", "build", ".venv", ".git"}

#: paths of one person's machine, keys, marks of unfinished work and of tools that wrote a file
FORBIDDEN = {
    "a home folder": re.compile(
        r"(?<![\w.])/(?:home|Users)/(?!(?:user|you|me|alice|someone)\b)[A-Za-z]\w*/|C:\\\\?Users\\\\?(?!me\b|you\b)\w"
    ),
    "a work folder": re.compile(r"(?<![\w.}/])/(?:work|workspace|scratch|mnt/[a-z]|root)/[\w.]"),
    "a folder beside the repository": re.compile(r"\.\./shared(?![\w-])"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9]{20,})"),
    "a private address": re.compile(
        r"https?://(?:[\w.-]+\.(?:internal|corp|lan|local)\b|10\.\d+\.\d+\.\d+|192\.168\.)"
    ),
    "a merge mark": re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE),
    "unfinished work": re.compile(r"\b(?:FIXME|XXX|HACK)\b"),
}


def tracked() -> list[Path]:
    """The files that git has or would add; the test is of the repository, so without git there is nothing to test."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    argv = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    # a git hook sets GIT_* for its own repository; it is this one, but the index file may be another
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    names = subprocess.run(argv, capture_output=True, check=True, env=env).stdout.decode().split("\0")
    files = [ROOT / name for name in names if name and Path(name).parts[0] not in SKIPPED]
    return [path for path in files if path.is_file()]


def text_of(path: Path) -> str:
    """The file's text; empty for a binary file."""
    data = path.read_bytes()
    return "" if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def links(text: str) -> list[str]:
    """Targets of Markdown links and images outside of code."""
    prose = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    found = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", prose)
    return found + re.findall(r"^\[[^\]]+\]:\s+<?(\S+?)>?\s*$", prose, flags=re.MULTILINE)


def test_module_sizes() -> None:
    too_long = {}
    for path in sorted((ROOT / "nanite_tools").rglob("*.py")):
        limit = 120 if path.parent.name == "commands" else 250
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > limit:
            too_long[str(path.relative_to(ROOT))] = f"{lines} > {limit}"
    assert too_long == {}


def test_no_file_holds_what_does_not_belong() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__).resolve():
            continue
        text = text_of(path)
        for what, pattern in FORBIDDEN.items():
            match = pattern.search(text)
            if match:
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line}: {what}: {match[0].strip()!r}")
    assert found == []


def test_relative_links_point_to_files() -> None:
    broken = []
    for path in tracked():
        if path.suffix != ".md":
            continue
        for link in links(text_of(path)):
            if re.match(r"[a-z][a-z0-9+.-]*:|#", link, re.IGNORECASE):
                continue
            target = path.parent / link.partition("#")[0]
            if not target.exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []


def test_readme_lists_the_verbs() -> None:
    """Where the README has a table of verbs (a header cell `verb`), it names each verb once, in the same order."""
    rows: list[str] = []
    inside = False
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if cells and cells[0].lower() == "verb":
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= set(":- "):
            rows.append(cells[0].strip("`").split()[0])
    if not rows:
        pytest.skip("the README has no table of verbs")
    assert rows == list(cli.VERBS)


def test_each_verb_has_its_module() -> None:
    modules = {path.stem for path in (ROOT / "nanite_tools" / "commands").glob("*.py")} - {"__init__"}
    assert {module for module, _ in cli.VERBS.values()} == modules


def test_scripts_are_executable() -> None:
    scripts = [path for path in tracked() if text_of(path).startswith("#!")]
    assert ROOT / "ci" / "run.sh" in scripts
    assert ROOT / ".ci" / "run" in scripts
    assert [str(path.relative_to(ROOT)) for path in scripts if os.name != "nt" and not os.access(path, os.X_OK)] == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("see [a](docs/a.md) and ![b](<b c.png>)", ["docs/a.md"]),
        ('[a](x.md "title") [b](y.md#part)', ["x.md", "y.md#part"]),
        ("```\n[no](no.md)\n```\n`[no](no.md)` [yes](yes.md)", ["yes.md"]),
        ("[ref]: other.md\n", ["other.md"]),
    ],
)
def test_links(text: str, wanted: list[str]) -> None:
    assert links(text) == wanted


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("see /home/bob/models/x", "a home folder"),
        ("cd /work/main", "a work folder"),
        ("cat ../shared/x.md", "a folder beside the repository"),
        ("<<<<<<< HEAD", "a merge mark"),
        ("http://registry.corp/simple", "a private address"),
        ("models in /home/user/models", None),
        ("docs/work/main.md and a/../shared-files", None),
        ("${build}/work/main", None),
    ],
)
def test_forbidden(text: str, what: str | None) -> None:
    assert [name for name, pattern in FORBIDDEN.items() if pattern.search(text)] == ([what] if what else [])
