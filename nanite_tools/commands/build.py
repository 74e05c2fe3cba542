"""`nanite-tools build`: build the runtime from the prepared source tree."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("preset", type=click.Choice(["cpu", "cuda", "debug", "asan"]), default="cpu")
@click.option("--stock", is_flag=True, help="Build unpatched upstream, the reference, beside ours.")
@click.option("--module", is_flag=True, help="Backends as loadable modules; with --stock, Nanite's is built alone.")
@click.option("--tests", is_flag=True, help="Build the C++ tests too (target nanite-tests).")
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once. Default: cores, and 1.5 GiB for each.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A llama.cpp checkout to use instead of a download; it is checked against the pin.",
)
@click.option("--clean", is_flag=True, help="Remove this build's folder first.")
@click.option("--cuda-arch", metavar="LIST", help="GPU architectures, such as 86,90. Default: this PC's GPU.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(
    preset: str,
    stock: bool,
    module: bool,
    tests: bool,
    jobs: int | None,
    source: Path | None,
    clean: bool,
    cuda_arch: str | None,
    as_json: bool,
) -> None:
    """Build PRESET (cpu, cuda, debug or asan; default cpu).

    Nothing is built twice: a call on an unchanged tree returns at once, an interrupted one goes on where it was. The
    whole output is in build.log of the build's folder, what was built with what in manifest.json beside the folders.
    """
    from nanite_tools import builder, cmake_flags, console
    from nanite_tools.paths import find_layout

    targets = None
    if tests and preset != "asan":
        targets = [*cmake_flags.PROGRAMS, cmake_flags.TESTS_TARGET]
    result = builder.build(
        find_layout(),
        preset,
        stock=stock,
        module=module,
        targets=targets,
        jobs=jobs,
        source_dir=source,
        cuda_arch=cuda_arch,
        clean=clean,
        say=console.note,
    )
    if as_json:
        console.print_json(
            {
                "schema": 1,
                "preset": preset,
                "stock": stock,
                "module": module,
                "build_dir": str(result.build_dir),
                "bin_dir": str(result.bin_dir),
                "up_to_date": result.up_to_date,
                "seconds": result.seconds,
                "manifest": result.manifest,
            }
        )
    else:
        click.echo(result.bin_dir)
