"""Who may run code: a table of every command and every way in which a file can name Python code.

Each way has a module of its own, which makes a file when it is imported: this file proves whether the code ran. The
fast tests run in this process, with permissions of their own; the slow ones train a run with code of the user.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import Cli
from raised import raises_code
from tiny import tiny_model
from world import CONFIG, REGRESSION, write_data

import paratune
from paratune import cli as command_line
from paratune.commands import COMMANDS
from paratune.config import permission
from paratune.errors import ParatuneError
from paratune.records import own, read_json, write_json

pytestmark = pytest.mark.slow  # each test starts several processes

MODULE = """
from pathlib import Path
Path({mark!r}).touch()
import torch
from torch import nn
from torch.optim import SGD
from transformers import BertForSequenceClassification
class Model(BertForSequenceClassification): pass
class Mean(nn.Linear):
    def __init__(self, config, **more): super().__init__(config.hidden_size, config.num_labels)
    def forward(self, hidden, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return super().forward((hidden * mask).sum(1) / mask.sum(1))
def loss(outputs, labels): return (outputs - labels) ** 2
def gap(predictions, labels): return abs(predictions.mean() - labels.mean())
def halved(step, num_steps): return 0.5 ** step
class Steps:
    def on_step(self, state): pass
def rows():
    words = ["the film is good", "the story was bad"]
    return [{{"id": f"r{{n}}", "text": words[n % 2], "label": "positive", "score": n / 80}} for n in range(160)]
"""
SCRIPT = """
from pathlib import Path
Path({mark!r}).touch()
import datasets
import evaluate
class Metric(evaluate.Metric):
    def _info(self):
        features = datasets.Features({{"predictions": datasets.Value("float"), "references": datasets.Value("float")}})
        return evaluate.MetricInfo(description="", citation="", features=features)
    def _compute(self, predictions, references): return {{"gap": 0.5}}
"""
CODED = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import BertConfig
class CodedConfig(BertConfig):
    model_type = "coded"
"""
ONE_STEP = tuple(
    word
    for setting in ("train.max_steps=1", "train.epochs=null", "checkpoint.every=never", "checkpoint.steps=null")
    for word in ("--set", setting)
)
SITE = "gpus_per_node: 0\ncpus_per_node: 2\n"
MATRIX = "name: m\nbase: c.yaml\naxes: {run.seed: [1, 2]}\n"


class Place:
    """A working directory with a configuration, data, a model, and a module for each way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"

    def ran(self) -> list[str]:
        """Return the ways whose code ran."""
        return sorted(path.name for path in self.marks.iterdir())

    def make(self, way: str, folder: Path | None = None) -> str:
        """Write the module of a way, and return its name."""
        name = f"way_{re.sub('[^a-z]', '_', way)}_{abs(hash(self.folder)) % 10**8}"
        ((folder or self.folder) / f"{name}.py").write_text(MODULE.format(mark=str(self.marks / way)))
        return name

    def make_script(self, way: str) -> str:
        (self.folder / "metric_script").mkdir(exist_ok=True)
        text = SCRIPT.format(mark=str(self.marks / way))
        (self.folder / "metric_script" / "metric_script.py").write_text(text)
        return str(self.folder / "metric_script")

    def make_coded(self, way: str, folder: Path) -> Path:
        """Give a model folder a Python file, and let its configuration name the class in it."""
        (folder / "configuration_coded.py").write_text(CODED.format(mark=str(self.marks / way)))
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "coded", "auto_map": {"AutoConfig": "configuration_coded.CodedConfig"}}
        (folder / "config.json").write_text(json.dumps(config))
        return folder


@pytest.fixture
def place(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The place, as the working directory, in a process that has allowed nothing yet."""
    monkeypatch.chdir(world)
    (world / "marks").mkdir()
    (world / "site.yaml").write_text(SITE)
    (world / "m.yaml").write_text(MATRIX)
    forget(monkeypatch, world)
    modules = set(sys.modules)
    yield Place(world)
    for name in set(sys.modules) - modules:
        if name.startswith(("way_", "transformers_modules")):
            del sys.modules[name]


def forget(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Give this process the permissions of a new one."""
    monkeypatch.setattr(permission, "_allowed", set())
    monkeypatch.setattr(permission, "_trusted", set())
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "modules"))
    monkeypatch.setattr("paratune.serving.server.run_server", lambda *arguments: "SIGTERM")
    listener = SimpleNamespace(getsockname=lambda: ("127.0.0.1", 8765))
    monkeypatch.setattr("paratune.serving.server.open_socket", lambda host, port: listener)
    monkeypatch.setenv("PARATUNE_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))


def called(*words: str) -> str:
    """Run a command in this process; return the codes of its error, "" without one."""
    try:
        command_line.run(words)
    except ParatuneError as error:
        return " ".join(error.codes)
    return ""


# ----------------------------------------------------------------------------- code that a configuration names

CONFIG_WAYS: dict[str, Callable[[Place], list[str]]] = {
    "head": lambda place: [f"model.head={{function: '{place.make('head')}:Mean'}}"],
    "class": lambda place: [f"model.class={place.make('class')}:Model"],
    "loss": lambda place: [f"task.loss={{function: '{place.make('loss')}:loss'}}"],
    "recipe": lambda place: own_task(place),
    "metric": lambda place: [
        f"evaluate.metrics=[{{name: gap_error, higher_is_better: false, function: '{place.make('metric')}:gap'}}]"
    ],
    "script": lambda place: [
        f"evaluate.metrics=[{{name: gap, higher_is_better: true, evaluate: '{place.make_script('script')}'}}]"
    ],
    "optimizer": lambda place: [f"train.optimizer={{function: '{place.make('optimizer')}:SGD'}}"],
    "schedule": lambda place: [f"train.schedule={{function: '{place.make('schedule')}:halved'}}"],
    "callback": lambda place: [f"run.callbacks=[{{function: '{place.make('callback')}:Steps'}}]"],
    "strategy": lambda place: [f"strategy={{kind: '{place.make('strategy')}:Strategy'}}"],
    "train": lambda place: [f"data.train=code:{place.make('train')}:rows"],
    "validation": lambda place: ["data.split=null", f"data.validation=code:{place.make('validation')}:rows"],
    "command": lambda place: [f"data.train=code:os:system?command=touch {place.marks}/command"],
    "extra": lambda place: [f"data.extra.more=code:{place.make('extra')}:rows"],
    "predict": lambda place: [f"data.predict.more=code:{place.make('predict')}:rows"],
    "files": lambda place: [
        f"model.name={place.make_coded('files', tiny_copy(place))}",
        "model.trust_remote_code=true",
    ],
    "extends": lambda place: extended(place),
}


def tiny_copy(place: Place) -> Path:
    return Path(shutil.copytree(place.folder / "model", place.folder / "coded"))


def own_task(place: Place) -> list[str]:
    """Replace the task: a lower layer would keep its labels."""
    line = f"task: {{kind: own, recipe: '{place.make('recipe')}:Recipe'}}"
    text = CONFIG.replace(CONFIG.partition("\n")[0], line).replace("best: accuracy", "best: loss")
    (place.folder / "c.yaml").write_text(text.replace(", stratify: true", ""))
    return []


def extended(place: Place) -> list[str]:
    """Let the configuration extend one of another folder, which names code beside it."""
    other = place.folder / "other"
    other.mkdir()
    (other / "base.yaml").write_text(f"model: {{head: {{function: '{place.make('extends', other)}:Mean'}}}}\n")
    (place.folder / "c.yaml").write_text(f"extends: other/base.yaml\n{CONFIG}")
    return []


CHECKS: dict[str, tuple[str, ...]] = {
    "doctor": ("doctor", "c.yaml"),
    "plan": ("plan", "c.yaml", "--devices", "1"),
    "data": ("data", "c.yaml"),
    "config": ("config", "show", "c.yaml"),
    "bundle": ("bundle", "c.yaml", "-o", "b.tar"),
    "sweep": ("sweep", "m.yaml", "--dry-run"),
    "launch": ("launch", "c.yaml", "--site", "site.yaml", "--dry-run"),
}
"""Commands that check a configuration, and the parts of `sweep` and `launch` that train nothing."""
READS_DATA = {"train", "validation", "command", "extra", "predict"}
IMPORTED_WITH_FLAG = {
    ("doctor", "train"), ("doctor", "validation"), ("doctor", "files"),
    *(("data", way) for way in ("train", "validation", "extra", "predict", "files", "recipe")),
    *(("plan", way) for way in ("train", "head", "class", "recipe", "files")),
    *(("bundle", way) for way in ("train", "validation", "extra", "predict")),
}  # fmt: skip
"""What runs with --run-code."""


def of(words: tuple[str, ...], settings: list[str]) -> list[str]:
    return [*words, *(word for setting in settings for word in ("--set", setting))]


@pytest.mark.parametrize("way", CONFIG_WAYS)
@pytest.mark.parametrize("command", CHECKS)
def test_a_command_that_checks_a_configuration_imports_no_code(place: Place, capsys, command: str, way: str):
    words = of(CHECKS[command], CONFIG_WAYS[way](place))
    codes = called(*words)
    assert place.ran() == []
    assert codes in ("", "code.refused", "code.refused") or command == "plan", codes
    output = capsys.readouterr()
    if command in ("doctor", "config") or ((command, way) in IMPORTED_WITH_FLAG and not codes):
        named = {"command": "os:system", "files": "trust_remote_code", "script": "evaluate.metrics"}.get(way, "way_")
        assert named in "".join((output.out + output.err).split())  # the code is listed, perhaps on two lines


@pytest.mark.parametrize(("command", "way"), sorted(IMPORTED_WITH_FLAG))
def test_the_same_command_imports_it_with_the_flag(place: Place, command: str, way: str):
    with suppress(ValueError):  # transformers has no encoder for the configuration of the test
        called(*of((*CHECKS[command], "--run-code"), CONFIG_WAYS[way](place)))
    assert place.ran() == [way]


# ------------------------------------------------------------------------------------- code that a record names

Edit = Callable[[Place, Path], None]


def in_model(**changes: Any) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        known = read_json(run / "model" / "paratune.json")
        write_json(run / "model" / "paratune.json", {**known, **changes})

    return edit


def in_data(source: str, split: str = "train") -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        record = read_json(run / "run.json")
        record["config"]["data"][split] = source
        write_json(run / "run.json", record)

    return edit


def with_files(place: Place, run: Path) -> None:
    place.make_coded("files", run / "model")
    known, record = read_json(run / "model" / "paratune.json"), read_json(run / "run.json")
    known.pop("files")
    record["config"]["model"]["trust_remote_code"] = True
    write_json(run / "model" / "paratune.json", known)
    write_json(run / "run.json", record)


def beside(place: Place, run: Path) -> None:
    """A module beside the configuration file of a stranger, which only its folder has."""
    other = place.folder / "stranger"
    other.mkdir()
    in_model(model={"head": {"function": f"{place.make('beside', other)}:Mean"}})(run)
    record = read_json(run / "run.json")
    write_json(run / "run.json", {**record, "config_file": str(other / "c.yaml")})


def task(**changes: Any) -> dict[str, Any]:
    return {"kind": "regression", **changes}


def pipeline(place: Place) -> dict[str, Any]:
    coded = str(place.make_coded("pipeline", tiny_copy(place)))
    return {"function": "transformers:pipeline", "options": {"model": coded, "trust_remote_code": True}}


MODEL_WAYS: dict[str, Edit] = {
    "head": lambda place, run: in_model(model={"head": {"function": f"{place.make('head')}:Mean"}})(run),
    "class": lambda place, run: in_model(model={"class": f"{place.make('class')}:Model"})(run),
    "loss": lambda place, run: in_model(task=task(loss={"function": f"{place.make('loss')}:loss"}))(run),
    "recipe": lambda place, run: in_model(task={"kind": "own", "recipe": f"{place.make('recipe')}:Recipe"})(run),
    "metric": lambda place, run: in_model(
        metrics=[{"name": "g_error", "higher_is_better": False, "function": f"{place.make('metric')}:gap"}]
    )(run),
    "script": lambda place, run: in_model(
        metrics=[{"name": "gap", "higher_is_better": True, "evaluate": place.make_script("script")}]
    )(run),
    "pipeline": lambda place, run: in_model(model={"head": pipeline(place)})(run),
    "beside": beside,
    "files": with_files,
}
"""Ways of a model folder, which every command takes that loads the model."""
DATA_WAYS: dict[str, Edit] = {
    "train": lambda place, run: in_data(f"code:{place.make('train')}:rows")(run),
    "validation": lambda place, run: in_data(f"code:{place.make('validation')}:rows", "validation")(run),
    "test": lambda place, run: in_data(f"code:{place.make('test')}:rows", "test")(run),
    "command": lambda place, run: in_data(f"code:os:system?command=touch {place.marks}/command")(run),
}
"""Ways of a run, which commands take that read its data again."""
LOADS: dict[str, tuple[str, ...]] = {
    "evaluate": ("evaluate", "RUN", "--data", "data.csv"),
    "evaluate --by": ("evaluate", "RUN", "--by", "length"),
    "predict": ("predict", "RUN", "--input", "data.csv", "--out", "predicted.csv"),
    "explain": ("explain", "RUN", "--input", "data.csv", "--rows", "0", "--method", "occlusion"),
    "feedback": ("feedback", "RUN", "--input", "few.csv", "--out", "feedback"),
    "quantize": ("quantize", "RUN", "--to", "bf16", "--out", "small"),
    "compress": ("compress", "RUN", "--to", "bf16", "--rows", "8", "--timed-rows", "2"),
    "serve": ("serve", "RUN", "--port", "0"),
    "fill-mask": ("fill-mask", "RUN", "the [MASK]"),
    "pseudo-label": ("pseudo-label", "RUN", "OTHER", "--input", "few.csv", "--out", "l.csv", "--threshold", "9"),
}
"""Commands that load the model of a run."""
READS: dict[str, set[str]] = {
    "evaluate --by": {"train", "validation", "test", "command"},
    "quantize": {"train", "validation", "test", "command"},
    "compress": {"train", "validation", "test", "command"},
    "pseudo-label": {"train", "validation", "test", "command"},
}
"""Commands that read the data of a run again, and the splits of which one in code is refused."""
NEVER: dict[str, tuple[str, ...]] = {
    "report": ("report", "RUN"),
    "compare": ("compare", "RUN", "OTHER"),
    "watch": ("watch", "RUN", "--json"),
    "jobs": ("jobs", "RUN"),
    "glue-submit": ("glue-submit", "RUN", "--out", "glue.zip"),
    "plan --measured": ("plan", "c.yaml", "--max-length", "8", "--devices", "1", "--measured", "RUN"),
    "doctor": ("doctor", "--folder", "RUN"),
}
"""Commands that read records, and have no need of code."""
ELSEWHERE = {
    "train": "trains the user's configuration: the slow tests; a record as a teacher: test_a_teacher_is_a_record",
    "certify": "as train",
    "toy-cluster": "reads no file of others",
    "publish": "test_publish_and_verify_import_no_code_of_a_record; own runs: test_verify.py",
    "verify": "as publish",
    "published": "reads one table, which the user names",
    "unbundle": "test_bundle.py: a bundle runs no code unless it is allowed",
    "corpus": "loads a model by load_trained, as evaluate does",
    "tokenizer": "reads texts; test_a_source_in_code_is_no_file_of_texts",
}
"""Commands with tests elsewhere, and the reason."""


def test_every_command_is_in_the_table():
    commands = {name.partition(" ")[0] for name in (*CHECKS, *LOADS, *NEVER, *ELSEWHERE)}
    assert commands == set(COMMANDS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of a regression, of this user."""
    folder = tmp_path_factory.mktemp("finished")
    tiny_model(folder / "model")
    write_data(folder / "data.csv", 60)
    text = CONFIG.replace("name: model", f"name: {folder / 'model'}").replace("data.csv", str(folder / "data.csv"))
    (folder / "c.yaml").write_text(text)
    settings = dict(setting.split("=") for setting in REGRESSION[1::2])
    settings |= {"data.split.stratify": False, "data.split.test": 0.2, "train.max_steps": 2, "train.epochs": None}
    settings |= {"checkpoint.every": "never", "checkpoint.steps": None, "data.cache_dir": str(folder / "cache")}
    return paratune.train(folder / "c.yaml", {**settings, "run.folder": str(folder / "runs")}).folder


@pytest.fixture
def run(place: Place, finished: Path) -> Path:
    """A copy of the run, which the test may edit; `OTHER` is one that nobody edits."""
    shutil.copytree(finished, place.folder / "RUN")
    shutil.copytree(finished, place.folder / "OTHER")
    shutil.copy(finished.parents[1] / "data.csv", place.folder)
    lines = (place.folder / "data.csv").read_text().splitlines()[:3]
    (place.folder / "few.csv").write_text("\n".join(lines))
    return place.folder / "RUN"


@pytest.mark.parametrize("way", MODEL_WAYS)
@pytest.mark.parametrize("command", LOADS)
def test_code_that_an_edited_model_names_is_refused(place: Place, run: Path, command: str, way: str):
    MODEL_WAYS[way](place, run)
    assert called(*LOADS[command]) == "code.refused"
    assert place.ran() == []


@pytest.mark.parametrize("way", DATA_WAYS)
@pytest.mark.parametrize("command", LOADS)
def test_code_that_an_edited_run_names_for_its_data_is_refused(place: Place, run: Path, command: str, way: str):
    DATA_WAYS[way](place, run)
    codes = called(*LOADS[command])
    assert place.ran() == []
    # A set that the command does not read, such as the test set of feedback, is no reason to refuse.
    assert codes == "code.refused" or way not in READS.get(command, set()), codes


@pytest.mark.parametrize("config", [[1], "text", {"model": [1]}, {"model": {"trust_remote_code": "true"}}], ids=str)
@pytest.mark.parametrize("command", ["evaluate", "predict", "evaluate --by"])
def test_records_of_any_type_end_without_a_traceback(place: Place, run: Path, command: str, config: Any):
    MODEL_WAYS["head"](place, run)
    write_json(run / "run.json", {**read_json(run / "run.json"), "config": config, "signature": {"a": 1}})
    write_json(run / "model" / "x_config.json", [1])
    write_json(run / "model" / "paratune.json", {**read_json(run / "model" / "paratune.json"), "signature": "x"})
    assert called(*LOADS[command]) in ("code.refused", "run.damaged")
    assert place.ran() == []


@pytest.mark.parametrize("way", [*MODEL_WAYS, *DATA_WAYS])
@pytest.mark.parametrize("command", NEVER)
def test_these_commands_never_import_code(place: Place, run: Path, command: str, way: str):
    (MODEL_WAYS | DATA_WAYS)[way](place, run)
    called(*NEVER[command])
    assert place.ran() == []


@pytest.mark.parametrize("way", DATA_WAYS)
def test_publish_and_verify_import_no_code_of_a_record(place: Place, run: Path, way: str):
    DATA_WAYS[way](place, run)
    assert called("publish", "RUN", "--out", "published") == "code.refused"
    other = place.folder / "OTHER"
    write_json(other / "run.json", {**read_json(other / "run.json"), "run_id": "other"})
    assert called("publish", "RUN", "OTHER", "--out", "published") == ""
    called("verify", "published")
    assert place.ran() == []


@pytest.mark.parametrize("command", [command for command in LOADS if command != "compress"])
def test_the_flag_runs_the_code_of_a_record(place: Place, run: Path, command: str):
    MODEL_WAYS["beside"](place, run)
    called(*LOADS[command], "--run-code")
    assert place.ran() == ["beside"]


@pytest.mark.parametrize("way", ["metric", "script", "files", "pipeline", "loss"])
def test_the_flag_runs_each_way(place: Place, run: Path, way: str):
    if way == "script":
        pytest.importorskip("evaluate")
    MODEL_WAYS[way](place, run)
    called(*LOADS["evaluate"], "--run-code")
    assert place.ran() == [way]


def test_a_bare_model_folder_is_a_record(place: Place, run: Path):
    MODEL_WAYS["head"](place, run)
    (run / "run.json").unlink()
    with raises_code("code.refused", "paratune.json", path="RUN/model/paratune.json"):
        paratune.predict("RUN/model", ["a film"])
    with_files(place, Path(shutil.copytree("OTHER", "THIRD")))
    Path("THIRD/run.json").unlink()
    Path("THIRD/model/paratune.json").unlink()
    with raises_code("code.refused", "THIRD/model"):  # the folder of another program
        paratune.predict("THIRD/model", ["a film"], text="text")
    assert place.ran() == []


def test_the_python_interface_asks_as_the_commands_do(place: Place, run: Path, monkeypatch):
    MODEL_WAYS["head"](place, run)
    for action in (
        lambda: paratune.predict("RUN", ["a film"]),
        lambda: paratune.evaluate("RUN", "data.csv"),
        lambda: paratune.Run("RUN").load_model(),
    ):
        with raises_code("code.refused"):
            action()
    assert place.ran() == []
    with raises_code("model.files_missing"):  # the head ran, and has no weights
        paratune.predict("RUN", ["a film"], run_code=True)
    assert place.ran() == ["head"]


def test_a_record_without_code_adds_no_folder_to_the_path(place: Place, run: Path):
    """Else a file beside the configuration of a stranger, such as brotli.py, could take the place of a package."""
    record = read_json(run / "run.json")
    (place.folder / "stranger").mkdir()
    write_json(run / "run.json", {**record, "config_file": str(place.folder / "stranger" / "c.yaml")})
    assert called(*LOADS["predict"]) == ""
    assert str(place.folder / "stranger") not in sys.path
    assert str(place.folder) not in sys.path


def test_options_decide_too(place: Place, run: Path):
    """The user's configuration may call a function; a record that calls it with other options is another one."""
    name = place.make("options")
    permission.allow([permission.NamedCode("model.head.function", f"{name}:Mean")])
    in_model(model={"head": {"function": f"{name}:Mean", "options": {"path": "/"}}})(run)
    assert called(*LOADS["predict"]) == "code.refused"


@pytest.mark.parametrize("way", ["head", "files"])
def test_a_teacher_is_a_record(place: Place, run: Path, way: str):
    MODEL_WAYS[way](place, run)
    settings = [*REGRESSION, *ONE_STEP, "--set", "distil.teacher=RUN"]
    assert called("train", "c.yaml", *settings) == "code.refused"
    assert place.ran() == []
    called("train", "c.yaml", *settings, "--run-code")
    assert place.ran() == [way]


def test_the_model_to_start_from_lends_no_code(place: Place, run: Path):
    """`model.name: RUN` takes weights; code of the record would need to be named in the configuration."""
    MODEL_WAYS["head"](place, run)
    assert called("train", "c.yaml", *REGRESSION, *ONE_STEP, "--set", "model.name=RUN") == ""
    assert place.ran() == []


def test_a_source_in_code_is_no_file_of_texts(place: Place):
    called("tokenizer", "train", f"code:{place.make('texts')}:rows", "--out", "t")
    called("config", "init", "new.yaml", "--train", f"code:{place.make('texts')}:rows")
    assert place.ran() == []
    called("config", "init", "new.yaml", "--train", f"code:{place.make('texts')}:rows", "--run-code")
    assert place.ran() == ["texts"]


def test_a_source_on_the_command_line_is_the_user_s(place: Place, run: Path):
    assert called("predict", "RUN", "--input", f"code:{place.make('input')}:rows", "--out", "p.csv") == ""
    assert place.ran() == ["input"]


def test_nothing_runs_that_no_command_has_allowed(place: Place):
    """The net below the commands: one that forgets to ask ends with an error."""
    from paratune.data.read import read_table

    with raises_code("code.refused", key=f"code:{place.make('net')}:rows"):
        read_table(f"code:{place.make('net')}:rows")
    assert place.ran() == []


# ------------------------------------------------------------------------------------------------- the user's own

ALL_CODE = ("head", "loss", "metric", "optimizer", "schedule", "callback", "train", "extra")


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training with all kinds of code of the user; it is in `runs/c`, and the state in `state`."""
    folder = tmp_path_factory.mktemp("own")
    tiny_model(folder / "model")
    write_data(folder / "data.csv", 60)
    (folder / "marks").mkdir()
    (folder / "settings").mkdir()
    place, changes = Place(folder), list(REGRESSION)
    for way in ALL_CODE:
        place.make(way, folder / "settings")
        for setting in CONFIG_WAYS[way](place):
            changes += ["--set", setting]
    for path in folder.glob("way_*.py"):
        path.unlink()  # only those beside the configuration file are left
    text = CONFIG.replace("name: model", f"name: {folder / 'model'}")
    (folder / "settings" / "c.yaml").write_text(text.replace("data.csv", str(folder / "data.csv")))
    changes += ["--set", "data.split.test=0.2", "--set", "train.max_steps=4", "--set", "train.epochs=null"]
    changes += ["--set", "run.folder=runs", "--set", "checkpoint.steps=2", "--set", "strategy=ddp"]
    (folder / "words.json").write_text(json.dumps(["train", "settings/c.yaml", *changes]))
    environment = {"PARATUNE_CACHE": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    trained = Cli(folder, environment)("train", "settings/c.yaml", *changes, "--nproc", "2")
    assert trained.code == 0, trained.stderr
    assert place.ran() == sorted(ALL_CODE)
    for mark in place.marks.iterdir():
        mark.unlink()
    return folder


@pytest.fixture
def own_place(own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A working directory with a copy of the run."""
    shutil.copytree(own_run / "runs" / "c", tmp_path / "RUN")
    shutil.copytree(own_run / "runs" / "c", tmp_path / "OTHER")
    shutil.copy(own_run / "data.csv", tmp_path)
    (tmp_path / "few.csv").write_text("\n".join((tmp_path / "data.csv").read_text().splitlines()[:3]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(own_run / "state"))
    forget(monkeypatch, tmp_path)
    return Place(tmp_path)


OWN = [command for command in LOADS if command != "fill-mask"]


@pytest.mark.slow
@pytest.mark.parametrize("command", OWN)
def test_one_s_own_run_needs_no_flag(own_place: Place, command: str):
    assert called(*LOADS[command]) in ("", "stopped.signal")


@pytest.mark.slow
@pytest.mark.parametrize("command", OWN)
def test_with_another_home_it_needs_the_flag(own_place: Place, monkeypatch, command: str):
    monkeypatch.setenv("XDG_STATE_HOME", str(own_place.folder / "other"))
    assert called(*LOADS[command]) == "code.refused"
    forget(monkeypatch, own_place.folder)
    assert called(*LOADS[command], "--run-code") in ("", "stopped.signal")
    # Commands that write no record make no key.
    assert (own_place.folder / "other").exists() == (command in ("quantize", "compress"))


@pytest.mark.slow
def test_an_edit_of_one_s_own_run_is_noticed(own_place: Place, monkeypatch):
    name = own_place.folder / "run_by_edit"
    in_data(f"code:os:system?command=touch {name}")(own_place.folder / "RUN")
    assert called(*LOADS["evaluate --by"]) == "code.refused"
    assert called("feedback", "RUN", "--split", "test", "--out", "f") == "code.refused"
    assert not name.exists()
    forget(monkeypatch, own_place.folder)
    (own_place.folder / "OTHER" / "model" / "added.py").write_text("")
    assert called("predict", "OTHER", "--input", "few.csv", "--out", "p.csv") == "code.refused"


@pytest.mark.slow
def test_a_smaller_form_of_one_s_own_model_is_one_s_own(own_place: Place, monkeypatch):
    assert called(*LOADS["quantize"]) == ""
    assert read_json(Path("small/paratune.json"))["signature"]
    forget(monkeypatch, own_place.folder)
    monkeypatch.setattr(sys, "path", [*sys.path, json.loads(Path("RUN/run.json").read_text())["config_file"][:-7]])
    assert called("predict", "small", "--input", "few.csv", "--out", "p.csv") == ""


@pytest.mark.slow
def test_a_resumed_run_needs_no_flag(own_run: Path, monkeypatch):
    monkeypatch.chdir(own_run)
    monkeypatch.setenv("XDG_STATE_HOME", str(own_run / "state"))
    words = json.loads((own_run / "words.json").read_text())
    folder = Path(shutil.copytree(own_run / "runs", own_run / "again")) / "c"
    (folder / "summary.json").unlink()
    record = read_json(folder / "run.json")
    record["config"]["run"]["folder"] = "again"
    own_again = [word if word != "run.folder=runs" else "run.folder=again" for word in words]
    write_json(folder / "run.json", record)  # not signed: as if from another home
    assert not own.is_own(read_json(folder / "run.json"))
    environment = {"PARATUNE_CACHE": str(own_run / "cache"), "XDG_STATE_HOME": str(own_run / "state")}
    resumed = Cli(own_run, environment)(*own_again, "--nproc", "2", "--resume")
    assert resumed.code == 0, resumed.stderr
    assert own.is_own(read_json(folder / "run.json"))


# -------------------------------------------------------------------------------------------------------- the key


def test_processes_that_start_at_once_get_one_key(tmp_path: Path):
    code = "from paratune.records import own; print(own.signed({})['signature'])"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(6)
    ]
    keys = {process.communicate()[0].strip() for process in started}
    assert len(keys) == 1
    assert len(bytes.fromhex(keys.pop())) == 32
    assert (tmp_path / "paratune" / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "paratune").iterdir()] == ["key"]


@pytest.mark.parametrize("problem", ["file", "short", "readable"])
def test_without_a_key_nothing_is_signed_and_one_line_says_so(tmp_path: Path, monkeypatch, caplog, problem: str):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(own, "_warned", set())
    if problem == "file":
        (tmp_path / "paratune").write_text("")
    else:
        (tmp_path / "paratune").mkdir()
        key = tmp_path / "paratune" / "key"
        key.write_bytes(b"x" * (32 if problem == "readable" else 5))
        key.chmod(0o644 if problem == "readable" else 0o600)
    for _ in range(2):
        assert own.signed({"config": {}})["signature"] is None
    assert [record.code for record in caplog.records] == ["code.no_key"]
    assert not own.is_own({"config": {}, "signature": None})
