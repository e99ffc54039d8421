"""Runs a step of the cleaning, and kills itself after each written shard: python killed_step.py STEP WORK CLEAN.

CLEAN is the section `clean` of the settings, as JSON. The exit code is 0 when all shards are written.
"""

import json
import os
import signal
import sys
from pathlib import Path

from corpus_documents import runner

from paratune.corpus import stage
from paratune.corpus.clean.run import STEPS
from paratune.corpus.settings import Clean, Corpus


def killed(work):
    def run(*arguments):
        work(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return run


if __name__ == "__main__":
    step, work = sys.argv[1], Path(sys.argv[2])
    folder = work / "4_clean" / f"1_{step}"
    stage.write_shard = killed(stage.write_shard)
    corpus = Corpus(work=str(work), clean=Clean(**json.loads(sys.argv[3])))
    dict(STEPS)[step](corpus, work / "3_extract", folder, runner())
