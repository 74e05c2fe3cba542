"""Where things are: the checkout, its build folders, and the platform's user folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nanite_tools.errors import MissingError

#: The upstream commit that this version is built on (llama.cpp b11312).
UPSTREAM_PIN = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"


@dataclass(frozen=True)
class Layout:
    """Paths of one checkout. `root` holds `patches/series`; nothing here needs to exist but that."""

    root: Path

    @property
    def submodule(self) -> Path:
        """The pristine upstream submodule."""
        return self.root / "llama.cpp"

    @property
    def patches(self) -> Path:
        """`series`, `hooks/` and `overlay/`."""
        return self.root / "patches"

    @property
    def overlay(self) -> Path:
        """Our own sources, laid out as they appear in the prepared tree."""
        return self.patches / "overlay"

    @property
    def build(self) -> Path:
        """Everything that a build writes; safe to delete. `NANITE_TOOLS_BUILD` moves it."""
        moved = os.environ.get("NANITE_TOOLS_BUILD")
        return Path(moved).expanduser().absolute() if moved else self.root / "build"

    @property
    def src(self) -> Path:
        """The prepared tree: the pin, the hook patches, the overlay, a stamp."""
        return self.build / "src"

    @property
    def stock(self) -> Path:
        """The unpatched reference: `stock/src` and its builds, beside ours and laid out alike."""
        return self.build / "stock"

    def build_dir(self, preset: str, *, stock: bool = False, module: bool = False) -> Path:
        """CMake's binary folder of one build; the binaries are in its `bin/`."""
        return (self.stock if stock else self.build) / (f"{preset}-module" if module else preset)

    @property
    def manifest(self) -> Path:
        """What was built, from what, with what; one entry a build folder."""
        return self.build / "manifest.json"

    @property
    def embedded_model(self) -> Path:
        """The small trained model that `demo` and the tests run."""
        return self.root / "tests" / "models" / "tiny-moe-mtp-Q4_0.gguf"


def find_layout(start: Path | None = None) -> Layout:
    """Find the checkout: `NANITE_TOOLS_ROOT`, else the package's parents, else `start` (default: cwd) and its parents.

    Raises MissingError when none of them holds `patches/series`.
    """
    named = os.environ.get("NANITE_TOOLS_ROOT")
    here = Path(__file__).resolve().parent
    cwd = (start or Path.cwd()).resolve()
    candidates = [Path(named).expanduser().resolve()] if named else [here, *here.parents, cwd, *cwd.parents]
    for folder in candidates:
        if (folder / "patches" / "series").is_file():
            return Layout(folder)
    raise MissingError(
        f"no nanite-tools checkout at {named}" if named else "no nanite-tools checkout found",
        "run inside a clone of the repository, or set NANITE_TOOLS_ROOT to one",
    )


def user_data_dir() -> Path:
    """Calibrations, profiles, traces of this user."""
    from platformdirs import user_data_path

    return user_data_path("nanite-tools", appauthor=False)


def user_cache_dir() -> Path:
    """Downloads and other things that can be fetched again."""
    from platformdirs import user_cache_path

    return user_cache_path("nanite-tools", appauthor=False)
