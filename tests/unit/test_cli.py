"""The command line itself: what it imports, how it ends, and that the commands of the documentation are commands."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from patience import PATIENCE_S
from raised import check_shown

from paratune import cli, errors
from paratune.base.stop_signals import STOP_SIGNALS
from paratune.commands import COMMANDS, EXAMPLES, GROUPS
from paratune.config.load import load_config
from paratune.sweeps.cell import invalid
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic", "sklearn", "scipy", "pandas"}


def _modules_after(*arguments: str) -> set[str]:
    """Return the packages that a command imports, from a process of its own."""
    code = (
        "import sys, paratune.cli\n"
        "try: paratune.cli.main()\n"
        "except SystemExit: pass\n"
        "print('MODULES', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


SUBCOMMANDS = [["config", "init"], ["config", "from-trainer"], ["corpus", "stats"], ["tokenizer", "train"]]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), *SUBCOMMANDS], ids=" ".join)
def test_help_imports_nothing_heavy(command: list[str]):
    assert _modules_after(*command, "--help") & HEAVY == set()


def test_an_interrupt_ends_a_command_with_a_word_and_its_exit_code():
    code = (
        "import paratune.cli as cli, paratune.commands.jobs as jobs\n"
        "def jobs_(*paths: str) -> None: raise KeyboardInterrupt\n"
        "jobs.jobs = jobs_\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "jobs"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_commands_without_a_model_do_not_import_torch(tmp_path: Path):
    some = str(next(iter(sorted((ROOT / "configs").rglob("*.yaml")))))
    for arguments in (
        ["config", "show", some],
        ["config", "schema"],
        ["report", "nowhere"],
        ["train", "x.yaml"],
        ["sweep", "x.yaml"],
        ["watch", "--once"],
        ["launch", some, "--site", str(ROOT / "configs/sites/plain.yaml"), "--dry-run"],
        ["toy-cluster", "status", "--folder", str(tmp_path)],
    ):
        assert _modules_after(*arguments) & {"torch", "transformers"} == set(), arguments


def test_a_blocked_tracker_does_not_block_the_exit():
    code = (
        "import sys, threading, time\n"
        "from paratune import cli\n"
        "from paratune.trackers import session\n"
        "threading.Thread(target=time.sleep, args=(10_000,)).start()\n"  # what the interpreter would wait for
        "session._unfinished.append('wandb')\n"
        "sys.argv = ['paratune', 'report', 'nowhere']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == errors.EXIT_CHECKPOINT
    check_shown(done.stderr, "run.not_found", "nowhere")


@pytest.mark.parametrize(
    "words",
    [
        *("predict m --input d", "pseudo-label m --input d --threshold 1", "tokenizer train t", "bundle c"),
        *("config from-trainer f", "report r", "quantize m --to bf16", "glue-submit r", "feedback m --input d"),
    ],
)
@pytest.mark.parametrize("option", ["--output x", "--output=x"])
def test_each_output_is_out(words: str, option: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.app(f"{words} {option}")
    assert re.search(r"--out\b(?!put)", capsys.readouterr().err)


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


def _documented() -> list[tuple[str, str]]:
    """Return (file:line, command) of each command in the ```sh blocks of the documents and the comments of configs."""
    result = []
    for path in DOCUMENTS:
        language = None
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if fence := re.match(r"\s*```(\w*)", line):
                language = fence[1] if language is None else None
            elif language == "sh" and re.match(r"\s*(\w+=\S+ )*(paratune|torchrun|\S*python -m paratune)\b", line):
                result.append((f"{path.name}:{number}", line))
    for path in CONFIGS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if command := re.match(r"#\s+(paratune \S+ (?:\S*configs/|--)\S*.*)", line):
                result.append((f"{path.name}:{number}", re.split(r"\s{2,}", command[1])[0]))
    return result


def test_there_are_documented_commands():
    commands = [command.split()[1] for _, command in _documented() if command.startswith("paratune")]
    assert {"train", "sweep", "certify", "data", "evaluate", "predict", "report", "doctor", "config"} <= set(commands)


@pytest.mark.parametrize(("place", "line"), _documented(), ids=lambda value: value if ":" in value else "")
def test_documented_commands_are_commands(place: str, line: str):
    words = shlex.split(re.split(" [>|] ", line)[0], comments=True)  # without a redirection or a pipe
    words = words[words.index("paratune") + 1 :]

    function, _, _ = cli.app.parse_args(words, print_error=False, exit_on_error=False)

    assert function.__module__.startswith(("paratune.commands.", "paratune.cli", "cyclopts.core")), f"{place}: {line}"
    named = [word for word in words if word.startswith("configs/")]
    assert [word for word in named if not (ROOT / word).is_file()] == [], f"{place}: {line}"


