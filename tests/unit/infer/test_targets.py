"""Which model a name on the command line means."""

from pathlib import Path

from raised import raises_code

from paratune.infer.trained import Named, load_trained


def test_a_run_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path: Path):
    (tmp_path / "runs" / "tour").mkdir(parents=True)
    (tmp_path / "runs" / "tour" / "run.json").write_text("{}")
    with raises_code("run.not_found", "tuor", "tour"):
        load_trained(str(tmp_path / "runs" / "tuor"), Named(), "cpu")
