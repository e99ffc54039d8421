"""Documents for the tests of the stage `sentences`, in a module that other processes can import."""

import os
import signal
import sys
from pathlib import Path

from paratune.console import Display
from paratune.corpus.clean.run import output_folder
from paratune.corpus.sentences.run import run_sentences
from paratune.corpus.settings import Corpus, Index
from paratune.corpus.shard import DOCUMENT_SCHEMA, write_shard
from paratune.corpus.stage import Stage, begin, finish

DISPLAY = Display(speaks=False)


def sentence(number):
    """Return a sentence of 7 words and punctuation marks; one word is unique."""
    return f"O gato x{name(number)} dorme na cama."


def name(number):
    """Return a number written with letters."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def make_corpus(tmp_path, shards, work="work", **options):
    """Return settings after writing their cleaned documents: texts, or pairs of a text and its language score."""
    corpus = Corpus(work=str(tmp_path / work), index=Index(files=["unused"]), sentences=options)
    stage = Stage("documents", output_folder(corpus), DOCUMENT_SCHEMA, lambda each: each, None, shards)
    begin(stage)
    for number, texts in enumerate(shards):
        write_shard(stage.folder, number, DOCUMENT_SCHEMA, [row(f"{number}-{n}", each) for n, each in enumerate(texts)])
    finish(stage, len(shards))
    return corpus


def row(id_, each):
    text, score = each if isinstance(each, tuple) else (each, None)
    known = {"id": id_, "url": f"http://a.pt/{id_}", "text": text, "language_score": score}
    return {**dict.fromkeys(DOCUMENT_SCHEMA.names), **known}


def main(settings, most):
    """Run the stage, which is killed when the second last of `most` files has been renamed."""
    num_renamed, rename = 0, Path.replace

    def counting(self, target):
        nonlocal num_renamed
        num_renamed += 1
        if num_renamed == int(most):
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)

    Path.replace = counting
    run_sentences(Corpus.model_validate_json(Path(settings).read_text()), 1, DISPLAY)


if __name__ == "__main__":
    main(*sys.argv[1:])
