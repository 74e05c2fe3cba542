"""Prepare and run a launch: find the binary, read its flags and the model, build the line, serve until the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanite_tools.errors import DegradedError, MissingError, UsageError
from nanite_tools.http_api import Api
from nanite_tools.launch_line import LaunchLine, Wish, build_line, environment_notes, this_machine
from nanite_tools.paths import Layout, find_layout, user_cache_dir
from nanite_tools.server import Server, check_port, free_port, new_log, probe_host
from nanite_tools.server_flags import list_gpus, read_flags
from nanite_tools.stop_signals import StopRequestError, stop_signals

INERT_EXIT = DegradedError.exit_code


@dataclass(frozen=True)
class Plan:
    """A checked line, and where its server will listen."""

    line: LaunchLine
    wish: Wish
    api: Api


@dataclass(frozen=True)
class Verdict:
    """What GET /nanite said after the start: `inert` when nothing of this model can go through Nanite, and why."""

    inert: bool
    text: str
    document: dict[str, Any] | None


@dataclass(frozen=True)
class Running:
    """A server that is ready."""

    server: Server
    ready_s: float
    verdict: Verdict


def find_binary(layout: Layout, bin_dir: Path | None = None, preset: str = "cpu") -> Path:
    """Absolute path of llama-server: in `bin_dir`, else our own build. Raises MissingError when it is not there."""
    name = "llama-server.exe" if sys.platform == "win32" else "llama-server"
    binary = ((bin_dir or layout.build_dir(preset) / "bin") / name).absolute()
    if not binary.is_file():
        raise MissingError(f"no llama-server at {binary}", "`nanite-tools build` makes it")
    return binary


def build_notes(layout: Layout, preset: str = "cpu") -> list[str]:
    """A note when our build is not in the manifest: its last build did not end."""
    from nanite_tools import manifest

    if manifest.entry_name(layout, layout.build_dir(preset)) in manifest.read(layout.manifest):
        return []
    return [f"the {preset} build is not in {layout.manifest.name}: it did not end; `nanite-tools build` completes it"]


def prepare(wish: Wish, bin_dir: Path | None = None, layout: Layout | None = None) -> Plan:
    """Check model, binary and wish; port 0 becomes a free port. Raises the errors of the parts that it asks."""
    from nanite_tools import topology

    model = topology.inspect_model(wish.model_path)
    notes: list[str] = []
    if bin_dir is None:
        layout = layout or find_layout()
        binary = find_binary(layout)
        notes += build_notes(layout)
    else:
        binary = find_binary(Layout(bin_dir), bin_dir)
    port = wish.port or free_port(probe_host(wish.host))
    wish = replace(wish, model_path=wish.model_path.absolute(), port=port)
    line = build_line(binary, read_flags(binary), model, this_machine(list_gpus(binary)), wish)
    line = replace(line, notes=(*notes, *line.notes, *environment_notes(os.environ)))
    key = line.api_key or os.environ.get("LLAMA_API_KEY", "").split(",")[0]
    return Plan(line, wish, Api(probe_host(wish.host), port, line.api_prefix, key))


def judge(mode: str, document: dict[str, Any] | None) -> Verdict:
    """Is Nanite inert? `document` is GET /nanite after the start, None for a binary without that path.

    Before a request `active` may be false; what counts is whether expert weights came to Nanite at all.
    """
    if document is None:
        text = "this llama-server has no GET /nanite: a stock build"
        return Verdict(mode != "off", text, None)
    if mode == "off":
        return Verdict(False, "Nanite is off: every op runs upstream's code", document)
    weights = document.get("weights", {})
    tensors = int(weights.get("tensors", 0))
    if document.get("mode") == mode and tensors > 0:
        mapped, copied = int(weights.get("mapped_bytes", 0)), int(weights.get("copied_bytes", 0))
        text = f"Nanite has {tensors} expert tensors: {mapped} bytes mapped from the file, {copied} copied"
        return Verdict(False, text, document)
    return Verdict(True, reasons(document) or f"mode {document.get('mode')}, {tensors} expert tensors", document)


def reasons(document: dict[str, Any]) -> str:
    """The reasons of a /nanite document as one line; empty when it gives none."""
    return "; ".join(f"{item.get('code')}: {item.get('detail')}" for item in document.get("reasons", []))


def check_runnable(plan: Plan) -> None:
    """Raise UsageError for a line that we could not ask how it is, MissingError for a port that is taken."""
    if plan.line.unreachable or plan.wish.host.endswith(".sock"):
        what = ", ".join(plan.line.unreachable) or plan.wish.host
        raise UsageError(f"launch cannot watch a server with {what}", "use --print and run the line yourself")
    check_port(plan.api.host, plan.wish.port)


def start(plan: Plan, *, log: Path | None, wait_s: float, tick: Callable[[Server, float], None]) -> Running:
    """Start the server and wait until it is ready. On failure it is ended; the caller ends a Running's server."""
    check_runnable(plan)
    server = Server(plan.line.argv, log or new_log(user_cache_dir() / "logs"), plan.api)
    try:
        ready_s = server.wait_ready(wait_s, lambda seconds: tick(server, seconds))
        return Running(server, ready_s, judge(plan.line.mode, plan.api.nanite()))
    except BaseException:
        server.stop()
        raise


