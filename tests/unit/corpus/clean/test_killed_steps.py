import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_documents import content, document, extracted, runner

from paratune.corpus.clean.run import STEPS
from paratune.corpus.settings import Clean, Corpus

SCRIPT = Path(__file__).parents[3] / "killed_step.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "num_writes", "reason"),
    [
        # Two shards of records, one of common lines, two of what stays.
        ("lines", 5, "too little left"),
        # Two shards of signatures, one of pairs, the clusters, two of what stays.
        ("duplicates", 6, "duplicate"),
        ("decontaminate", 2, "text of set"),
    ],
)
def test_killed_after_each_shard_of_each_phase_a_step_gives_the_same(tmp_path, step, num_writes, reason):
    words = [f"palavra{number}" for number in range(40)]
    texts = [" ".join(words[n % 5 : 20 + n % 7]) + "\nTodos os direitos reservados" for n in range(30)]
    texts[4], texts[20] = ("Pouco\nTodos os direitos reservados" for _ in range(2))
    (tmp_path / "set.txt").write_text(" ".join(words[:14]))
    clean = {"decontaminate": {"sets": [{"name": "set", "files": [str(tmp_path / "set.txt")]}]}}
    rows = [document(text, number) for number, text in enumerate(texts)]
    for name in ("whole", "killed"):
        extracted(tmp_path / name, rows[:15], rows[15:])
    whole = Corpus(work=str(tmp_path / "whole"), clean=Clean(**clean))
    folder = tmp_path / "whole/4_clean" / f"1_{step}"
    totals = dict(STEPS)[step](whole, tmp_path / "whole/3_extract", folder, runner())
    assert totals["dropped"][reason] > 0
    command = [sys.executable, SCRIPT, step, tmp_path / "killed", json.dumps(clean)]
    num_killed = 0
    while subprocess.run(command).returncode == -signal.SIGKILL:
        num_killed += 1
    assert num_killed == num_writes
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
