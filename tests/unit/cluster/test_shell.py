"""What a shell makes of quoted values: bash itself is asked."""

import subprocess

import pytest

from paratune.cluster.shell import directive, quoted, why_no_path, why_no_sbatch_path, why_no_shell, why_no_word

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


@pytest.mark.parametrize("text", [text for text in HOSTILE if why_no_path(text) is None])
def test_quoted_text_is_one_word_that_says_the_same(text: str, tmp_path):
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
def test_what_no_quotes_hold_is_refused(text: str):
    assert why_no_path(text) is not None


@pytest.mark.parametrize("text", ["a b", "a;b", "$A", "a\n", "a'", ""])
def test_words_are_plain(text: str):
    assert "allowed: letters, digits" in (why_no_word(text) or "")


def test_words_of_modules_and_resources_are_fine():
    assert [why_no_word(each) for each in ("GCC/12.3.0", "gpu:a100:4", "a-b_c+d@e%f=g,h")] == [None] * 3
    assert why_no_word("a100&ib|[x*2]", more="&|*()[]!, ") is None


def test_a_line_of_shell_is_one_that_bash_reads():
    assert why_no_shell("ulimit -n 65536; export A=$(date)") is None
    assert "which bash does not understand" in (why_no_shell("if true; then") or "")
    assert "write each line of shell as an item of its own" in (why_no_shell("a\nb") or "")


def test_directives_are_quoted_where_sbatch_needs_it():
    assert directive("exclusive") == "#SBATCH --exclusive"
    assert directive("output", "/w/%j.txt") == "#SBATCH --output=/w/%j.txt"
    assert directive("chdir", "/my runs") == '#SBATCH --chdir="/my runs"'
    assert why_no_sbatch_path("/my runs") is None
    assert "sbatch cannot read" in (why_no_sbatch_path('/a"b') or "")
