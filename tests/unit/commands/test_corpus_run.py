"""What settings name is looked for before the first stage begins."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands.corpus_run import EXAMPLE_CONTACTS, STAGES, build_corpus, check_inputs
from paratune.corpus.settings import read_settings
from paratune.errors import DataError

SETTINGS = """
work: {folder}/work
index:
  files: [{folder}/no.cdx, "{folder}/none*.cdxj"]
  warcs: [{folder}/a.warc]
fetch:
  warcs: [{folder}/b.warc]
clean:
  language: {{keep: [{language}]}}
  variety:
    sources: [{{name: subtitles, brazilian: [{folder}/br.txt], european: [{folder}/a.txt]}}]
  decontaminate:
    sets: [{{name: assin, files: [{folder}/assin.txt]}}]
sentences:
  clean: {{files: [{folder}/good.txt]}}
"""


def settings(tmp_path: Path, language: str = "pt") -> Path:
    for name in ("a.warc", "a.txt"):
        (tmp_path / name).write_bytes(b"")
    path = tmp_path / "corpus.yaml"
    path.write_text(SETTINGS.format(folder=tmp_path, language=language), encoding="utf-8")
    return path


def test_all_missing_files_are_listed_and_nothing_is_created(tmp_path):
    with pytest.raises(DataError) as caught:
        build_corpus(settings(tmp_path), only=None, workers=None, as_json=True)
    lines = str(caught.value).replace(f"{tmp_path}/", "").splitlines()
    assert [line.split(" matches ")[0].strip() for line in lines[1:]] == [
        "index.files: no.cdx",
        "index.files: none*.cdxj",
        "fetch.warcs: b.warc",
        "clean.variety.sources: subtitles: br.txt",
        "clean.decontaminate.sets: assin: assin.txt",
        "sentences.clean.files: good.txt",
    ]
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("stage", "refused"), [("fetch", ("data.not_found", "b.warc")), ("sentences", ("data.not_found", "good.txt"))]
)
def test_only_the_files_of_the_stages_that_run_are_looked_for(tmp_path, stage, refused):
    corpus = read_settings(settings(tmp_path))
    with raises_code(*refused) as caught:
        check_inputs(corpus, [stage])
    assert len(str(caught.value).splitlines()) == 1
    check_inputs(corpus, ["extract", "store"])


def test_a_skipped_step_needs_no_files(tmp_path):
    corpus = read_settings(settings(tmp_path, language="xx"))
    skipping = corpus.clean.model_copy(update={"skip": ["language", "variety", "decontaminate"]})
    check_inputs(corpus.model_copy(update={"clean": skipping}), ["clean"])


def test_an_unknown_language_is_refused_before_reading(tmp_path):
    path = tmp_path / "corpus.yaml"
    (tmp_path / "a.warc").write_bytes(b"")
    path.write_text(
        f"work: {tmp_path}/work\nindex: {{warcs: [{tmp_path}/a.warc]}}\nclean: {{language: {{keep: [por]}}}}"
    )
    with raises_code("config.invalid_value", "clean.language.keep: por"):
        check_inputs(read_settings(path), list(STAGES))


@pytest.mark.parametrize("contact", EXAMPLE_CONTACTS)
def test_no_archive_is_asked_in_the_name_of_an_example(tmp_path, contact):
    path = tmp_path / "corpus.yaml"
    path.write_text(
        f"work: {tmp_path}/work\nnetwork: {{contact: {contact}}}\n"
        "index: {servers: [{kind: cdx, urls: [a.pt], window: whole}]}"
    )
    with raises_code("config.placeholder", contact):
        build_corpus(path, only="index", workers=None, as_json=True)
    check_inputs(read_settings(path), ["extract"])


def test_the_contacts_of_the_examples_are_known():
    root = Path(__file__).parents[3]
    assert read_settings(root / "configs/corpus/arquivo.yaml").network.contact in EXAMPLE_CONTACTS
    assert f"contact: {EXAMPLE_CONTACTS[1]} " in (root / "docs/howto/corpus/network.md").read_text(encoding="utf-8")