def run(
    plan: Plan,
    on_ready: Callable[[Running], None],
    *,
    log: Path | None = None,
    wait_s: float = 1800.0,
    strict: bool = False,
    verbose: bool = False,
) -> int:
    """Serve until the server ends or a stop signal comes; the exit code.

    0: the server ended by itself with 0. 130, 143, 129: SIGINT, SIGTERM, SIGHUP. 7: instead of 0 and 130 when Nanite
    was inert. When a ready server fails, the exit code of `Server.end_error`, which is printed. Raises the errors of
    `start`, and DegradedError, before `on_ready`, for an inert Nanite with `strict`.
    """
    from nanite_tools.console import note, print_error, stderr_console

    def copy_log(server: Server) -> None:
        if verbose:
            sys.stderr.write(server.new_output())
            sys.stderr.flush()

    inert = False
    try:
        with stop_signals():
            with stderr_console().status("starting llama-server") as status:

                def tick(server: Server, seconds: float) -> None:
                    copy_log(server)
                    status.update(f"llama-server is loading the model ({seconds:.0f} s, log {server.log})")

                running = start(plan, log=log, wait_s=wait_s, tick=tick)
            with running.server as server:
                inert = running.verdict.inert
                if inert and strict:
                    raise DegradedError(f"Nanite is inert: {running.verdict.text}", "leave --strict out to serve so")
                on_ready(running)
                ended = server.wait_end(copy_log)
                code = 0
                if ended != 0:  # printed, not raised: with --json the result is on stdout already
                    error = server.end_error(ended)
                    print_error(error.message, error.hint)
                    code = error.exit_code
    except StopRequestError as request:
        note(f"{request}: the server has ended")
        code = request.exit_code
    return INERT_EXIT if inert and code in (0, 130) else code


def document(plan: Plan, quoted: str, running: Running | None = None) -> dict[str, Any]:
    """The JSON result, schema 1; with `running` also where the server answers and what /nanite said."""
    out: dict[str, Any] = {
        "schema": 1,
        "argv": list(plan.line.argv),
        "line": quoted,
        "mode": plan.line.mode,
        "mode_reason": plan.line.mode_reason,
        "notes": list(plan.line.notes),
        "url": plan.api.url,
    }
    if running is not None:
        out["pid"] = running.server.pid
        out["log"] = str(running.server.log)
        out["ready_s"] = round(running.ready_s, 3)
        out["inert"] = running.verdict.inert
        out["nanite"] = running.verdict.document
    return out
