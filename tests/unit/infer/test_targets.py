"""Which model a name on the command line means."""

from pathlib import Path

from raised import raises_code

from paratune.infer.trained import NamedColumns, load_trained


def test_a_missing_run_is_not_searched_on_the_hub(tmp_path: Path):
    (tmp_path / "runs" / "tour").mkdir(parents=True)
    (tmp_path / "runs" / "tour" / "run.json").write_text("{}")
    with raises_code("run.not_found", "tuor", "tour"):
        load_trained(str(tmp_path / "runs" / "tuor"), NamedColumns(), "cpu")
