"""`manifest.json`: what was built, from what, with what; schema 1, one entry a build folder ("cpu", "stock/cpu", …).

A manifest that is torn or foreign counts as empty: it describes builds, and the next build writes its own entry again.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

from nanite_tools import locks
from nanite_tools.paths import Layout

SCHEMA = 1
Entry = dict[str, object]


def entry_name(layout: Layout, build_dir: Path) -> str:
    """The key of one build folder: its path under `layout.build`, with `/` on every platform."""
    return build_dir.relative_to(layout.build).as_posix()


def read(path: Path) -> dict[str, Entry]:
    """All entries by name; empty when the file is missing, torn, or of another schema."""
    document = read_json(path)
    builds = document.get("builds")
    if document.get("schema") != SCHEMA or not isinstance(builds, dict):
        return {}
    return {name: entry for name, entry in builds.items() if isinstance(entry, dict)}


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; empty when there is none that can be read."""
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write_json(path: Path, document: dict[str, object]) -> None:
    """Write a JSON file so that a reader, also after a power cut, sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with torn.open("w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        torn.replace(path)
    finally:
        torn.unlink(missing_ok=True)


def record(path: Path, name: str, entry: Entry | None) -> None:
    """Set the entry `name`, or remove it for None; the others stay, also when builds end at the same moment."""
    with locks.held(path.with_name(f".{path.name}.lock")):
        builds = read(path)
        if entry is None and name not in builds:
            return
        if entry is None:
            del builds[name]
        else:
            builds[name] = entry
        write_json(path, {"schema": SCHEMA, "builds": builds})


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as Linux gives it, else as Python's `platform` does; "unknown" when neither knows."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def host() -> dict[str, object]:
    """Where the build ran: system, machine and processor; no name of the PC or of its user."""
    return {"system": platform.system(), "machine": platform.machine(), "cpu": cpu_name()}
