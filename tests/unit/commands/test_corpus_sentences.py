from raised import raises_code
from sentence_documents import DISPLAY, make_corpus, sentence
from tiny import tiny_masked_lm

from paratune.commands.corpus_sentences import run
from paratune.records import read_json, write_json


def test_a_masked_language_model_scores_and_the_page_is_written(tmp_path):
    tiny_masked_lm(tmp_path / "model")
    options = {"scorer": "mlm", "model": str(tmp_path / "model"), "device": "cpu", "whole": False, "min_words": 2}
    corpus = make_corpus(tmp_path, [["the story was good\na bad story", sentence(1)]], **options)
    assert run(corpus, 1, DISPLAY)["kept"] == 3
    folder = tmp_path / "work/5_sentences"
    result = read_json(folder / "perplexity.json")
    assert (result["scorer"], result["num_unknown"]) == ("mlm", 0)
    assert all(entry["perplexity"] > 1 for threshold in result["thresholds"] for entry in threshold["below"])
    assert "pseudo-perplexity" in (folder / "perplexity.html").read_text()


def test_another_kind_of_model_is_refused(tmp_path):
    from tiny import tiny_model

    tiny_model(tmp_path / "model")
    corpus = make_corpus(tmp_path, [[sentence(1)]], scorer="mlm", model=str(tmp_path / "model"), device="cpu")
    with raises_code("task.unsupported", kind="classification"):
        run(corpus, 1, DISPLAY)


def test_code_of_a_model_is_refused_without_naming_a_flag_that_the_command_lacks(tmp_path):
    tiny_masked_lm(tmp_path / "model")
    write_json(tmp_path / "model" / "paratune.json", {"model": {"class": "stranger:Model"}})
    corpus = make_corpus(tmp_path, [[sentence(1)]], scorer="mlm", model=str(tmp_path / "model"), device="cpu")
    with raises_code("code.refused", path=str(tmp_path / "model")) as raised:
        run(corpus, 1, DISPLAY)
    assert "--run-code" not in raised.value.text()
