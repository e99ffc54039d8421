"""Checks the layers of the code: a package imports only packages of lower layers. Reads the source, so that imports
inside functions count, too.

8  cli, commands                     the command line
7  api                               the Python interface, which commands call; in the same layer hf, the callback for
                                     the Trainer of transformers
6  training, infer                   composition; above infer, reports and verdicts: explain, above it compress,
                                     feedback, and above all of these serving
5  engine                            uses strategies only by their protocol; trackers use layers 0 and 1 only
4  strategies, checkpoint, tasks     do not import each other; only tasks use layer 3
3  data, models, metrics             do not import each other
2  batch, precision, stages          use torch
1  config, records, hardware         do not import torch; above them: console, hub, processes
0  base, errors                      standard library only

These use layers 0 and 1 only: cluster, reports, sweeps, corpus, doctor, watch.
Above reports: verify. Exceptions: planning may also use layers 2 and 3; verdicts uses metrics, and reports and training
use verdicts. Training also uses infer, to apply the teachers of a distillation.
"""

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import architecture
import pytest
from patience import PATIENCE_S
from source_imports import Import, imports

PACKAGE = Path(__file__).parents[2] / "src" / "paratune"

LAYER_0 = {"base", "errors"}
LAYER_1 = {"config", "records", "hardware"}
BESIDE_LAYER_1 = {"console", "hub", "processes"}
LOW = LAYER_0 | LAYER_1 | BESIDE_LAYER_1
LAYER_2 = {"batch", "precision", "stages"}
LAYER_3 = {"data", "models", "metrics"}
LAYER_4 = {"strategies", "checkpoint", "tasks"}
SIDE = {"cluster", "reports", "sweeps", "corpus", "doctor", "verdicts", "watch"}
LAYER_6 = {"training", "infer"}
BELOW_6 = LOW | LAYER_2 | LAYER_3 | LAYER_4 | {"engine", "trackers"}

ALLOWED: dict[str, Set[str]] = {
    "errors": frozenset(),
    "base": {"errors"},
    **dict.fromkeys(LAYER_1, LAYER_0),
    **dict.fromkeys(BESIDE_LAYER_1, LAYER_0 | LAYER_1),
    "records": LAYER_0 | {"config", "hardware"},
    **dict.fromkeys(LAYER_2, LOW),
    "stages": LOW | {"batch"},
    **dict.fromkeys(LAYER_3, LOW | LAYER_2),
    **dict.fromkeys(LAYER_4, LOW | LAYER_2),
    "tasks": LOW | LAYER_2 | LAYER_3,
    "engine": LOW | LAYER_2 | LAYER_3 | LAYER_4 - {"tasks"},
    "trackers": LOW,
    **dict.fromkeys(LAYER_6, BELOW_6),
    "training": BELOW_6 | {"infer", "planning", "verdicts"},
    **dict.fromkeys(SIDE, LOW),
    "verdicts": LOW | {"metrics"},
    "reports": LOW | {"verdicts"},
    "verify": LOW | {"reports", "verdicts"},
    "planning": LOW | LAYER_2 | LAYER_3,
    "hf": BELOW_6 | {"training"},
    "explain": BELOW_6 | {"infer", "reports", "verdicts"},
    "feedback": BELOW_6 | {"explain", "infer", "reports", "verdicts"},
    "api": BELOW_6 | LAYER_6 | SIDE | {"planning"},
    "compress": BELOW_6 | {"explain", "infer", "verdicts"},
    "serving": BELOW_6 | {"explain", "feedback", "infer", "reports"},
    "commands": BELOW_6 | LAYER_6 | SIDE | {"api", "compress", "explain", "feedback", "planning", "serving", "verify"},
    "cli": {"commands"} | LOW | SIDE,
    "__main__": {"cli"},
    "__init__": {"api"},
}
"""The packages that each package may import, besides itself and the version number in `paratune`."""

LIGHTEST = {"errors", "commands"}
"""What the command line imports before it knows the command, with the errors of the system."""
LIGHT = LOW | SIDE | {"verify", "trackers", "api", "cli", "__main__", "__init__"}
HEAVY = {"torch", "transformers", "sklearn", "scipy", "matplotlib", "datasets", "deepspeed"}


