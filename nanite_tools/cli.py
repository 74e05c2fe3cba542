"""The command line: `nanite-tools VERB`. Verbs load when they are called, so that `--help` stays quick."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from nanite_tools import __version__
from nanite_tools.errors import NaniteError

#: verb -> (module under nanite_tools.commands, one-line help). The module holds a click command named `command`.
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "From a fresh clone to a served model and one answer."),
    "build": ("build", "Build the runtime from the prepared source tree."),
    "patches": ("patches", "Status, apply, export and verify the patch series."),
    "inspect": ("inspect", "What a GGUF model holds: layers, experts, bytes, quantisation."),
    "launch": ("launch", "The llama-server command line for this PC, printed or run."),
}


class VerbGroup(click.Group):
    """A click group that imports a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"nanite_tools.commands.{VERBS[cmd_name][0]}")
        command = module.command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.command is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, without importing any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nanite-tools")
def cli() -> None:
    """Run big mixture-of-experts models on the PC that you have.

    Exit codes: 0 fine, 2 usage, 3 bad input, 4 hardware or tool missing, 5 source, patch or build failed,
    6 a gate failed, 7 degraded or inert at run time.
    """


def _fail(message: str, hint: str, exit_code: int, as_json: bool) -> NoReturn:
    from nanite_tools.console import print_error, print_json

    if as_json:
        print_json({"schema": 1, "error": {"message": message, "hint": hint, "exit_code": exit_code}})
    print_error(message, hint)
    sys.exit(exit_code)


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and exit. With `--json` an error is a JSON object on stdout as well as a line on stderr."""
    args = sys.argv[1:] if argv is None else argv
    as_json = "--json" in args
    try:
        code = cli.main(args=args, prog_name="nanite-tools", standalone_mode=False)
    except NaniteError as error:
        _fail(error.message, error.hint, error.exit_code, as_json)
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "nanite-tools"
        _fail(error.format_message(), f"see `{where} --help`", 2, as_json)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", "run the same command again to resume", 130, as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno is None:
            raise
        where = f": {error.filename}" if error.filename else ""
        _fail(
            f"{error.strerror}{where}",
            "free disk space, permissions and the path's spelling are the usual causes",
            4,
            as_json,
        )
    sys.exit(code if isinstance(code, int) else 0)  # click returns the code of ctx.exit() in this mode
