"""A forward cursor over a file whose lengths cannot be trusted: each one is checked against the file's size first."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from nanite_tools.errors import InputError

U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")

#: The hint for a file that contradicts itself.
FETCH_AGAIN = "the file is damaged or was cut short: compare its size and checksum with the source, then fetch it again"

_WINDOW_BYTES: Final = 1 << 20  # read at a time
_MAX_STRINGS: Final = 1 << 24  # stepped over in all arrays of one file


def printable(text: str, limit: int = 80) -> str:
    """Text from a file, safe to print: control characters escaped, long text cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: limit + 1])
    return shown if len(text) <= limit else shown[: limit - 1] + "…"


def shown_path(path: Path) -> str:
    """A path for a message."""
    return printable(str(path), 400)


class Cursor:
    """Reads little-endian numbers and strings from `handle`, `size` bytes long, through a window in memory.

    Every method raises InputError, with the path and what was being read, when the file ends too early.
    """

    def __init__(self, path: Path, handle: BinaryIO, size: int) -> None:
        self.path, self.handle, self.size = path, handle, size
        self.pos = 0  # in the file
        self._window = b""
        self._window_at = 0
        self._strings_left = _MAX_STRINGS

    def fail(self, what: str, hint: str = FETCH_AGAIN) -> NoReturn:
        """Raise InputError for this file."""
        raise InputError(f"{shown_path(self.path)}: {what}", hint)

    def _check(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.size - self.pos:
            self.fail(f"the file ends inside {what}: it has {self.size} bytes, {self.pos + n_bytes} were announced")

    def _load(self, n_bytes: int, what: str) -> int:
        """Make the next `n_bytes` present; returns their index in the window."""
        self._check(n_bytes, what)
        index = self.pos - self._window_at
        if index + n_bytes > len(self._window):
            self.handle.seek(self.pos)
            self._window = self.handle.read(max(n_bytes, _WINDOW_BYTES)) or b""
            self._window_at, index = self.pos, 0
            if len(self._window) < n_bytes:
                self.fail(f"the file became shorter while reading {what}")
        return index

    def skip(self, n_bytes: int, what: str) -> None:
        """Step over `n_bytes` without reading them."""
        self._check(n_bytes, what)
        self.pos += n_bytes

    def take(self, n_bytes: int, what: str) -> bytes:
        """The next `n_bytes`. The caller has limited `n_bytes`."""
        index = self._load(n_bytes, what)
        self.pos += n_bytes
        return self._window[index : index + n_bytes]

    def u32(self, what: str) -> int:
        """An unsigned 32-bit number."""
        return int(U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        """An unsigned 64-bit number."""
        return int(U64.unpack(self.take(8, what))[0])

    def text(self, limit_bytes: int, what: str) -> str:
        """A string with its 64-bit length before it; longer than `limit_bytes` is an error."""
        n_bytes = self.u64(what)
        if n_bytes > limit_bytes:
            self.fail(f"{what} announces {n_bytes} bytes, more than the {limit_bytes} allowed")
        return self.take(n_bytes, what).decode("utf-8", "backslashreplace")

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings (a vocabulary: 0.3 µs each)."""
        self._strings_left -= count
        if self._strings_left < 0:
            self.fail(f"{what} announces {count} strings, more than the {_MAX_STRINGS} that a file may hold")
        self._check(count * 8, what)
        while count:
            index = self._load(8, what)
            window, last = self._window, len(self._window) - 8
            while count and index <= last:
                index += 8 + U64.unpack_from(window, index)[0]
                count -= 1
            self.pos = self._window_at + index
            self._check(0, what)
