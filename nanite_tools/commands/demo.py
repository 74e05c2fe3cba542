"""`nanite-tools demo`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--prompt", help="What the model continues.")
@click.option("--n-predict", type=click.IntRange(1, 2048), help="Tokens to generate.")
@click.option("--source", "source_dir", type=click.Path(path_type=Path), help="A llama.cpp checkout at the pin.")
@click.option("--keep", is_flag=True, help="Leave the server running in the foreground until Ctrl-C.")
@click.option("--log", type=click.Path(path_type=Path), help="The server's log; default: the user's cache folder.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(
    prompt: str | None, n_predict: int | None, source_dir: Path | None, keep: bool, log: Path | None, as_json: bool
) -> None:
    """Source, patches, build, launch of the embedded model, one answer, and what the counters say.

    Steps that are done already take no time; after Ctrl-C the same command goes on.

    Exit codes: 0 fine, 7 when the routes did not go through Nanite, and those of the steps. Ctrl-C: 130, also when it
    ends a server that --keep left running.
    """
    from nanite_tools import demo
    from nanite_tools.console import note, print_error, print_json
    from nanite_tools.demo_figures import explain
    from nanite_tools.paths import find_layout
    from nanite_tools.stop_signals import StopRequestError, stop_signals

    served = False
    try:
        with stop_signals():
            result = demo.run(
                find_layout(),
                prompt=demo.PROMPT if prompt is None else prompt,
                n_predict=demo.N_PREDICT if n_predict is None else n_predict,
                source_dir=source_dir,
                log=log,
                say=note,
            )
            with result.running.server as server:
                if as_json:
                    print_json(demo.document(result))
                else:
                    answer = result.answer
                    click.echo(f"\n{answer.prompt}{answer.text}\n")
                    click.echo(f"{answer.n_tokens} tokens, {answer.tokens_per_s:.0f} a second; greedy, no cache.\n")
                    click.echo("\n".join(explain(result.figures, result.model)))
                served = keep
                if keep:
                    note(f"serving at {server.api.url} (Ctrl-C ends it)")
                    ended = server.wait_end(lambda server: None)
                    if ended != 0:
                        error = server.end_error(ended)
                        print_error(error.message, error.hint)
                        sys.exit(error.exit_code)
    except StopRequestError as request:
        note(f"{request}: the server has ended" if served else "interrupted; the same command goes on from here")
        sys.exit(request.exit_code)
