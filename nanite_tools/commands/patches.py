"""`nanite-tools patches`: status, apply, export and verify the patch series."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from nanite_tools.console import note, print_error, print_json, print_table
from nanite_tools.paths import find_layout

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")


@click.group()
def command() -> None:
    """The patches that make upstream llama.cpp ours: patches/series, hooks/ and overlay/."""


@command.command()
@_JSON
def status(as_json: bool) -> None:
    """The pin, the submodule, the prepared tree and each patch. Changes nothing."""
    from nanite_tools.patch_status import status as look

    found = look(find_layout())
    if as_json:
        print_json({"schema": 1} | asdict(found))
        return
    click.echo(f"pin        {found.pin}")
    click.echo(f"submodule  {found.submodule.state}{f' ({found.submodule.why})' if found.submodule.why else ''}")
    click.echo(f"tree       {found.tree.state}: {found.tree.path}")
    for line in found.tree.changes:
        click.echo(f"           {line}")
    click.echo(f"budget     {found.budget.patches} of {found.budget.max_patches} patches, ", nl=False)
    click.echo(f"{found.budget.added_lines} of {found.budget.max_added_lines} added lines")
    for line in found.problems:
        click.echo(f"problem    {line}")
    rows = [[p.slug, p.sha256[:12], str(p.added_lines), "yes" if p.applied else "no"] for p in found.patches]
    print_table("", ["patch", "sha256", "added lines", "applied"], rows)


@command.command()
@click.option("--discard", is_flag=True, help="Drop what was edited in the prepared tree.")
@click.option("--source", "source_dir", type=click.Path(path_type=Path), help="A llama.cpp clone to take the pin from.")
@click.option("--offline", is_flag=True, help="Fetch nothing.")
@_JSON
def apply(discard: bool, source_dir: Path | None, offline: bool, as_json: bool) -> None:
    """Prepare the source tree: upstream at the pin, the patches, the overlay. Does nothing when it is current."""
    from nanite_tools import patchset
    from nanite_tools.source import ensure_source

    layout = find_layout()
    source = ensure_source(layout, source_dir=source_dir, offline=offline, say=note)
    current = patchset.is_current(layout)
    stamp = patchset.apply(layout, discard=discard, say=note)
    if as_json:
        result = {"schema": 1, "path": str(layout.src), "changed": not current, "source": source.how}
        print_json(result | asdict(stamp))
    elif current:
        note(f"patches: {layout.src} is current ({stamp.head[:12]})")


@command.command()
@_JSON
def export(as_json: bool) -> None:
    """Write the prepared tree's commits and edited overlay files back to patches/."""
    from nanite_tools.patch_export import export as export_tree

    result = export_tree(find_layout(), say=note)
    if as_json:
        print_json({"schema": 1} | asdict(result))
        return
    for what, names in (("wrote", result.written), ("removed", result.removed), ("overlay", result.overlay)):
        for name in names:
            click.echo(f"{what} {name}")
    if not (result.written or result.removed or result.overlay):
        click.echo("nothing to export")


@command.command()
@click.option("--against", type=click.Path(path_type=Path), help="Another upstream tree; the pin when left out.")
@_JSON
def verify(against: Path | None, as_json: bool) -> None:
    """Check that the series applies, says why, and keeps to its budget. Lists every problem, not the first."""
    from nanite_tools.errors import BuildError
    from nanite_tools.patch_verify import verify as verify_series

    verdict = verify_series(find_layout(), against=against)
    if as_json:
        print_json({"schema": 1, "ok": not verdict.problems} | asdict(verdict))
    else:
        for check in verdict.checks:
            click.echo(f"{'applies' if check.applies else 'FAILS  '}  {check.slug}: {check.drop_check}")
    note(f"{len(verdict.checks)} patches, {verdict.added_lines} added lines, {len(verdict.problems)} problems")
    for line in verdict.problems:
        print_error(line, "")
    if verdict.problems:
        sys.exit(BuildError.exit_code)
