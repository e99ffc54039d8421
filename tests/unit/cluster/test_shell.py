"""Quoted values, as bash itself reads them."""

import subprocess

import pytest

from paratune.cluster.shell import directive, path_problem, quoted, sbatch_path_problem, shell_problem, word_problem

HOSTILE = [
    "a b",
    "$(touch hacked)",
    "`touch hacked`",
    "a; touch hacked",
    "a && touch hacked",
    "a | touch hacked",
    "it's",
    'say "hi"',
    "back\\slash",
    "*",
    "~",
    "#no comment",
    "$5",
    "a'$(touch hacked)'b",
    "",
    "é ü",
]


@pytest.mark.parametrize("text", [text for text in HOSTILE if path_problem(text) is None])
def test_quoted_text_is_one_equal_word(text: str, tmp_path):
    done = subprocess.run(
        ["bash", "-c", f'set -- {quoted(text)}; printf "%s|" "$#" "$1"'], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == f"1|{text}|"
    assert list(tmp_path.iterdir()) == []


def test_only_variables_are_expanded():
    words = quoted("/a/$WHO/${WHO}x"), quoted('/a $WHO"`')
    script = f'set -- {words[0]} {words[1]}; printf "%s|" "$@"'
    done = subprocess.run(["bash", "-c", script], env={"WHO": "me; you"}, capture_output=True, text=True)
    assert done.stdout == '/a/me; you/me; youx|/a me; you"`|'


@pytest.mark.parametrize("text", ["$(reboot)", "a$((1+1))", "a\nb", "a\x1b[31m", "$", "$!", "${A:-$(x)}", "a\u2028b"])
def test_values_that_cannot_be_quoted_are_refused(text: str):
    assert path_problem(text) is not None


@pytest.mark.parametrize("text", ["a b", "a;b", "$A", "a\n", "a'", ""])
def test_words_are_plain(text: str):
    assert "allowed: letters, digits" in (word_problem(text) or "")


def test_words_of_modules_and_resources_are_fine():
    assert [word_problem(item) for item in ("GCC/12.3.0", "gpu:a100:4", "a-b_c+d@e%f=g,h")] == [None] * 3
    assert word_problem("a100&ib|[x*2]", more="&|*()[]!, ") is None


def test_a_line_of_shell_is_one_that_bash_reads():
    assert shell_problem("ulimit -n 65536; export A=$(date)") is None
    assert "if true; then" in (shell_problem("if true; then") or "")
    assert shell_problem("a\nb") is not None


def test_directives_are_quoted_where_sbatch_needs_it():
    assert directive("exclusive") == "#SBATCH --exclusive"
    assert directive("output", "/w/%j.txt") == "#SBATCH --output=/w/%j.txt"
    assert directive("chdir", "/my runs") == '#SBATCH --chdir="/my runs"'
    assert sbatch_path_problem("/my runs") is None
    assert "sbatch cannot read" in (sbatch_path_problem('/a"b') or "")