def violations(package: Path) -> list[str]:
    """Return what breaks the layers in a package folder, one line each."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[0] not in ALLOWED:
            found.append(f"{path.relative_to(package)}: {parts[0]} has no layer; give it one in test_import_layers.py")
            continue
        for statement in imports(path, package):
            reason = reason_against(parts[0], statement)
            if reason:
                found.append(f"{path.relative_to(package)}:{statement.line}: {reason}")
    return found


def reason_against(package: str, statement: Import) -> str | None:
    top, *inner = statement.module.split(".")
    if top != "paratune":
        if package in LAYER_0 and top not in sys.stdlib_module_names:
            return f"{package} imports {top}; layer 0 uses only the standard library"
        if package in LIGHT and top in HEAVY and statement.at_import:
            return f"{package} imports {top} when it is imported; move it into the function that needs it"
        return None
    target = inner[0] if inner else None
    if target is None or target == package:
        return None
    if target not in ALLOWED[package]:
        return f"{package} may not import {target}"
    if package == "engine" and target == "strategies" and inner[1:2] != ["protocol"]:
        return f"engine may import strategies.protocol, not {statement.module}"
    if package == "cli" and statement.at_import and inner[:2] != ["base", "system_errors"] and target not in LIGHTEST:
        return f"cli imports {statement.module} when it is imported; move it into the command"
    return None


def test_imports_go_down_only():
    assert violations(PACKAGE) == []


def test_there_is_something_to_read():
    packages = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert {"errors", "config", "batch", "metrics", "strategies", "engine"} <= packages
    assert sum(len(list(imports(path, PACKAGE))) for path in PACKAGE.rglob("*.py")) > 100


TREE = {
    "__init__.py": "__version__ = '0'",
    "errors.py": "import json",
    "base/units.py": "",
    "records.py": "from paratune.errors import ParatuneError",
    "hardware.py": "def gpus():\n    import torch",
    "config/__init__.py": "",
    "config/load.py": "from paratune.config.sections import Config\nfrom paratune.base import units",
    "config/sections.py": "",
    "batch.py": "import torch\nfrom paratune.config.sections import Config",
    "data/__init__.py": "from paratune.batch import Batch",
    "metrics/scores.py": "from paratune import records",
    "strategies/protocol.py": "from paratune.batch import Batch",
    "strategies/ddp.py": "from . import protocol",
    "checkpoint.py": "from paratune import records",
    "engine/loop.py": "from paratune.strategies.protocol import Strategy\nfrom paratune import checkpoint",
    "training.py": "import paratune.engine.loop\nfrom paratune import __version__",
    "reports/__init__.py": "from paratune import records, __version__",
    "cli.py": "from paratune.errors import require\ndef train():\n    from paratune.commands import train",
    "commands/train.py": "from paratune.training import train",
}


def make_tree(folder: Path, **changed: str) -> Path:
    for name, source in {**TREE, **changed}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


def test_allowed_imports_pass(tmp_path):
    assert violations(make_tree(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("errors.py", "import numpy", "errors.py:1: errors imports numpy; layer 0"),
        ("base/units.py", "from paratune.records import X", "base may not import records"),
        ("config/load.py", "\n\nimport paratune.records", "config/load.py:3: config may not import records"),
        ("config/load.py", "from paratune import batch", "config may not import batch"),
        ("config/load.py", "from .. import records", "config may not import records"),
        ("config/load.py", "from ..records import X", "config may not import records"),
        ("records.py", "import torch", "records imports torch when it is imported"),
        ("config/sections.py", "class A:\n    import torch.nn", "config imports torch when it is imported"),
        (
            "reports/__init__.py",
            "try:\n    from transformers import X\nexcept ImportError:\n    pass",
            "reports imports tran",
        ),
        ("hardware.py", "from paratune.records import X", "hardware may not import records"),
        ("batch.py", "from paratune.data import X", "batch may not import data"),
        (
            "data/__init__.py",
            "def f():\n    import paratune.metrics.scores",
            "data/__init__.py:2: data may not import met",
        ),
        ("metrics/scores.py", "from paratune import data", "metrics may not import data"),
        ("strategies/ddp.py", "from paratune import checkpoint", "strategies may not import checkpoint"),
        ("strategies/ddp.py", "from paratune.data import X", "strategies may not import data"),
        ("checkpoint.py", "from paratune.strategies.protocol import X", "checkpoint may not import strategies"),
        ("checkpoint.py", "from paratune.metrics.scores import X", "checkpoint may not import metrics"),
        ("engine/loop.py", "from paratune.strategies.ddp import X", "engine may import strategies.protocol, not"),
        ("engine/loop.py", "from paratune.strategies import ddp", "engine may import strategies.protocol, not"),
        ("engine/loop.py", "from paratune import strategies", "engine may import strategies.protocol, not"),
        ("engine/loop.py", "from paratune.training import X", "engine may not import training"),
        ("training.py", "import paratune.explain", "training may not import explain"),
        ("reports/__init__.py", "from paratune.batch import X", "reports may not import batch"),
        ("doctor/checks.py", "from paratune.metrics.scores import X", "doctor may not import metrics"),
        ("processes/local.py", "from paratune.reports import X", "processes may not import reports"),
        ("cli.py", "from paratune.records import X", "cli imports paratune.records when it is imported"),
        ("cli.py", "def f():\n    import paratune.engine.loop", "cli may not import engine"),
        ("attic.py", "", "attic.py: attic has no layer"),
    ],
)
def test_each_rule_catches_what_breaks_it(tmp_path, name, source, message):
    found = violations(make_tree(tmp_path, **{name: source}))
    assert len(found) == 1, found
    assert message in found[0]


LIGHT_MODULES = [
    "paratune.config.load",
    "paratune.records",
    "paratune.hardware",
    "paratune.console",
    "paratune.doctor",
    "paratune.reports",
    "paratune.verdicts",
    "paratune.processes.local",
    "paratune.api.train",
    "paratune.api.evaluate",
    "paratune.api.predict",
    "paratune.cli",
    "paratune.data.describe",
    *(f"paratune.tasks.{name}" for name in ("sequence", "embedding", "masked_lm", "question_answering", "words")),
]


def test_light_modules_leave_torch_alone():
    present = [name for name in LIGHT_MODULES if importlib.util.find_spec(name)]
    assert "paratune.records" in present
    code = (
        "import importlib, sys\n"
        f"for name in {present}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = {HEAVY} & set(sys.modules)\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0, result.stderr


def test_the_top_level_holds_36_packages_at_most():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "__main__.py", "cli.py", "errors.py"]
    assert len(list(PACKAGE.glob("*/__init__.py"))) <= 36


FOR_NOTEBOOKS = {
    "paratune.reports.comparison": {"paratune.reports.terminal"},
    "paratune.reports.run": {"paratune.reports.terminal"},
    "paratune.reports.outcomes": {"paratune.reports.terminal"},
}
"""A notebook asks a report itself for its HTML, which a module above it makes."""


def test_no_file_imports_itself_through_other_files():
    graph = architecture.file_imports(PACKAGE)
    for file, makers in FOR_NOTEBOOKS.items():
        assert makers <= graph[file]
        graph[file] -= makers
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_picture_of_the_layers_is_up_to_date():
    graph = architecture.package_imports(PACKAGE)
    again = "run `python tests/architecture.py`"
    assert architecture.PICTURE.read_text() == architecture.picture(graph), again
    text = architecture.PAGE.read_text()
    assert text == architecture.page(text, graph, PACKAGE), again


def test_a_package_stands_above_all_that_it_imports():
    graph = {"cli": {"engine", "errors"}, "engine": {"data"}, "data": {"errors"}, "errors": set(), "base": set()}
    assert architecture.layers(graph) == [["base", "errors"], ["data"], ["engine"], ["cli"]]
    with pytest.raises(ValueError, match=r": a, b$"):
        architecture.layers({"a": {"b"}, "b": {"a"}, "c": set()})


def test_the_functions_on_the_way_of_a_batch_exist():
    steps = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| (.*?) \|", architecture.PAGE.read_text(), re.MULTILINE)
    assert len(steps) == 17
    for file, named in steps:
        for name in re.findall(r"`([\w.]+)`", named):
            nodes = ast.parse((PACKAGE / file).read_text()).body
            for part in name.split("."):
                inner = [
                    node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part
                ]
                assert inner, f"{file} has no {name}"
                nodes = inner[0].body
