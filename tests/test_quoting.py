"""Each quoting is read back: by a real shell, or by a parser written here from the documented rules of that shell."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from nanite_tools import quoting
from nanite_tools.errors import UsageError

ALPHABET = "ab Z0\"'`\\/$%^&|<>()!;,=*?~#{}[]@:+-_.\u2019é\t"
HARD = [
    *(
        "",
        " ",
        '"',
        "'",
        "\\",
        '\\"',
        "a\\",
        "a b\\",
        'a b\\"',
        "\\\\srv\\share x\\\\",
        'say "hi there"',
        "50%",
        "%PATH%",
    ),
    *(
        "%PATH:a=b%",
        "$HOME",
        "${HOME}",
        "$$",
        "^",
        "a^b",
        "a&b|c",
        "(x)",
        "!x!",
        ";",
        "a;b",
        "it's",
        "’‘",
        "--flag",
        "-",
    ),
    *(
        "--%",
        "@x",
        "*",
        "~",
        "#c",
        "{a,b}",
        "`x`",
        "$(x)",
        "a'b\"c%d%^",
        '"%PATH%"',
        "a=b",
        "\t",
        "é",
        "100%%",
        "%",
        "% %",
    ),
]


def words(seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(ALPHABET, k=rng.randrange(0, 9))) for _ in range(rng.randrange(1, 7))]


CASES = [[word] for word in HARD] + [HARD] + [words(seed) for seed in range(300)]


# --- readers -------------------------------------------------------------------------------------------------------


def crt_parse(line: str) -> list[str]:
    """Microsoft's "Parsing C command-line arguments", without the program's name; a tab or space separates."""
    out: list[str] = []
    i = 0
    while True:
        while i < len(line) and line[i] in " \t":
            i += 1
        if i == len(line):
            return out
        word, quoted = "", False
        while i < len(line) and (quoted or line[i] not in " \t"):
            slashes = 0
            while i < len(line) and line[i] == "\\":
                slashes += 1
                i += 1
            if i < len(line) and line[i] == '"':
                word += "\\" * (slashes // 2)
                if slashes % 2:
                    word += '"'
                elif quoted and line[i + 1 : i + 2] == '"':
                    word += '"'
                    i += 1
                else:
                    quoted = not quoted
                i += 1
            else:
                word += "\\" * slashes
                if i < len(line) and slashes == 0:
                    word += line[i]
                    i += 1
        out.append(word)


def cmd_prompt(line: str, variables: dict[str, str]) -> str:
    """What cmd.exe makes of a line typed at its prompt: phase 1 expands %…%, phase 2 takes carets away."""
    out, i = "", 0
    while i < len(line):
        if line[i] == "%" and (end := line.find("%", i + 1)) > 0:
            name = line[i + 1 : end].split(":")[0]
            if name in variables:
                out += variables[name]
                i = end + 1
                continue
        out += line[i]
        i += 1
    line, out, i, quoted = out, "", 0, False
    while i < len(line):
        if line[i] == "^" and not quoted:
            i += 1
            out += line[i]
        elif line[i] in "&|<>" and not quoted:
            raise AssertionError(f"cmd acts on {line[i]!r} in {line!r}")
        else:
            quoted ^= line[i] == '"'
            out += line[i]
        i += 1
    assert not quoted
    return out


def ps_tokens(line: str) -> list[str]:
    """Words of a PowerShell command: bare ones, and single-quoted ones where a doubled quote of any kind is one."""
    quotes, out, i = "'‘’‚‛", [], 0
    while i < len(line):
        if line[i] == " ":
            i += 1
        elif line[i] in quotes:
            word = ""
            i += 1
            while True:
                if line[i] in quotes:
                    if line[i + 1 : i + 2] and line[i + 1] in quotes:
                        word += line[i]
                        i += 2
                        continue
                    i += 1
                    break
                word += line[i]
                i += 1
            assert i == len(line) or line[i] == " ", line
            out.append(word)
        else:
            end = (line + " ").index(" ", i)
            assert all(c.isalnum() or c == "-" for c in line[i:end]), line
            out.append(line[i:end])
            i = end
    return out


def ps_legacy_line(argv: list[str]) -> str:
    """The command line that PowerShell builds before 7.3 (5.1's form: nothing escaped, empty words lost)."""
    out = []
    for word in argv:
        if word == "":
            continue
        n_quotes, after_slash, wrap = 0, False, False
        for c in word:
            if c == '"' and not after_slash:
                n_quotes += 1
            elif c.isspace() and n_quotes % 2 == 0:
                wrap = True
            after_slash = c == "\\"
        out.append(f'"{word}"' if wrap else word)
    return " ".join(out)


def systemd_parse(line: str) -> list[str]:
    """systemd.syntax(7), systemd.service(5): quotes, C escapes, %% and $$; a lone ; would start a new command."""
    assert line.startswith("ExecStart=")
    line = line[len("ExecStart=") :]
    replace = not line.startswith(":")
    line = line.removeprefix(":")
    out: list[str] = []
    i = 0
    while i < len(line):
        if line[i] == " ":
            i += 1
            continue
        word, quote, start = "", "", i
        while i < len(line) and (quote or line[i] != " "):
            c = line[i]
            if c == "\\":
                if line[i + 1] == "x":
                    word += chr(int(line[i + 2 : i + 4], 16))
                    i += 4
                else:
                    word += {"\\": "\\", '"': '"'}[line[i + 1]]
                    i += 2
                continue
            if quote and c == quote:
                quote = ""
            elif not quote and c in "\"'":
                quote = c
            elif c == "%":
                assert line[i + 1] == "%", "a specifier"
                word += "%"
                i += 1
            elif c == "$" and out and replace:
                assert line[i + 1] == "$", "a variable"
                word += "$"
                i += 1
            else:
                word += c
            i += 1
        assert not quote
        assert line[start:i] != ";"
        out.append(word)
    return out


# --- tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh")
def test_posix_through_a_real_shell() -> None:
    for case in [*CASES, ["a\nb", "\r", "\x01"]]:
        line = quoting.render(["printf", "%s\\0", *case], "posix")
        out = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout
        assert out.decode().split("\0")[:-1] == case


def test_cmd() -> None:
    variables = {"PATH": "expanded", "a": "expanded", " ": "expanded"}
    for case in CASES:
        line = quoting.render(["C:\\my dir\\llama-server.exe", *case], "cmd")
        assert line.startswith('"C:\\my dir\\llama-server.exe" ')
        rest = cmd_prompt(line, variables)[len('"C:\\my dir\\llama-server.exe"') :]
        assert crt_parse(rest) == case, line


def test_cmd_looks_as_documented() -> None:
    argv = ["llama-server", "-m", "C:\\my models\\a & b.gguf", "-a", 'say "hi"', "--path", "50%"]
    expected = 'llama-server -m "C:\\my models\\a & b.gguf" -a ^"say \\^"hi\\^"^" --path ^"50^%^"'
    assert quoting.render(argv, "cmd") == expected


@pytest.mark.parametrize("argv", [["x", "a\nb"], ["x", "a\rb"], ['a"b'], ["%a%"]])
def test_cmd_refuses_what_it_cannot_carry(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        quoting.render(argv, "cmd")


def test_powershell_on_both_versions() -> None:
    for case in CASES:
        line = quoting.render(["C:\\it's\\llama-server.exe", *case], "powershell")
        legacy = "& { $PSNativeCommandArgumentPassing = 'Legacy'; & "
        if line.startswith(legacy):
            assert line.endswith(" }")
            program, *given = ps_tokens(line[len(legacy) : -2])
        else:
            program, *given = ps_tokens(line[2:])
            assert given == case  # 7.3 passes the words as they are
        assert program == "C:\\it's\\llama-server.exe"
        assert crt_parse(ps_legacy_line(given)) == case, line


def test_powershell_without_hard_words_is_plain() -> None:
    line = quoting.render(["C:\\x y\\s.exe", "--model", "C:\\m n.gguf", "-c", "8"], "powershell")
    assert line == "& 'C:\\x y\\s.exe' --model 'C:\\m n.gguf' -c '8'"


def test_systemd() -> None:
    for program in ("/bin/llama-server", "/a b/100%/$x\\y/llama-server"):
        for case in [*CASES, ["a\nb", "\x01"]]:
            line = quoting.render([program, *case], "systemd")
            assert "\n" not in line
            assert systemd_parse(line) == [program, *case]
    assert quoting.render(["/bin/s", "-m", "/a b/100%.gguf", "$x"], "systemd") == (
        'ExecStart=/bin/s -m "/a b/100%%.gguf" "$$x"'
    )
    with pytest.raises(UsageError, match="absolute"):
        quoting.render(["bin/s"], "systemd")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_itself_takes_the_line(tmp_path: Path) -> None:
    folder = tmp_path / "a b $x 100%"
    folder.mkdir()
    program = folder / "server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "nanite-test.service"
    unit.write_text("[Service]\n" + quoting.render([str(program), *HARD, "a\nb"], "systemd") + "\n")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    about_us = [line for line in done.stderr.splitlines() if "nanite-test" in line]
    assert about_us == []
    unit.write_text(unit.read_text().replace("/server", "/gone"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert f"{folder}/gone" in done.stderr  # it did read the path back


def test_nul_is_refused_and_the_default_follows_the_system() -> None:
    for shell in quoting.SHELLS:
        with pytest.raises(UsageError, match="NUL"):
            quoting.render(["/x", "a\0b"], shell)
    assert quoting.default_shell("win32") == "powershell"
    assert quoting.default_shell("linux") == "posix"