SWEEPS = [path for path in CONFIGS if path.parent.name == "sweeps"]
OTHERS = ("corpus", "sites", "tables")
"""Folders of files of another kind, which their own tests read."""
RUNS = [
    path
    for path in CONFIGS
    if "\naxes:" not in path.read_text(encoding="utf-8") and path.parent.name not in OTHERS and path.stem != "published"
]
PUBLISHED = [path for path in CONFIGS if "\npublished:" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_every_matrix_with_published_figures_can_be_read(path: Path):
    published = read_matrix(path).record.published
    assert published is not None
    assert published.figures or published.claims


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_every_matrix_can_be_trained(path: Path):
    matrix = read_matrix(path)
    cells = cells_of(matrix)
    assert invalid(matrix, cells) is None
    assert len({cell.name for cell in cells}) == len(cells)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_configuration_loads(path: Path):
    loaded = load_config(path)
    assert loaded.config.run.name
    for line in path.read_text(encoding="utf-8").splitlines():
        words = shlex.split(line) if "--set" in line else []
        load_config(path, [override for option, override in pairwise(words) if option == "--set"])


def test_exit_codes_are_documented():
    table = (ROOT / "docs" / "reference" / "exit_codes.md").read_text(encoding="utf-8")
    # Packages may define subclasses with the code of one of these: with them, the result depends on the order of tests.
    for kind in (entry for entry in errors.ParatuneError.__subclasses__() if entry.__module__ == errors.__name__):
        assert re.search(rf"\| {kind.exit_code} \| `{kind.__name__}` \|", table), kind


@pytest.fixture
def signals_kept():
    """`main` turns signals off, because it is the end of a process; here there is one that goes on."""
    saved = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in saved.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (errors.DataError("x.csv is empty", code="data.empty"), 3, "error: x.csv is empty  [data.empty]\n"),
        (errors.Stopped("stopped by SIGTERM", code="stopped.signal"), 75, "stopped by SIGTERM\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_how_a_command_ends(
    raised: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys, signals_kept: None
):
    def command(_words: object) -> int:
        raise raised

    monkeypatch.setattr(cli, "run", command)
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code == code
    assert capsys.readouterr().err == message
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("arguments", "rank", "prints"), [(["--json"], "0", True), (["--json"], "1", False), ([], "0", False)]
)
def test_json_names_the_code_and_the_facts_of_an_error(
    arguments: list[str], rank: str, prints: bool, monkeypatch: pytest.MonkeyPatch, capsys, signals_kept: None
):
    def command(_words: object) -> int:
        raise errors.DataError("x.csv is empty", code="data.empty", path=Path("x.csv"))

    monkeypatch.setattr(cli, "run", command)
    monkeypatch.setattr(sys, "argv", ["paratune", "data", *arguments])
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit):
        cli.main()
    fault = {"code": "data.empty", "message": "x.csv is empty", "facts": {"path": "x.csv"}}
    out = capsys.readouterr().out
    assert (json.loads(out)["errors"] if out else None) == ([fault] if prints else None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train", "error: CONFIG is missing; for example: paratune train my.yaml (paratune train --help"),
        ("train --resume", "error: CONFIG is missing"),
        ("config show", "error: CONFIG is missing; for example: paratune config show my.yaml"),
        ("evaluate runs/a --data", "--data requires an argument; for example: paratune evaluate runs/NAME --data"),
        ("predict", "error: MODEL is missing; for example: paratune predict runs/NAME --input"),
        (
            "corpus stats",
            "error: PATH is missing; for example: paratune corpus stats corpus.yaml (paratune corpus stats",
        ),
        ("trian", 'error: Unknown command "trian". Did you mean "train"?'),
    ],
)
def test_missing_arguments_are_shown_with_an_example(words: str, message: str, capsys, signals_kept: None):
    with pytest.raises(SystemExit) as exit_info:
        cli.app(words.split())
    assert exit_info.value.code == errors.EXIT_CONFIG
    shown = capsys.readouterr()
    assert message in " ".join(shown.err.split())
    assert shown.out == ""


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        ("data a.yaml --epochs 3", "cli.usage", ["--epochs", "--set train.epochs=3"]),
        ("train a.yaml --weight-decay=0 --resume", "cli.usage", ["--set train.weight_decay=0"]),
        ("train a.yaml --resme", "cli.usage", ["--resme", "--resume"]),
        ("watch --epochs 3", "cli.usage", ["--epochs"]),
    ],
)
def test_an_option_of_the_configuration_on_the_command_line_is_shown_with_set(
    words: str, code: str, values: list[str], capsys, signals_kept: None
):
    with pytest.raises(SystemExit) as exit_info:
        cli.app(words.split())
    assert exit_info.value.code == errors.EXIT_CONFIG
    check_shown(" ".join(capsys.readouterr().err.split()), code, *values)


