"""LaTeX of a table: written out, and read back by a strict reader of its groups and columns."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paratune.reports.tables.latex import latex, latex_table
from paratune.reports.tables.table import Column, Table, TableCell, make_table

TABLE = Table(
    "strong-scaling",
    "Time & memory, 50% of #1",
    (Column("Strategy", "strategy", is_text=True), Column("Time (s)", "time_s"), Column("Change")),
    (
        (TableCell("zero_3"), TableCell("12.3", 12.345, ("a",)), TableCell("−21.4% ↓", marks=("a",))),
        (TableCell("ddp"), TableCell("0.850 ± 0.050 (2 of 3)"), TableCell("n/a")),
    ),
    ("a: R² ~ $x$",),
    (1,),
    ((0, "One node"),),
)
LETTERS = {
    r"\textbackslash{}": "\\", r"\textasciicircum{}": "^", r"\textasciitilde{}": "~", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\symbol{34}": '"', r"\textasciigrave{}": "`", "{[}": "[", "{]}": "]",
    "{*}": "*", "-{}": "-",
} | {rf"\{letter}": letter for letter in "{}$&#%_"}  # fmt: skip


def read_latex(text):
    """Return the letters of an escaped text; fails on anything that TeX would act on."""
    found, at = "", 0
    while at < len(text):
        for written, letter in LETTERS.items():
            if text.startswith(written, at):
                found, at = found + letter, at + len(written)
                break
        else:
            assert text[at] not in "\\{}$&#%_^~[]*", f"{text[at]!r} acts in {text!r}"
            found, at = found + text[at], at + 1
    return found


def check_document(text):
    """Hold a table to what TeX would: groups and environments close, each line has the columns that are declared."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    depth, stack = 0, []
    for line in lines:
        bare = re.sub(r"\\[{}$&#%_\\]", "", line)
        depth += bare.count("{") - bare.count("}")
        assert depth == 0, f"a group is open after {line!r}"
        assert bare.count("$") % 2 == 0
        for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", line):
            if kind == "begin":
                stack.append(name)
            else:
                assert stack.pop() == name
    assert stack == []
    declared = re.search(r"\\begin\{tabular\}\{(.*)\}$", "\n".join(lines), re.MULTILINE)[1]
    num_columns = len(re.findall(r"[lr]|p\{[^}]*\}", declared))
    start = next(at for at, line in enumerate(lines) if line.startswith(r"\toprule"))
    end = next(at for at, line in enumerate(lines) if line.startswith(r"\end{"))
    rows = [line for line in lines[start:end] if line.endswith(r"\\")]
    for line in rows:
        wide = [int(number) for number in re.findall(r"\\multicolumn\{(\d+)\}", line)]
        cells = re.split(r"(?<!\\)&", line)
        assert (wide or [len(cells)]) == [num_columns]
    return rows


def test_latex_equals_the_accepted_text():
    # The marked line, the baseline, is not bold.
    assert (
        latex_table(TABLE)
        == r"""% Table strong-scaling, written by paratune report.
% In the preamble: \usepackage{adjustbox, booktabs, threeparttable}
\begin{table}
\centering\small
\caption{Time \& memory, 50\% of \#1} \label{tab:strong-scaling}
\begin{adjustbox}{max width=\linewidth, max totalheight=0.85\textheight}
\begin{threeparttable}
\begin{tabular}{lrr}
\toprule
\textbf{Strategy} & \textbf{Time (s)} & \textbf{Change} \\
\midrule
\multicolumn{3}{l}{\textit{One node}} \\
zero\_3 & 12.3 & $-21.4$\% $\downarrow$\textsuperscript{a} \\
ddp & $0.850 \pm 0.050$ (2 of 3) & n/a \\
\bottomrule
\end{tabular}
\begin{tablenotes}[flushleft]\footnotesize
\item a: R$^2$ \textasciitilde{} \$x\$
\end{tablenotes}
\end{threeparttable}
\end{adjustbox}
\end{table}
"""
    )


def test_latex_has_only_the_columns_that_vary_and_a_wide_table_spans_both_columns():
    header = ("Configuration", "Global batch", "Time", "Runs", "Energy")
    rows = [[f"configuration {at}", "32", f"{at}.5", "3", "n/a"] for at in (1, 2)]
    table = make_table("t", "T", header, rows, 1)
    kept = table.varying()
    assert [column.label for column in kept.columns] == ["Configuration", "Time"]
    # An unknown value is not a value of all lines.
    assert kept.notes == ("In all lines: Global batch: 32; Runs: 3.",)
    assert r"\begin{table}" in latex_table(table)
    assert replace(table, lines=table.lines[:1]).varying().columns == table.columns
    wide = make_table(
        "t", "T", [f"c{at}" for at in range(9)], [[f"{at}.{row}000" for at in range(9)] for row in (1, 2)], 1
    )
    assert r"\begin{table*}" in latex_table(wide)


