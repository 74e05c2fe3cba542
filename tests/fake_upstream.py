"""A small upstream repository and a project around it, for the tests of source and patches. No network."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nanite_tools.paths import Layout

#: An identity and dates of the test's own, so that the test's commits are the same in each run.
ENV = {
    "GIT_AUTHOR_NAME": "Ada Upstream",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05+0100",
    "GIT_COMMITTER_NAME": "Ada Upstream",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05+0100",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}

#: Settings of a user that must not reach our trees. A hook that fails stands for every hook.
HOSTILE_CONFIG = """[user]
    name = Somebody Else
    email = else@example.org
[core]
    autocrlf = true
    attributesFile = {folder}/attributes
    excludesFile = {folder}/ignore
[commit]
    gpgSign = true
[am]
    threeWay = true
    keepcr = true
[format]
    signature = a signature
    subjectPrefix = RFC
    numbered = true
    attach = true
    signOff = true
[diff]
    noprefix = true
    context = 7
    algorithm = patience
[status]
    showUntrackedFiles = no
"""

CORE = "".join(f"int line_{n};\n" for n in range(1, 31))


def git(folder: Path, *args: str, stdin: bytes | None = None, **env: str) -> str:
    """Plain git, as a person would run it, with the test's identity."""
    full = {**os.environ, **ENV, **env}
    done = subprocess.run(["git", *args], cwd=folder, env=full, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@dataclass(frozen=True)
class Project:
    """A project that holds the fake upstream as its submodule `llama.cpp`, not initialised."""

    layout: Layout
    upstream: Path
    pin: str
    newer: str

    def write(self, path: str, text: str) -> Path:
        """Write a file below the project."""
        target = self.layout.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
        return target

    def series(self, *slugs: str) -> None:
        """Write `patches/series`."""
        self.write("patches/series", "# in order\n" + "".join(f"{slug}.patch\n" for slug in slugs))


def make_upstream(folder: Path) -> tuple[str, str]:
    """Upstream with three commits; returns the second (the pin) and the third."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "master")
    (folder / "core.c").write_text("old\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "core.c").write_text(CORE)
    (folder / "lib").mkdir()
    (folder / "lib/reg.c").write_text("void reg(void) {\n    add(1);\n    add(2);\n}\n")
    (folder / "README.md").write_text("upstream\n")
    (folder / ".gitignore").write_text("*.o\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "second")
    pin = git(folder, "rev-parse", "HEAD")
    (folder / "lib/reg.c").write_text("void reg(void) {\n    add_all();\n    hook_api();\n}\n")
    git(folder, "commit", "-q", "-a", "-m", "third")
    return pin, git(folder, "rev-parse", "HEAD")


def make_project(root: Path, upstream: Path, pin: str, newer: str) -> Project:
    """A git repository at `root` that records `pin` for its submodule."""
    project = Project(Layout(root), upstream, pin, newer)
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    project.series()
    (root / "patches/hooks").mkdir()
    project.write(".gitignore", "/build/\n")
    project.write(".gitmodules", f'[submodule "llama.cpp"]\n\tpath = llama.cpp\n\turl = {upstream}\n\tshallow = true\n')
    git(root, "add", "-A")
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{pin},llama.cpp")
    git(root, "commit", "-q", "-m", "project")
    (root / "llama.cpp").mkdir()
    return project


def make_patch(
    project: Project, slug: str, edits: dict[str, tuple[str, str]], subject: str = "", body: str = ""
) -> bytes:
    """Write `hooks/SLUG.patch`: in a clone of the pin, replace text in files (an empty old text makes a new file)."""
    work = project.layout.root.parent / "patch work"
    if not work.exists():
        git(project.upstream, "clone", "-q", str(project.upstream), str(work))
    git(work, "checkout", "-q", "--force", "--detach", project.pin)
    for path, (old, new) in edits.items():
        text = (work / path).read_text() if old else ""
        assert not old or text.count(old) == 1
        (work / path).write_text(text.replace(old, new) if old else new)
    git(work, "add", "-A")
    default = f"Why: nothing else can do {slug}.\n\nDrop-check: grep {slug}_api lib/reg.c"
    git(work, "commit", "-q", "-m", f"{subject or f'nanite: {slug}'}\n\n{body or default}")
    words = ["--zero-commit", "--no-signature", "--no-stat", "--full-index", "--stdout", "-1"]
    done = subprocess.run(
        ["git", "format-patch", *words], cwd=work, env={**os.environ, **ENV}, capture_output=True, check=True
    )
    (project.layout.patches / "hooks" / f"{slug}.patch").write_bytes(done.stdout)
    return done.stdout
