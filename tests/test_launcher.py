from pathlib import Path
from typing import Any

import fake_llama_server
import pytest

from nanite_tools.errors import MissingError, UsageError
from nanite_tools.launch_line import Wish
from nanite_tools.launcher import build_notes, check_runnable, find_binary, judge, prepare
from nanite_tools.manifest import record
from nanite_tools.paths import Layout, find_layout


def status(mode: str = "observe", tensors: int = 3, reasons: list[dict[str, str]] | None = None) -> dict[str, Any]:
    weights = {"tensors": tensors, "mapped_bytes": 10 * tensors, "copied_bytes": 1}
    return {"schema": 1, "mode": mode, "active": False, "reasons": reasons or [], "weights": weights}


def test_weights_that_came_to_nanite_make_it_alive_before_any_request() -> None:
    verdict = judge("observe", status())
    assert not verdict.inert
    assert verdict.text == "Nanite has 3 expert tensors: 30 bytes mapped from the file, 1 copied"


def test_inert() -> None:
    why = [{"code": "no_expert_weights", "detail": "all on a GPU"}, {"code": "x", "detail": "y"}]
    assert judge("observe", status(tensors=0, reasons=why)).text == "no_expert_weights: all on a GPU; x: y"
    assert judge("observe", status(tensors=0)).inert
    assert judge("observe", status(mode="off")).inert
    assert judge("observe", None).inert
    assert "no GET /nanite" in judge("observe", None).text


def test_off_is_not_inert() -> None:
    assert not judge("off", None).inert
    assert not judge("off", status(mode="off", tensors=0)).inert


def test_the_binary_is_our_build_s_or_the_given_folder_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANITE_TOOLS_BUILD", str(tmp_path / "b"))
    layout = Layout(tmp_path)
    with pytest.raises(MissingError) as caught:
        find_binary(layout)
    assert str(tmp_path / "b" / "cpu" / "bin" / "llama-server") in caught.value.message
    assert "nanite-tools build" in caught.value.hint
    ours = fake_llama_server.wrapper(tmp_path / "b" / "cpu" / "bin")
    other = fake_llama_server.wrapper(tmp_path / "other")
    assert find_binary(layout) == ours
    assert find_binary(layout, tmp_path / "other") == other
    assert "did not end" in build_notes(layout)[0]
    record(layout.manifest, "cpu", {"preset": "cpu"})
    assert build_notes(layout) == []


def test_prepare_reads_model_binary_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_BATCH", "1")
    monkeypatch.setenv("LLAMA_API_KEY", "secret,other")
    fake_llama_server.wrapper(tmp_path)
    model = find_layout().embedded_model
    plan = prepare(Wish(model, port=0, extra=("--api-prefix", "/p")), tmp_path)
    argv = list(plan.line.argv)
    assert argv[0] == str(tmp_path / "llama-server")
    assert argv[argv.index("--model") + 1] == str(model)
    assert argv[argv.index("--ctx-size") + 1] == "4096"  # the embedded model's training context
    assert plan.line.mode == "observe"
    assert 0 < plan.wish.port == int(argv[argv.index("--port") + 1])
    assert (plan.api.url, plan.api.api_key) == (f"http://127.0.0.1:{plan.wish.port}/p", "secret")
    assert "LLAMA_ARG_BATCH" in plan.line.notes[-1]
    check_runnable(plan)


@pytest.mark.parametrize("wish", [{"extra": ("--ssl-cert-file", "c")}, {"host": "/tmp/x.sock", "port": 1}])  # noqa: S108
def test_a_server_that_cannot_be_watched_is_only_printed(tmp_path: Path, wish: dict[str, Any]) -> None:
    fake_llama_server.wrapper(tmp_path)
    plan = prepare(Wish(find_layout().embedded_model, **{"port": 0, **wish}), tmp_path)
    with pytest.raises(UsageError, match="cannot watch") as caught:
        check_runnable(plan)
    assert "--print" in caught.value.hint
