"""`fill-mask`: the output, for people and for programs."""

import json
from pathlib import Path

import pytest
from tiny import tiny_masked_lm

from paratune.commands import fill_mask as command
from paratune.commands.fill_mask import fill_mask
from paratune.errors import EXIT_OK


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(command, "set_up_logging", lambda **_: None)
    tiny_masked_lm(tmp_path / "model")
    return str(tmp_path / "model")


def filled(model: str, *texts: str, as_json: bool) -> int:
    return fill_mask(model, *texts, top_k=2, device="cpu", json=as_json)


def test_terminal_and_json_show_the_same_words(model: str, capsys: pytest.CaptureFixture[str]):
    texts = ("the [MASK] was [MASK]", "a [MASK]\x1b[2J of the good films")
    assert filled(model, *texts, as_json=True) == EXIT_OK
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == model
    assert [entry["text"] for entry in document["texts"]] == list(texts)
    assert [len(entry["masks"]) for entry in document["texts"]] == [2, 1]

    assert filled(model, *texts, as_json=False) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if "[MASK]" in line] == [
        "the [MASK] was [MASK]",
        r"a [MASK]\x1b[2J of the good films",
    ]
    assert lines[1].split() == ["mask", "1", "probability", "mask", "2", "probability"]
    for at, masks in ((2, document["texts"][0]["masks"]), (6, document["texts"][1]["masks"])):
        for rank in range(2):
            cells = [cell for mask in masks for cell in (mask[rank]["token"], f"{mask[rank]['probability']:.4f}")]
            assert lines[at + rank].split() == cells