@pytest.mark.parametrize(("name", "line"), EXAMPLES.items())
def test_examples_are_commands(name: str, line: str):
    program, *words = line.partition(" > ")[0].split()
    assert program == "paratune"
    assert " ".join(words).startswith(name)
    cli.app.parse_args(words, print_error=False, exit_on_error=False)


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch):
    def command(_words: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "run", command)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_crash_of_native_code_prints_the_python_stacks():
    program = (
        "import os, signal, sys; from paratune import cli; sys.argv = ['paratune', 'crash']\n"
        "@cli.app.command\ndef crash() -> None:\n    os.kill(os.getpid(), signal.SIGSEGV)\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert re.search(r"Current thread .*\n  File .* in crash\n", done.stderr)


def test_a_closed_pipe_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "paratune", "config", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (128 + signal.SIGPIPE, b"")


def test_the_version_is_printed():
    done = subprocess.run(
        [sys.executable, "-m", "paratune", "--version"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", done.stdout.strip())


@pytest.mark.parametrize(
    ("line", "code"),
    [("raise OSError('x')", 1), ("raise errors.DataError('x', code='data.empty')", 3), ("return 0", 0)],
)
def test_the_exit_code_is_written_for_the_batch_script(line: str, code: int, tmp_path: Path):
    text = (
        "import sys\nfrom paratune import cli, errors\n"
        f"@cli.app.command\ndef odd():\n    {line}\nsys.argv = ['paratune', 'odd']\ncli.main()\n"
    )
    environ = {**os.environ, "PARATUNE_EXIT_CODES": str(tmp_path), "RANK": "3"}
    done = subprocess.run(
        [sys.executable, "-c", text], env=environ, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, (tmp_path / "rank3").read_text()) == (code, f"{code}\n")


def test_the_help_of_corpus_names_the_stages():
    from typing import get_args

    from paratune.commands.corpus import StageName
    from paratune.commands.corpus_run import STAGES

    assert get_args(StageName) == tuple(STAGES)


def test_each_command_is_in_one_group_of_the_help():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_help_of_a_command_has_a_text_and_its_example_on_one_screen(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "100")
    cli.run([*name.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    about = lines[next(number for number, line in enumerate(lines) if not line.strip()) + 1]
    assert lines[0].startswith(f"Usage: paratune {name}")
    assert len(about.split()) > 3
    assert f"Example: {EXAMPLES[name]}" in " ".join(" ".join(lines).split())


def test_every_command_has_an_example_and_no_option_with_the_name_of_a_positional_argument():
    commands, waiting = {}, [("", cli.app)]
    while waiting:
        above, group = waiting.pop()
        for name in (name for name in group if not name.startswith("-")):
            waiting.append((f"{above} {name}".strip(), group[name]))
            if group[name].default_command is not None:
                commands[waiting[-1][0]] = group[name].assemble_argument_collection()
    assert sorted(commands) == sorted(EXAMPLES)
    positional = {name: [one.names for one in found if one.index is not None] for name, found in commands.items()}
    assert positional["train"] == [("CONFIG",)]
    assert [name for name, found in positional.items() if any(word.startswith("-") for word in sum(found, ()))] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("config", "tokenizer")])
def test_the_list_of_commands_shows_the_first_line_of_each_docstring(name: str):
    docstring = cli.app[name].default_command.__doc__
    assert docstring.splitlines()[0] == COMMANDS[name]


def test_the_help_of_a_command_shows_the_whole_docstring(capsys: pytest.CaptureFixture[str]):
    cli.complete_help(["sweep"])
    assert "\n" not in cli.app["sweep"].help.split("\n\n")[1]
    cli.app(["sweep", "--help"], result_action="return_value")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "unfinished runs are resumed." in shown
    assert "that of MATRIX always runs" in shown  # its own text for an option that other commands have, too


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]):
    cli.app(["completion", shell], result_action="return_value")
    script = capsys.readouterr().out
    assert [word for word in ("pseudo-label", "nproc", "from-trainer", "classification") if word not in script] == []


@pytest.mark.parametrize("is_child", [True, False])
def test_no_module_of_the_current_folder_is_imported(tmp_path: Path, is_child: bool):
    """A stranger's folder has modules with the names of packages; children are started as by multiprocessing."""
    for name in ("cyclopts", "rich", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    words = ["-m", "paratune", "--version"]
    if is_child:
        child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import multiprocessing'], check=True)"
        lines = f"import sys; from paratune import cli; cli.run = lambda words: exec({child!r}) or 0; cli.main()"
        words = ["-P", "-c", lines]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert not (tmp_path / "ran").exists()
