from pathlib import Path

import fake_llama_server
import pytest

from nanite_tools.errors import BuildError, MissingError, UsageError
from nanite_tools.server_flags import FlagTable, list_gpus, parse_help, read_flags

TABLE = parse_help(fake_llama_server.HELP)


@pytest.mark.parametrize(
    ("name", "n_values", "names"),
    [
        ("--help", 0, ("-h", "--help", "--usage")),
        ("--version", 0, ("--version",)),
        ("-t", 1, ("-t", "--threads")),
        ("--flash-attn", 1, ("-fa", "--flash-attn")),
        ("--no-escape", 0, ("-e", "--escape", "--no-escape")),
        ("-nkvo", 0, ("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload")),
        ("-nr", 0, ("--repack", "-nr", "--no-repack")),
        ("-ot", 1, ("-ot", "--override-tensor")),
        ("--control-vector-layer-range", 2, ("--control-vector-layer-range",)),
        ("--logit-bias", 1, ("-l", "--logit-bias")),
    ],
)
def test_each_option_has_all_its_names_and_values(name: str, n_values: int, names: tuple[str, ...]) -> None:
    flag = TABLE.find(name)
    assert flag is not None
    assert (flag.n_values, flag.names) == (n_values, names)


def test_the_text_is_joined_and_section_lines_are_not_part_of_it() -> None:
    flag = TABLE.find("--draft-n")
    assert flag is not None
    assert flag.text == "the argument has been removed. use --spec-draft-n-max or --spec-ngram-mod-n-max"
    assert TABLE.find("--spec-ngram-mod-n-max") is None
    assert TABLE.find("-----") is None


def test_read_splits_a_line_into_options_and_values() -> None:
    argv = ["-t", "4", "--no-repack", "--control-vector-layer-range", "1", "2", "--flash_attn", "-1"]
    assert [use.argv for use in TABLE.read(argv)] == [
        ["-t", "4"],
        ["--no-repack"],
        ["--control-vector-layer-range", "1", "2"],
        ["--flash_attn", "-1"],
    ]


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["--bogus"], "--bogus", "llama-server --help"),
        (["--thread", "4"], "--thread", "--threads"),
        (["--threads=4"], "--threads=4", "--threads 4"),
        (["stray"], "stray", "without its option"),
        (["-fa"], "needs 1 value", "Flash Attention"),
        (["--control-vector-layer-range", "1"], "needs 2 value(s), 1 given", "layer range"),
        (["--draft", "3"], "has been removed", "--help"),
        (["--version"], "starts no server", "itself"),
        (["-fl_a", "1"], "-fl_a", ""),
    ],
)
def test_read_refuses(argv: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        TABLE.read(argv)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_read_flags_and_gpus_of_a_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = fake_llama_server.wrapper(tmp_path)
    assert read_flags(binary).find("--nanite") is not None
    assert list_gpus(binary) == []
    monkeypatch.setenv("FAKE_STOCK", "1")
    monkeypatch.setenv("FAKE_GPU", "1")
    assert read_flags(binary).find("--nanite") is None
    assert list_gpus(binary) == ["CUDA0"]


@pytest.mark.parametrize(
    ("script", "kind"),
    [("#!/bin/sh\nexit 3\n", BuildError), ("#!/bin/sh\necho hello\n", BuildError), ("#!/no/such/sh\n", MissingError)],
)
def test_a_binary_without_a_readable_help(tmp_path: Path, script: str, kind: type[Exception]) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(script)
    binary.chmod(0o755)
    with pytest.raises(kind):
        read_flags(binary)
    with pytest.raises(MissingError):
        read_flags(tmp_path / "absent")


@pytest.mark.model
def test_the_real_binary_lists_what_a_launch_uses(our_bin: Path) -> None:
    table: FlagTable = read_flags(our_bin / "llama-server")
    values = {"--model": 1, "--host": 1, "--port": 1, "--ctx-size": 1, "--threads": 1, "--parallel": 1, "--nanite": 1}
    flags = {name: table.find(name) for name in values}
    assert {name: flag.n_values for name, flag in flags.items() if flag} == values
    two = table.find("--control-vector-layer-range")
    assert two is not None and two.n_values == 2
    assert len({id(flag) for flag in table.by_name.values()}) > 200
