"""One argument list, quoted for the shell that a person pastes it into.

| shell | rules | source |
|---|---|---|
| posix | single quotes | POSIX.1-2017, 2.2 |
| powershell | single quotes, doubled inside (the typographic ones too); call operator `&` | about_Quoting_Rules |
| cmd | double quotes; `^` where a word holds `"` or `%`; at the prompt | cmd /?, the C runtime's argv rules |
| systemd | double quotes with C escapes, `%%`, `$$` | systemd.service(5) "Command lines", systemd.syntax(7) |
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from nanite_tools.errors import UsageError

_FLAG = re.compile(r"--?[A-Za-z][A-Za-z-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./:\\-]+")
_PS_QUOTES = "'\u2018\u2019\u201a\u201b"  # PowerShell ends a single-quoted string at any of these
_CMD_SPECIAL = '()%!^"<>&|'


def crt_quote(word: str) -> str:
    """A word in double quotes as the Microsoft C runtime reads it: `\\"` is a quote, backslashes before one double."""
    escaped = re.sub(r'(\\*)"', r"\1\1\\" + '"', word)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'


def posix(argv: Sequence[str]) -> str:
    """For sh, bash, zsh and the like."""
    return shlex.join(argv)


def _ps_literal(word: str) -> str:
    return "'" + re.sub(f"([{_PS_QUOTES}])", r"\1\1", word) + "'"


def _ps_fragile(word: str) -> bool:
    """True for a word that PowerShell before 7.3 breaks on its way to a program: empty, with `"`, or ending `\\`."""
    return word == "" or '"' in word or (word.endswith("\\") and any(c.isspace() for c in word))


def powershell(argv: Sequence[str]) -> str:
    """For Windows PowerShell 5.1 and PowerShell 7.

    A program gets one command line on Windows, and 5.1 does not escape `"` in it; 7.3 does, unless
    $PSNativeCommandArgumentPassing is 'Legacy'. So a line with such words sets that (in a block of its own, without
    effect on 5.1) and carries them ready-quoted for the C runtime: both versions pass these through.
    """
    program, *words = argv
    if not any(_ps_fragile(word) for word in words):
        return " ".join(["&", _ps_literal(program), *(w if _FLAG.fullmatch(w) else _ps_literal(w) for w in words)])
    ready = [_ps_literal(crt_quote(word) if _ps_fragile(word) else word) for word in words]
    line = " ".join([_ps_literal(program), *ready])
    return f"& {{ $PSNativeCommandArgumentPassing = 'Legacy'; & {line} }}"


def _cmd_word(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    quoted = crt_quote(word)
    if '"' not in word and "%" not in word:
        return quoted
    # Its own quotes would end cmd's, or `%` would expand: escape all, the outer quotes too, so that cmd sees none. A
    # caret also after each `%` keeps what stands between two of them from being the name of a variable.
    out = ""
    for before, char in zip(" " + quoted, quoted, strict=False):
        out += f"^{char}" if char in _CMD_SPECIAL or before == "%" else char
    return out


def cmd(argv: Sequence[str]) -> str:
    """For the prompt of cmd.exe with delayed expansion off, its default. In a .cmd file write `%%` for each `%`.

    Raises UsageError for a word that cmd cannot carry: with a line break, or a program path with `"` or two `%`.
    """
    program, *words = argv
    if any(c in word for word in argv for c in "\r\n"):
        raise UsageError("cmd cannot pass a line break to a program", "choose --shell powershell")
    if '"' in program or program.count("%") > 1:
        raise UsageError(f"cmd cannot start {program!r}", "move it to a path without quotes and percent signs")
    return " ".join([program if _PLAIN.fullmatch(program) else f'"{program}"', *map(_cmd_word, words)])


def _systemd_word(word: str, dollar: str) -> str:
    out = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", dollar)
    out = re.sub(r"[\x01-\x1f\x7f]", lambda match: f"\\x{ord(match.group()):02x}", out)
    return out if out == word and re.fullmatch(r"[A-Za-z0-9_./:=,+@-]+", out) else f'"{out}"'


def systemd(argv: Sequence[str]) -> str:
    """An `ExecStart=` line. Raises UsageError when the program's path is not absolute.

    systemd replaces variables in the words after the program only, so a `$` in the program's path cannot be doubled;
    the prefix `:` then turns the replacement off for the whole line.
    """
    program, *words = argv
    if not program.startswith("/"):
        raise UsageError(f"systemd needs an absolute path, got {program!r}", "give --bin as an absolute path")
    colon = ":" if "$" in program else ""
    dollar = "$" if colon else "$$"
    line = " ".join(_systemd_word(word, dollar) for word in words)
    return f"ExecStart={colon}{_systemd_word(program, dollar)}{' ' if line else ''}{line}"


SHELLS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "posix": posix,
    "powershell": powershell,
    "cmd": cmd,
    "systemd": systemd,
}


def default_shell(platform: str) -> str:
    """`powershell` on Windows (`sys.platform` "win32"), `posix` elsewhere."""
    return "powershell" if platform == "win32" else "posix"


def render(argv: Sequence[str], shell: str) -> str:
    """The line for one of SHELLS. Raises UsageError for a word that it cannot carry, and for a NUL character."""
    if any("\0" in word for word in argv):
        raise UsageError("an argument holds a NUL character", "no program can receive one")
    return SHELLS[shell](argv)
