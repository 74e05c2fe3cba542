"""The flags that one llama-server binary knows, read from its own `--help`, and a check of a line against them.

The format is that of upstream's `common_arg::to_string` (common/arg.cpp): the names of an option, comma separated, on
a line that starts with `-`; after one space a hint for each value; after three spaces, or on the next line, the text.
A value is never optional, whatever its hint looks like: `--flash-attn [on|off|auto]` needs one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanite_tools.errors import BuildError, MissingError, UsageError

HELP_TIMEOUT_S = 60.0

_NAMES = re.compile(r"-[^\s,]+(?:,\s*-[^\s,]+)*")
_VALUES = re.compile(r"(?:<[^>]*>|\S)+")
#: Options that print something and end the program; a server cannot be launched with them.
_ONE_SHOT = frozenset({"--help", "--version", "--list-devices", "--cache-list", "--completion-bash"})
#: Devices that a binary lists beside GPUs: they take no layers.
_NOT_A_GPU = ("nanite", "blas", "amx", "cpu", "none", "(none)")


@dataclass(frozen=True)
class Flag:
    """One option: all its names (`--no-…` forms too), how many values follow, the help text in one line."""

    names: tuple[str, ...]
    n_values: int
    text: str

    @property
    def removed(self) -> bool:
        """True for an option that the binary lists only to refuse it."""
        return "argument has been removed" in self.text

    @property
    def one_shot(self) -> bool:
        """True for an option that prints something and exits."""
        return not _ONE_SHOT.isdisjoint(self.names)


@dataclass(frozen=True)
class Use:
    """One option as it stands on a line: the name that was used, its values, the option."""

    name: str
    values: tuple[str, ...]
    flag: Flag

    @property
    def argv(self) -> list[str]:
        return [self.name, *self.values]


@dataclass(frozen=True)
class FlagTable:
    """Every option of one binary, by each of its names."""

    by_name: Mapping[str, Flag]

    def find(self, name: str) -> Flag | None:
        """The option called `name`. As the binary does, `_` counts as `-` in names that start with `--`."""
        return self.by_name.get(name.replace("_", "-") if name.startswith("--") else name)

    def read(self, argv: Sequence[str]) -> list[Use]:
        """Split a list of arguments into options with their values.

        Raises UsageError for a word that is no option of this binary, one that it removed, one that prints and exits,
        and one whose value is missing.
        """
        uses: list[Use] = []
        position = 0
        while position < len(argv):
            name = argv[position]
            flag = self.find(name)
            if flag is None:
                raise UsageError(f"this llama-server has no option {name!r}", self._hint(name))
            if flag.removed:
                raise UsageError(f"llama-server: {name}: {flag.text}", "see the options with `llama-server --help`")
            if flag.one_shot:
                raise UsageError(f"{name} prints something and ends, it starts no server", "run llama-server itself")
            values = tuple(argv[position + 1 : position + 1 + flag.n_values])
            if len(values) < flag.n_values:
                raise UsageError(f"{name} needs {flag.n_values} value(s), {len(values)} given", flag.text)
            uses.append(Use(name, values, flag))
            position += 1 + flag.n_values
        return uses

    def _hint(self, name: str) -> str:
        import difflib

        bare, equals, value = name.partition("=")
        if equals and self.find(bare):
            return f"llama-server takes the value as a word of its own: {bare} {value}"
        if not name.startswith("-"):
            return "a value without its option? llama-server takes options only"
        close = difflib.get_close_matches(name, list(self.by_name), n=3, cutoff=0.75)
        return f"did you mean {', '.join(close)}?" if close else "see the options with `llama-server --help`"


def parse_help(text: str) -> FlagTable:
    """Read the output of `llama-server --help`. Unknown lines are text of the option above them."""
    heads: list[tuple[tuple[str, ...], int, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("-----"):
            continue
        match = _NAMES.match(line)
        if match is None:
            if heads and line.strip():
                heads[-1][2].append(line.strip())
            continue
        names = tuple(re.split(r",\s*", match.group()))
        rest = line[match.end() :]
        hint, _, start = (rest.partition("   ")) if not rest.startswith("   ") else ("", "", rest)
        heads.append((names, len(_VALUES.findall(hint)), [start.strip()] if start.strip() else []))
    table: dict[str, Flag] = {}
    for names, n_values, words in heads:
        flag = Flag(names, n_values, " ".join(words))
        table.update(dict.fromkeys(names, flag))
    return FlagTable(table)


def _output(binary: Path, option: str) -> str:
    """What `binary option` prints on stdout. Raises MissingError when it does not start, BuildError when it fails."""
    try:
        done = subprocess.run(
            [str(binary), option],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=HELP_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingError(f"no llama-server at {binary}", "`nanite-tools build` makes it") from error
    except OSError as error:
        raise MissingError(f"{binary} does not start: {error.strerror}", "`nanite-tools build` makes one") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{binary} {option} did not end in {HELP_TIMEOUT_S:.0f} s", "build it again") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise BuildError(f"{binary} {option} failed with {done.returncode}: {last}", "build it again")
    return done.stdout


def read_flags(binary: Path) -> FlagTable:
    """The options of a llama-server binary. Raises MissingError or BuildError when it has no readable `--help`."""
    table = parse_help(_output(binary, "--help"))
    if table.find("--model") is None or table.find("--port") is None:
        raise BuildError(f"{binary} --help lists no --model and --port", "is this a llama-server?")
    return table


def list_gpus(binary: Path) -> list[str]:
    """Names of the GPUs that this binary can use here (its `--list-devices`); empty without one."""
    names = re.findall(r"^\s+([^\s:][^:]*):", _output(binary, "--list-devices"), flags=re.MULTILINE)
    return [name for name in names if not name.lower().startswith(_NOT_A_GPU)]
