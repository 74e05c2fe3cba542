"""Run git: argv lists, a clean environment, one error text, one lock.

Two kinds of environment. `run` keeps the user's configuration (proxies, certificates, mirrors) and is for talking to
other repositories. `run_fixed` hides every configuration, attribute and ignore file outside the repository, and every
hook and signature, so that the commits it makes are the same on every machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nanite_tools.errors import BuildError, InputError, MissingError
from nanite_tools.locks import held

#: Who commits the patches in a prepared tree; part of what makes its HEAD reproducible.
COMMITTER_NAME = "nanite-tools"
COMMITTER_EMAIL = "patches@nanite-tools.invalid"

_FIXED_CONFIG = {
    "am.threeWay": "false",
    "commit.gpgSign": "false",
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.excludesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.longpaths": "true",
    "gc.auto": "0",
    "safe.directory": "*",
}

#: What a git that runs a hook, or a careful user, sets to tie git to one repository.
_TIED = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CEILING_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
}

#: Open lock files that each child gets too (see `locked`).
_lent: list[int] = []
#: How long to wait for what a killed run left running.
_ORPHAN_WAIT_S = 120.0


@dataclass(frozen=True)
class GitResult:
    """How one git command ended: exit status, its stdout as bytes, its stderr as text."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """stdout as text, without the last line's end."""
        return self.out.decode("utf-8", "surrogateescape").strip()

    @property
    def reason(self) -> str:
        """The line of stderr that says why, for a message of ours."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        for line in lines:
            if line.startswith(("fatal:", "error:")):
                return line.split(":", 1)[1].strip()
        return lines[-1] if lines else f"git ended with status {self.code}"


def require_git() -> str:
    """The git program. Raises MissingError, with the line that installs it, when there is none."""
    found = shutil.which("git")
    if found is None:
        lines = {"win32": "winget install Git.Git", "darwin": "xcode-select --install"}
        raise MissingError("git is not installed", lines.get(sys.platform, "sudo apt install git (or dnf, pacman)"))
    return found


def _base_env(ceiling: Path) -> dict[str, str]:
    """The environment without what ties git to another repository (as inside a git hook), and with a ceiling."""
    env = {key: value for key, value in os.environ.items() if key not in _TIED}
    env.update(LC_ALL="C", LANGUAGE="", GIT_TERMINAL_PROMPT="0", GCM_INTERACTIVE="never")
    env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=15")
    env["GIT_CEILING_DIRECTORIES"] = str(ceiling)
    return env


def fixed_env(ceiling: Path) -> dict[str, str]:
    """The environment of `run_fixed`: nothing of the user's git set-up is left in it."""
    env = {key: value for key, value in _base_env(ceiling).items() if not key.startswith("GIT_") or "EXEC_PATH" in key}
    env.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, GIT_ATTR_NOSYSTEM="1", GIT_TERMINAL_PROMPT="0")
    env.update(GIT_COMMITTER_NAME=COMMITTER_NAME, GIT_COMMITTER_EMAIL=COMMITTER_EMAIL)
    env["GIT_CEILING_DIRECTORIES"] = str(ceiling)
    return env


def execute(
    argv: list[str], env: Mapping[str, str], *, stdin: bytes = b"", timeout_s: float | None = None
) -> GitResult:
    """Run a program to its end. On a timeout or an interrupt it and all its children are ended first.

    Raises subprocess.TimeoutExpired. An exit status is never an error here.
    """
    group = sys.platform != "win32"
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        start_new_session=group,
        pass_fds=tuple(_lent),
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
        except BaseException:
            with suppress(ProcessLookupError):
                if sys.platform != "win32":
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            raise
    return GitResult(process.returncode, out, err.decode("utf-8", "replace"))


def run(cwd: Path, *args: str, timeout_s: float | None = None, check: bool = True) -> GitResult:
    """git in `cwd` with the user's configuration; never in a parent repository of `cwd`.

    Raises BuildError when `check` is set and git fails, or when it runs longer than `timeout_s`.
    """
    quiet = ["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.fsmonitor=false"]
    argv = [require_git(), "-C", str(cwd), *quiet, *args]
    try:
        result = execute(argv, _base_env(cwd.resolve().parent), timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        result = GitResult(124, b"", f"no answer within {timeout_s:.0f} s")
    return _checked(result, args, cwd) if check else result


def run_fixed(
    cwd: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, check: bool = True
) -> GitResult:
    """git in `cwd` with no configuration but the repository's own and ours; `env` adds variables.

    Raises BuildError when `check` is set and git fails.
    """
    config = [word for key, value in _FIXED_CONFIG.items() for word in ("-c", f"{key}={value}")]
    full = {**fixed_env(cwd.resolve().parent), **(env or {})}
    result = execute([require_git(), "-C", str(cwd), *config, *args], full, stdin=stdin)
    return _checked(result, args, cwd) if check else result


def _checked(result: GitResult, args: tuple[str, ...], cwd: Path) -> GitResult:
    if result.code != 0:
        verb = next((word for word in args if not word.startswith("-") and "=" not in word), "git")
        raise BuildError(f"git {verb} failed in {cwd}: {result.reason}", result.err.strip()[:800])
    return result


def is_toplevel(folder: Path) -> bool:
    """Whether `folder` itself is the top of a work tree (and not merely inside one)."""
    result = run(folder, "rev-parse", "--show-toplevel", check=False)
    return result.code == 0 and bool(result.text) and Path(result.text).resolve() == folder.resolve()


def git_dir_of(folder: Path) -> Path | None:
    """The git directory of a work tree's top, or `folder` itself when it is one; None for any other folder.

    Raises InputError when git refuses the folder (another user's, a damaged one).
    """
    found = run(folder, "rev-parse", "--absolute-git-dir", check=False)
    if found.code != 0:
        if "not a git repository" in found.err and not (folder / ".git").exists():
            return None
        raise InputError(f"git does not read {folder}: {found.reason}", found.err.strip()[:400])
    inside = run(folder, "rev-parse", "--is-inside-work-tree", check=False).text == "true"
    return None if inside and not is_toplevel(folder) else Path(found.text)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file `path` against other runs, and against the git of a run that was killed.

    A killed run's git works on for a moment. It has inherited a second lock, `path` + `.git`, so that this waits for
    it to end (at most two minutes) before anything is looked at.
    """
    with held(path, on_wait):
        if sys.platform == "win32":
            yield
            return
        import fcntl

        with path.with_name(path.name + ".git").open("ab") as file:
            deadline = time.monotonic() + _ORPHAN_WAIT_S
            while time.monotonic() < deadline:
                with suppress(BlockingIOError):
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.05)
            _lent.append(file.fileno())
            try:
                yield
            finally:
                _lent.remove(file.fileno())
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)
