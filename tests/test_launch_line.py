from dataclasses import dataclass, replace
from pathlib import Path

import fake_llama_server
import pytest

from nanite_tools.errors import DegradedError, MissingError, UsageError
from nanite_tools.launch_line import LaunchLine, Machine, Wish, build_line, environment_notes, this_machine
from nanite_tools.server_flags import FlagTable, parse_help


@dataclass(frozen=True)
class Model:
    arch: str = "qwen35moe"
    n_experts: int = 64
    n_ctx_train: int = 262144
    routed_layers: tuple[int, ...] = (0, 1, 2)


OURS = parse_help(fake_llama_server.HELP + fake_llama_server.NANITE_HELP)
STOCK = parse_help(fake_llama_server.HELP)
MOE, DENSE = Model(), Model("llama", 0, 2048, ())
CPU = Machine(6, 12)
WISH = Wish(Path("/m/x.gguf"))


def line(
    wish: Wish = WISH, *extra: str, model: Model = MOE, flags: FlagTable = OURS, machine: Machine = CPU
) -> LaunchLine:
    return build_line(Path("/b/llama-server"), flags, model, machine, replace(wish, extra=extra))


def text(built: LaunchLine) -> str:
    return " ".join(built.argv)


START = "/b/llama-server --model /m/x.gguf --host 127.0.0.1 --port 8080"


def test_a_mixture_of_experts_is_observed_without_repacking() -> None:
    built = line()
    assert text(built) == f"{START} --ctx-size 8192 --threads 6 --parallel 1 --nanite observe --no-repack"
    assert built.mode == "observe"
    assert "3 routed layers" in built.mode_reason
    assert [note.split(":")[0] for note in built.notes] == ["--ctx-size 8192", "--threads 6", "--parallel 1"]


def test_the_context_is_no_more_than_the_training_s() -> None:
    assert "--ctx-size 4096 " in text(line(model=replace(MOE, n_ctx_train=4096)))
    assert "--ctx-size 8192 " in text(line(model=replace(MOE, n_ctx_train=0)))
    built = line(replace(WISH, ctx=9000), model=replace(MOE, n_ctx_train=4096))
    assert "--ctx-size 9000 " in text(built)
    assert any("more than the 4096 tokens" in note for note in built.notes)


def test_a_dense_model_is_off_and_says_why() -> None:
    built = line(model=DENSE)
    assert text(built) == f"{START} --ctx-size 2048 --threads 6 --parallel 1 --nanite off"
    assert "dense" in built.mode_reason
    with pytest.raises(DegradedError, match="llama: a dense model") as caught:
        line(replace(WISH, mode="observe"), model=DENSE)
    assert "--mode off" in caught.value.hint


def test_a_stock_binary_runs_only_with_mode_off() -> None:
    built = line(replace(WISH, mode="off"), flags=STOCK)
    assert text(built) == f"{START} --ctx-size 8192 --threads 6 --parallel 1"
    assert "--nanite" not in text(line(model=DENSE, flags=STOCK))
    for mode in ("auto", "observe"):
        with pytest.raises(MissingError, match="no --nanite") as caught:
            line(replace(WISH, mode=mode), flags=STOCK)
        assert "--mode off" in caught.value.hint


def test_the_user_s_own_choices_stand() -> None:
    built = line(Wish(Path("/m/x.gguf"), "off", "::1", 9, 100, 3, 2))
    assert text(built).endswith("--host ::1 --port 9 --ctx-size 100 --threads 3 --parallel 2 --nanite off")
    assert built.notes == ()
    assert any("12 logical" in note for note in line(replace(WISH, threads=13)).notes)


def test_extra_flags_come_last_and_replace_our_defaults() -> None:
    built = line(WISH, "-t", "2", "-nr", "--api-prefix", "/p/", "--api-key", "k1,k2")
    expected = f"{START} --ctx-size 8192 --parallel 1 --nanite observe -t 2 -nr --api-prefix /p/ --api-key k1,k2"
    assert text(built) == expected
    assert (built.api_prefix, built.api_key, built.unreachable) == ("/p", "k1", ())
    assert line(WISH, "--ssl-cert-file", "c").unreachable == ("--ssl-cert-file",)


@pytest.mark.parametrize(
    ("extra", "hint"),
    [
        (("-m", "other.gguf"), "MODEL"),
        (("--port", "1"), "--port"),
        (("--host", "h"), "--host"),
        (("--nanite", "off"), "--mode"),
        (("--repack",), "--mode off"),
        (("--bogus",), "--help"),
    ],
)
def test_extra_flags_that_would_fight_ours_are_refused(extra: tuple[str, ...], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        line(WISH, *extra)
    assert hint in caught.value.hint


def test_the_same_thing_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="--threads is given twice"):
        line(replace(WISH, threads=2), "-t", "2")
    assert text(line(replace(WISH, mode="off"), "--repack")).endswith("--nanite off --repack")


def test_gpu_flags_without_a_gpu_are_refused() -> None:
    for value in ("99", "auto", "all"):
        with pytest.raises(MissingError, match=f"-ngl {value}: .* no GPU"):
            line(WISH, "-ngl", value)
    assert text(line(WISH, "-ngl", "0")).endswith("-ngl 0")
    built = line(WISH, "-ngl", "99", machine=replace(CPU, gpus=("CUDA0",)))
    assert text(built).endswith("-ngl 99")
    assert any("-ngl 99" in note for note in built.notes)


def test_this_machine_and_environment() -> None:
    machine = this_machine(["CUDA0"])
    assert 1 <= machine.physical_cores <= machine.logical_cores
    assert machine.gpus == ("CUDA0",)
    assert environment_notes({"PATH": "", "LLAMA_ARG_THREADS": "1", "NANITE_MODE": "off"}) == [
        "LLAMA_ARG_THREADS, NANITE_MODE in the environment also reach llama-server"
    ]
    assert environment_notes({"PATH": ""}) == []
