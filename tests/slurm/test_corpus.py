"""Corpus stages with datatrove's SlurmPipelineExecutor, on a real Slurm."""

import os
import subprocess
import sys
from pathlib import Path

from corpus_documents import content, extracted
from patience import PATIENCE_S
from raised import check_shown
from toy_jobs import wait_until

from paratune.cluster import jobs, toy
from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.store import run_store

SITE = """\
partition: toy
time: "10"
environment: {COLOUR: blue}
"""
CODE = """\
import sys
from pathlib import Path
from paratune.commands.corpus_executor import executor_spread
from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.store import run_store
from paratune.errors import ParatuneError

corpus = Corpus.model_validate_json(sys.argv[1])
site = Path("site.yaml")
tasks = executor_spread(Path(corpus.work), "slurm", tasks=2, workers=1, site=site, memory_gib=1)
try:
    run_store(corpus, tasks, Display(speaks=False))
except ParatuneError as error:
    sys.exit(error.text())
"""
STEPS = ["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]


def corpus(work: str) -> Corpus:
    return Corpus.model_validate({"work": work, "clean": {"skip": STEPS}})


def spread(folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "site.yaml").write_text(SITE)
    return subprocess.run(
        [sys.executable, "-P", "-c", CODE, corpus("spread").model_dump_json()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_the_result_is_that_of_local_processes(cluster: toy.ToyCluster, tmp_path: Path):
    for name in ("own", "spread"):
        extracted(tmp_path / name, *([f"texto {shard} {number}" for number in range(5)] for shard in range(5)))
    run_store(corpus(str(tmp_path / "own")), 1, Display(speaks=False))
    completed = spread(tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert content(tmp_path / "own/6_store") == content(tmp_path / "spread/6_store")
    logs = tmp_path / "spread/executor/store_documents"
    assert sorted(path.name for path in (logs / "completions").iterdir()) == ["00000", "00001"]
    script = (logs / "launch_script.slurm").read_text()
    assert "#SBATCH --array=0-1" in script
    assert "export COLOUR=blue" in script
    assert os.fspath(Path(sys.executable).parent) in script


def test_a_shard_that_cannot_be_made_is_named(cluster: toy.ToyCluster, tmp_path: Path):
    folder = extracted(tmp_path / "spread", *([f"texto {shard}"] for shard in range(3)))
    (folder / "part-00001.parquet").write_bytes(b"torn")
    completed = spread(tmp_path)
    assert completed.returncode != 0
    check_shown(completed.stderr, "corpus.shards_failed", "1 of 3")
    assert "part-00001.parquet cannot be read" in completed.stderr
    wait_until(lambda: not jobs.queue(), "nothing is left in the queue")
