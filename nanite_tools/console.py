"""The only module that touches rich. Progress and messages go to stderr, results to stdout."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def stderr_console() -> Console:
    """A rich console on stderr. Plain text when stderr is no terminal or NO_COLOR is set (rich's own rules)."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def stdout_console() -> Console:
    """A rich console on stdout, for results that a person reads."""
    from rich.console import Console

    return Console(highlight=False)


def note(text: str) -> None:
    """One line of progress on stderr, printed as it is (no markup is read from it)."""
    stderr_console().print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """One warning line on stderr."""
    stderr_console().print("[yellow]warning:[/yellow]", end=" ")
    note(text)


def print_error(message: str, hint: str) -> None:
    """`error: …` and, where there is one, `hint: …`, on stderr."""
    console = stderr_console()
    console.print("[bold red]error:[/bold red]", end=" ")
    console.print(message, markup=False, soft_wrap=True)
    if hint:
        console.print("[bold]hint:[/bold]", end=" ")
        console.print(hint, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout, keys in the order given, ASCII-safe."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table on stdout."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    stdout_console().print(table)


def progress_bar() -> Progress:
    """A progress bar on stderr with percentage, count and time left; transient, silent when stderr is no terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    )
