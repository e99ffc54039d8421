"""Errors show nothing of files outside the folder of a configuration, which its author may not be allowed to read."""

from pathlib import Path

import pytest
from raised import check_code

from paratune.config.load import check_layer, load_config
from paratune.config.overrides import read_layers
from paratune.errors import ParatuneError
from paratune.sweeps.cell import invalid
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix

CONTENTS = {
    "text": b"sesame:x:0:0:sesame:/root:/bin/sesame\nsesame:x:1\n",
    "list": b"- sesame\n- 3\n",
    "word": b"sesame\n",
    "keys": b"sesame: 3\ntrain: {sesame: 1}\n",
    "value": b"train: {learning_rate: sesame}\n",
    "kind": b"task: sesame\n",
    "combined": b"train: {warmup_steps: 5, warmup_ratio: 0.5}\nrun: {name: sesame}\n",
    "broken": b"a: [sesame\n",
    "tab": b"a:\n\tsesame: 1\n",
    "twice": b"sesame: 1\nsesame: 2\n",
    "bytes": b"sesame \xff\xfe\n",
}
PLAIN = """
task: {kind: classification, labels: [a, b]}
data: {train: a.csv, columns: {text: t, label: l}, split: {validation: 0.1}}
model: {name: m}
train: {epochs: 1}
batch: {global: 8}
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folder of the configuration, and one outside it."""
    for name in ("mine", "private"):
        (tmp_path / name).mkdir()
    (tmp_path / "private" / "sesame.yaml").write_text("")
    return tmp_path / "mine", tmp_path / "private"


def extended(folder: Path, outside: Path, way: str) -> str:
    """Return a value of `extends` that leads to `outside / "file"`."""
    if way == "link":
        (folder / "link.yaml").symlink_to(outside / "file")
        return "link.yaml"
    return "../private/file" if way == "relative" else str(outside / "file")


@pytest.mark.parametrize("way", ["relative", "absolute", "link"])
@pytest.mark.parametrize("content", CONTENTS)
def test_no_content_of_an_extended_file_is_shown(folders: tuple[Path, Path], content: str, way: str):
    folder, outside = folders
    (outside / "file").write_bytes(CONTENTS[content])
    name = extended(folder, outside, way)
    (folder / "c.yaml").write_text(f"extends: {name}\n{PLAIN}")
    # Both are merged into one `train`: the problem has keys of the other file.
    with pytest.raises(ParatuneError) as raised:
        load_config(folder / "c.yaml", ("strategy=no_such_strategy",))
    _shows_nothing(raised.value)
    _, problems = check_layer(read_layers(folder / "c.yaml", ()), folder / "c.yaml")  # as doctor shows them
    assert not [problem for problem in problems if "sesame" in problem.message or "sesame" in str(problem.keys)]


@pytest.mark.parametrize("content", CONTENTS)
def test_no_content_of_a_matrix_s_base_is_shown(folders: tuple[Path, Path], content: str):
    folder, outside = folders
    (outside / "file").write_bytes(CONTENTS[content])
    (folder / "m.yaml").write_text("name: m\nbase: ../private/file\naxes: {run.seed: [1, 2]}\n")
    with pytest.raises(ParatuneError) as raised:
        _check_matrix(folder / "m.yaml")
    _shows_nothing(raised.value)


def _check_matrix(path: Path) -> None:
    matrix = read_matrix(path)
    if (error := invalid(matrix, cells_of(matrix, (), here=False))) is not None:
        raise error


def test_no_names_of_an_outside_folder_are_listed(folders: tuple[Path, Path]):
    folder, _ = folders
    for name in ("../private/absent.yaml", "../private"):
        (folder / "c.yaml").write_text(f"extends: {name}\n{PLAIN}")
        with pytest.raises(ParatuneError) as raised:
            load_config(folder / "c.yaml")
        _shows_nothing(raised.value)
        check_code(raised.value, "config.extends", "private")


def test_mistakes_in_the_own_folder_are_shown(folders: tuple[Path, Path]):
    folder, _ = folders
    (folder / "base.yaml").write_text("train: {sesame: 1}\n")
    (folder / "c.yaml").write_text(f"extends: base.yaml\n{PLAIN}")
    with pytest.raises(ParatuneError) as raised:
        load_config(folder / "c.yaml")
    check_code(raised.value, "config.unknown_key", "train.sesame")


def _shows_nothing(error: ParatuneError) -> None:
    shown = error.text() + str([fault.as_dict() for fault in error.faults])
    assert "sesame" not in shown, shown