def test_latex_closes_all_braces_and_environments():
    assert len(check_document(latex_table(TABLE))) == 4


def test_a_long_table_of_wide_texts_has_its_first_lines_as_paragraphs():
    lines = tuple((TableCell(f"{number}"), TableCell("words & more words " * 4)) for number in range(60))
    table = Table("t", "T", (Column("n", is_text=True), Column("a heading of many words", is_text=True)), lines)
    text = latex_table(table)
    assert re.search(r"\\begin\{tabular\}\{lp\{0\.\d+\\linewidth\}\}", text)
    assert ("\n39 & " in text, "\n40 & " in text) == (True, False)
    assert r"\item 40 of 60 lines" in text


def test_long_names_are_broken_between_their_words():
    names = ("sst2_lr-5e-05_seed-42_bert-base-uncased-on-sentences", "sst2_run-20261122")
    table = Table("t", "T", (Column("Run", is_text=True),), tuple((TableCell(name),) for name in names))
    text = latex_table(table)
    assert text.count(r"\_\allowbreak{}") == 4
    assert "$" not in text
    assert text.replace(r"\allowbreak{}", "").count(r"sst2\_run-20261122") == 1


@pytest.mark.parametrize(
    ("text", "breaks"),
    [
        (f"(SHA-256 {'ab12' * 16})", 6),  # after 8, 16, ... and 48 of 64 characters
        ("configs/sweeps/layouts_of_batches.yaml", 4),
        ("the optimization of hyperparameters with deterministic initialization", 0),
        ("counterrevolutionary, incomprehensibility/representativeness", 1),
        ("f1_macro in samples/s against run_1 and and/or", 0),
    ],
)
def test_only_long_names_paths_and_fingerprints_are_broken(text: str, breaks: int):
    table = Table("t", "T", (Column("Text", is_text=True),), ((TableCell(text),),))
    assert latex_table(table).count(r"\allowbreak{}") == breaks


def test_numbers_are_not_broken():
    line = (TableCell("name"), TableCell("packed is 2.30× as fast (2.27–2.34×), 27.4% slower (26.1–28.5%)"))
    assert "allowbreak" not in latex_table(Table("t", "T", (Column("a"), Column("b", is_text=True)), (line,)))


def test_a_comment_names_the_engine_for_letters_that_are_not_latin():
    table = Table("t", "T", (Column("n", is_text=True),), ((TableCell("日本"),),))
    assert "XeLaTeX" in latex_table(table)
    assert "XeLaTeX" not in latex_table(TABLE)
    assert "XeLaTeX" in latex_table(replace(TABLE, notes=("日本",)))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_a_paper_with_tables_of_all_kinds_compiles_and_nothing_leaves_the_page(tmp_path):
    hostile = ("<script>", "../a", "$(x)", "&%_#{}~^\\", "x" * 90, "0.5 ± 0.1 (1 of 2)", "−3.0% ↓", "ñ Ł – “q” … ≥ ×")
    columns = (Column("Run & name", is_text=True), *(Column(f"A long heading of {at} (%) ↑") for at in range(9)))
    wide = [
        (TableCell(text, marks=("a", "b")), *(TableCell("114.6 ± 19.6 (+60.2% ↑)") for _ in range(9)))
        for text in hostile
    ]
    few = Table(
        "few", "T & 50%", columns, tuple(wide), notes=("[a] R² of #1", "≤ ≈ ± ← →"), marked=(1,), groups=((0, "_"),)
    )
    some = Table("long", "L", columns[:4], tuple(line[:4] for line in wide * 6), notes=("n",))
    paper = [r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage[a4paper,margin=2cm]{geometry}"]
    paper += [
        r"\usepackage{adjustbox, booktabs, threeparttable}\begin{document}",
        latex_table(few),
        latex_table(some),
    ]
    (tmp_path / "paper.tex").write_text("\n".join([*paper, r"\end{document}"]))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    for _ in range(2):  # the second one has the labels
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
        assert ran.returncode == 0, ran.stdout[-2000:]
    assert "Overfull" not in ran.stdout
    assert "LaTeX Warning" not in ran.stdout


@given(st.text(st.characters(max_codepoint=126)))
def test_texts_are_escaped_in_latex(text):
    # Numbers with a sign become formulas; a letter before them keeps them texts.
    shown = re.sub(r"(?<=[+-])\d", "x", text)
    found = latex(shown)
    assert read_latex(found) == "".join(repr(one)[1:-1] if ord(one) < 32 else one for one in shown)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("0.85 ± 0.05", r"$0.85 \pm 0.05$"),
        ("1,234 ± 5", r"$1{,}234 \pm 5$"),
        ("−3 to +0.7", "$-3$ to $+0.7$"),
        ("1e-05", "1e-05"),
        ("2026-11-21", "2026-11-21"),
        ("--set a_b", r"-{}-set a\_b"),
        ("x-5", "x-5"),
    ],
)
def test_numbers_are_formulas_and_names_are_not(text, written):
    assert latex(text) == written
