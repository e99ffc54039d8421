"""The model card of a run: its metadata as the hub reads them, its scores, and what must not be in it."""

from pathlib import Path

import pytest
from finished_run import LABELS, write_finished_run
from huggingface_hub import ModelCard, metadata_load
from raised import raises_code

from paratune.training.model_card import card_text, write_card


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "a_run"


def written(folder: Path) -> str:
    write_card(folder, *write_finished_run(folder))
    return (folder / "model" / "README.md").read_text()


def row_of(card: str, start: str) -> list[str]:
    (line,) = [line for line in card.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_hub_reads_its_metadata(run: Path):
    written(run)
    metadata = metadata_load(run / "model" / "README.md")
    assert metadata is not None
    assert metadata["library_name"] == "transformers"
    assert metadata["pipeline_tag"] == "text-classification"
    assert metadata["datasets"] == ["stanfordnlp/sst2"]
    assert metadata["metrics"] == ["accuracy", "f1"]
    assert "base_model" not in metadata  # the hub has no model of the name of a folder
    (result,) = ModelCard.load(run / "model" / "README.md").data.eval_results or []
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("accuracy", 0.8, "test")


def test_a_hub_name_and_an_adapter_are_in_the_metadata(run: Path):
    record, summary = write_finished_run(run)
    record["config"]["model"]["name"] = "owner/base"
    (run / "model" / "adapter_config.json").write_text("{}")
    write_card(run, record, summary)
    metadata = metadata_load(run / "model" / "README.md")
    assert metadata is not None
    assert (metadata["library_name"], metadata["base_model"]) == ("peft", "owner/base")


def test_scores_have_wilsons_interval_and_the_baseline(run: Path):
    # 8 of 10 right; Wilson (1927) with z = 1.96: 0.4902 to 0.9433, as in statsmodels' proportion_confint.
    assert row_of(written(run), "test | 10 | Accuracy ↑") == [
        *("test", "10", "Accuracy ↑", "0.8000", "0.4902 to 0.9433", "0.5000")
    ]


def test_time_energy_hardware_and_settings_come_from_the_record(run: Path):
    card = written(run)
    assert row_of(card, "energy")[1].startswith("2 kWh")  # 7.2 MJ
    assert row_of(card, "hardware")[1] == "1 × CPU X, 4 cores + 2 G"
    assert row_of(card, "strategy")[1] == "ddp, 2 processes"
    assert row_of(card, r"train.learning\_rate")[1] == "3e-05"
    assert "train.freeze" not in card
    assert "train.compile" not in card


def test_the_licence_is_that_of_the_base_models_card(run: Path):
    (run.parent / "base").mkdir()
    (run.parent / "base" / "README.md").write_text("---\nlicense: mit\n---\n")
    assert row_of(written(run), "licence of the base model")[1] == "mit"


@pytest.mark.parametrize("content", ["---\nlicense: [a\n---\n", "", "---\n- a\n---\n"])
def test_a_damaged_card_of_the_base_model_has_no_licence(run: Path, content: str):
    (run.parent / "base").mkdir()
    (run.parent / "base" / "README.md").write_text(content)
    assert row_of(written(run), "licence of the base model")[1] == "n/a"


def test_it_has_no_paths_and_hosts_and_is_the_same_again(run: Path):
    card = written(run)
    assert str(run.parent) not in card
    assert "secret-host" not in card
    assert card == card_text(run, *_records(run))


def test_texts_from_files_are_escaped(run: Path):
    card = written(run)
    assert not any(label in card for label in LABELS)
    assert r"no\|pe" in card
    assert r"te\`st.csv" in card
    assert r"te\_xt" in card


def test_a_card_that_cannot_be_written_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    record, summary = write_finished_run(run)
    monkeypatch.setattr("paratune.training.model_card.write_text", full)
    with raises_code("output.not_writable", run / "model" / "README.md"):
        write_card(run, record, summary)


def _records(folder: Path) -> tuple[dict, dict]:
    from paratune.records import read_json

    return read_json(folder / "run.json"), read_json(folder / "summary.json")
