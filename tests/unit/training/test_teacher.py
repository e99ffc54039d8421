"""The outputs of teachers: those of transformers, from the cache, and refused where the task differs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from raised import raises_code
from tiny import tiny_model, tiny_tokenizer

from paratune import hardware
from paratune.config.load import load_config
from paratune.console import Display
from paratune.data.columns import Samples
from paratune.data.load import Split
from paratune.engine.stop import StopRequest
from paratune.errors import Stopped
from paratune.records import write_json
from paratune.records.own import TASK_FILE
from paratune.training import teacher
from paratune.training.teacher import TeacherPass, with_teachers

OUTPUTS = np.float32(1.5).tobytes()
TEXTS = ["the film is good", "bad", "a very very poor story it was", "nice food"]
CONFIG = """\
task: {kind: classification, labels: [negative, positive]}
data: {train: a.csv, columns: {text: text, label: label}}
model: {name: model}
train: {epochs: 1}
batch: {global: 8}
distil: {teacher: [one, two], distance: mse}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TeacherPass:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    for seed, name in enumerate(("one", "two"), start=1):
        tiny_model(Path(name), num_layers=3, seed=seed)
        record(name)
    (tmp_path / "c.yaml").write_text(CONFIG)
    samples = Samples(TEXTS, None, np.array([0, 1, 1, 0]), None, np.arange(4), None, {})
    split = Split("train", "a.csv", samples, None, "0" * 64)  # type: ignore[arg-type]  # the student's tokens are not read
    config = load_config(Path("c.yaml")).config
    return TeacherPass(config, split, torch.device("cpu"), StopRequest(), Display(speaks=False))


def record(name: str, **changes: object) -> None:
    """Write what paratune writes next to a model."""
    task = {"kind": "classification", "labels": ["negative", "positive"]}
    write_json(
        Path(name) / TASK_FILE, {"task": task, "columns": {"text": "t", "label": "l"}, "max_length": 6, **changes}
    )


def test_the_outputs_are_the_mean_logits_of_transformers(work: TeacherPass, monkeypatch: pytest.MonkeyPatch):
    split, facts = with_teachers(work)
    # Truncated to the 6 tokens of the teacher, whatever the student reads.
    inputs = tiny_tokenizer()(TEXTS, truncation=True, max_length=6, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = [tiny_model(num_layers=3, seed=seed).eval()(**inputs).logits for seed in (1, 2)]
    np.testing.assert_allclose(split.teacher, torch.stack(logits).mean(dim=0).numpy(), atol=1e-6)
    assert [about["name"] for about in facts] == ["one", "two"]
    assert facts[0]["weights_sha256"] != facts[1]["weights_sha256"]
    record("one", max_length=5)  # other tokens of the same weights
    again = with_teachers(work)[1][0]
    assert again["weights_sha256"] == facts[0]["weights_sha256"]
    assert again["inputs_sha256"] != facts[0]["inputs_sha256"]
    record("one")
    monkeypatch.setattr(teacher, "load_trained", lambda *args: pytest.fail("computed again"))
    np.testing.assert_array_equal(with_teachers(work)[0].teacher, split.teacher)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data.replace(OUTPUTS, bytes(4)), lambda _: b""]
)
def test_damaged_files_are_computed_again(work: TeacherPass, damage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(teacher, "_compute", lambda *args: np.full((4, 2), 1.5, np.float32))
    before = with_teachers(work)[0].teacher
    for path in Path("cache/teachers").glob("*.npz"):
        path.write_bytes(damage(path.read_bytes()))
    np.testing.assert_array_equal(with_teachers(work)[0].teacher, before)


def test_other_texts_are_computed_again(work: TeacherPass):
    before = with_teachers(work)[0].teacher
    samples = replace(work.split.samples, texts=["good", *TEXTS[1:]])
    after = with_teachers(replace(work, split=replace(work.split, samples=samples)))[0].teacher
    assert (after[0] != before[0]).any()
    np.testing.assert_allclose(after[1:], before[1:], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"task": {"kind": "classification", "labels": ["positive", "negative"]}}, "positive, negative"),
        ({"task": {"kind": "ordinal", "labels": ["negative", "positive", "x"]}}, "ordinal"),
        ({"columns": {"text": "t", "text_pair": "u", "label": "l"}}, "pairs"),
    ],
)
def test_a_teacher_of_another_task_is_refused(work: TeacherPass, changes, value):
    record("two", **changes)
    with raises_code("distil.teacher", value, value="two"):
        with_teachers(work)
    assert not list(Path("cache/teachers").glob("*.tmp"))


def test_a_teacher_with_outputs_that_are_not_finite_is_refused(work: TeacherPass):
    model = tiny_model(num_layers=3)
    torch.nn.init.constant_(model.classifier.bias, float("nan"))
    model.save_pretrained("two")
    with raises_code("distil.teacher", "4 of 4", value="two", num_rows=4):
        with_teachers(work)
    assert len(list(Path("cache/teachers").glob("*.npz"))) == 1


def test_a_name_that_is_no_folder_is_refused(work: TeacherPass):
    Path("two").rename("three")
    with raises_code("distil.teacher", value="two"):
        with_teachers(work)


@pytest.mark.skipif(not hardware.reset_peak_memory(), reason="this system cannot reset the peak of a process")
def test_the_memory_of_a_teacher_is_not_in_the_peak_of_the_run(work: TeacherPass, monkeypatch: pytest.MonkeyPatch):
    def compute(*_: object) -> np.ndarray:
        np.ones(300_000_000, np.uint8)
        return np.ones((4, 2), np.float32)

    monkeypatch.setattr(teacher, "_compute", compute)
    before = hardware.resident_memory_bytes()
    with_teachers(work)
    assert hardware.peak_memory_bytes() < before + 150_000_000


def test_a_signal_leaves_no_file(work: TeacherPass, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(StopRequest, "came", lambda self: True)
    with pytest.raises(Stopped):
        with_teachers(work)
    assert not list(Path("cache/teachers").glob("*.npz"))
