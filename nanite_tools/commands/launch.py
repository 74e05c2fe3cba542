"""`nanite-tools launch MODEL [-- LLAMA-SERVER FLAGS]`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

SHELLS = ("posix", "powershell", "cmd", "systemd")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--mode", type=click.Choice(["auto", "off", "observe"]), default="auto", help="auto: observe for a MoE.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one.")
@click.option("--ctx", type=click.IntRange(min=1), help="Context in tokens; default: the model's, at most 8192.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: one for each physical core.")
@click.option("--parallel", type=click.IntRange(min=1), help="Requests at the same time; default 1.")
@click.option("--print", "only_print", is_flag=True, help="Print the command line and do not run it.")
@click.option("--shell", type=click.Choice(SHELLS), help="Whose quoting --print uses; default: this system's.")
@click.option("--bin", "bin_dir", type=click.Path(path_type=Path), help="Folder with another llama-server.")
@click.option("--log", type=click.Path(path_type=Path), help="The server's log; default: the user's cache folder.")
@click.option("--wait", "wait_s", type=click.FloatRange(min=0.1), default=1800.0, help="Seconds until ready, at most.")
@click.option("--strict", is_flag=True, help="Stop at once, with exit 7, when Nanite is inert.")
@click.option("--verbose", is_flag=True, help="Copy the server's log to stderr.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.argument("extra", nargs=-1, type=click.UNPROCESSED)
def command(
    model: Path,
    mode: str,
    host: str,
    port: int,
    ctx: int | None,
    threads: int | None,
    parallel: int | None,
    only_print: bool,
    shell: str | None,
    bin_dir: Path | None,
    log: Path | None,
    wait_s: float,
    strict: bool,
    verbose: bool,
    as_json: bool,
    extra: tuple[str, ...],
) -> None:
    """Start llama-server with MODEL on this PC, or print its command line.

    Flags for llama-server itself follow a `--`; each is checked against the binary's own --help.

    Exit codes: 130 after Ctrl-C, 7 instead of 0 or 130 when Nanite was inert in mode observe, 3 when the model does not
    load, 4 for port, memory or a missing build, 5 when the binary itself fails.
    """
    from nanite_tools import launcher, quoting
    from nanite_tools.console import note, print_json, warn
    from nanite_tools.errors import UsageError
    from nanite_tools.launch_line import Wish

    if shell and not only_print:
        raise UsageError("--shell is for --print", "add --print, or leave --shell out")
    wish = Wish(model, mode, host, port, ctx, threads, parallel, extra)
    plan = launcher.prepare(wish, bin_dir)
    quoted = quoting.render(plan.line.argv, shell or quoting.default_shell(sys.platform))
    for text in (f"mode {plan.line.mode}: {plan.line.mode_reason}", *plan.line.notes):
        note(text)
    if only_print:
        if as_json:
            print_json(launcher.document(plan, quoted))
        else:
            click.echo(quoted)
        return
    note(quoted)

    def ready(running: launcher.Running) -> None:
        if running.verdict.inert:
            warn(f"Nanite is inert: {running.verdict.text}")
        else:
            note(running.verdict.text)
        if as_json:
            print_json(launcher.document(plan, quoted, running))
        note(f"ready in {running.ready_s:.1f} s: {running.server.api.url}  (pid {running.server.pid})")
        note(f"log: {running.server.log}  (Ctrl-C ends the server)")

    sys.exit(launcher.run(plan, ready, log=log, wait_s=wait_s, strict=strict, verbose=verbose))
