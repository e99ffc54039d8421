import json
import math
import random
import shutil

import numpy as np
import pytest
from corpus_documents import content, document, dropped, extracted, kept, runner
from raised import raises_code

from paratune.console import Display
from paratune.corpus.clean.language import (
    NUM_FEATURES,
    VarietyModel,
    features,
    load,
    probabilities,
    read_sources,
    run_variety,
    simplified,
    train,
)
from paratune.corpus.clean.run import enabled_steps, run_clean
from paratune.corpus.settings import Clean, Corpus, Variety, VarietySource

DISPLAY = Display(speaks=False)
# Words that differ and constructions that do, in sentences of the same subjects.
SUBJECTS = ["o vizinho", "a professora", "o rapaz", "a equipa toda", "o meu irmão", "aquela senhora", "o médico"]
ENDS = ["na rua", "em casa", "com calma", "há muito tempo", "depois do almoço", "sem pressa", "outra vez", "cedo"]
EUROPEAN = ["está a ler o jornal", "perdeu o autocarro", "ligou-me do telemóvel", "viu o facto", "está a beber sumo"]
BRAZILIAN = ["está lendo o jornal", "perdeu o ônibus", "me ligou do celular", "viu o fato", "está bebendo suco"]


def sentences(phrases, seed, num=160):
    draw = random.Random(seed)
    result = {}
    while len(result) < num:
        parts = draw.choice(SUBJECTS), draw.choice(phrases), draw.choice(ENDS), draw.choice(phrases), draw.choice(ENDS)
        result["{} {} {}, e {} {}.".format(*parts)] = None
    return list(result)


def sources(folder, names=("a", "b")):
    """Return sources of sentences, whose files are made."""
    folder.mkdir(exist_ok=True)
    result = []
    for seed, name in enumerate(names):
        for variety, phrases in (("european", EUROPEAN), ("brazilian", BRAZILIAN)):
            (folder / f"{name}.{variety}.txt").write_text("\n".join(sentences(phrases, seed)))
        paths = {v: [str(folder / f"{name}.{v}.txt")] for v in ("european", "brazilian")}
        result.append(VarietySource(name=name, **paths))
    return result


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """Sources, and the folder of a classifier that was trained on them."""
    result = sources(tmp_path_factory.mktemp("sources"))
    work = tmp_path_factory.mktemp("ready")
    run(work, [OURS], sources=result)
    return result, work / "work" / "4_clean" / "variety"


@pytest.fixture(scope="module")
def trained(ready):
    return train(read_sources(ready[0]))


@pytest.fixture
def trained_work(ready, tmp_path):
    """A folder in which the classifier is there already."""
    shutil.copytree(ready[1], tmp_path / "work" / "4_clean" / "variety")
    return tmp_path


def run(tmp_path, *shards, **options):
    corpus = Corpus(work=str(tmp_path / "work"), clean=Clean(variety=Variety(**options)))
    folder = tmp_path / "work" / "4_clean" / "3_variety"
    return run_variety(corpus, extracted(tmp_path / "work", *shards), folder, runner()), folder


OURS, THEIRS = (
    "A Rita está a ler o jornal, e perdeu o autocarro cedo.",
    "A Rita está lendo o jornal, e perdeu o ônibus cedo.",
)


def test_names_and_numbers_tell_nothing():
    assert simplified("Em Lisboa,  às 12h30, ele\tfalou.") == " ¤ ¤, às 0h0, ele falou. "
    assert simplified("AVISO AOS CLIENTES") == " aviso aos clientes "


def test_features_are_counted_as_written_out():
    # " ab ": of 2 characters " a", "ab", "b "; of 3 " ab", "ab "; of 4 " ab "; of 1 word "ab": 7, each once.
    one = features(["ab"])
    assert one.shape == (1, 2 * NUM_FEATURES)
    assert one.data == pytest.approx(np.full(7, 1 / math.sqrt(7)))
    assert features([""]).nnz == 0
    # Twice "ab" is 1 + log(2), and " ab" occurs in both words.
    assert len(set(np.round(features(["ab ab"]).data, 6))) == 2


def test_a_score_is_a_sum_of_weights():
    weights = np.zeros(2 * NUM_FEATURES + 1, np.float32)
    weights[features(["ab"]).indices] = 2
    weights[-1] = 0.5
    # 7 features of 1 / sqrt(7), each weighs 2.
    model = VarietyModel(weights, np.array([1.0, 0.0, 0.0]))
    assert model.variety_of("ab")[1] == pytest.approx(1 / (1 + math.exp(-2 * math.sqrt(7) - 0.5)), abs=1e-4)
    # No feature: the bias alone.
    assert model.variety_of("") == ("pt-PT", pytest.approx(1 / (1 + math.exp(-0.5)), abs=1e-4))


def test_a_calibration_grows_with_the_length():
    (grown, least) = probabilities(np.array([0.5, -1e9]), np.array([100, 100]), (1.0, 2.0, -1.0))
    assert grown == pytest.approx(1 / (1 + math.exp(1 - 0.5 * (1 + 2 * math.log(100)))))
    assert least == pytest.approx(0)


def test_a_line_of_several_sources_is_that_of_the_first(tmp_path):
    # Source b has half of the lines of a, so that it contains held-out lines.
    for name, numbers in (("a", range(160)), ("b", range(80, 240))):
        for side, message in (("pt", "está a ler o jornal"), ("br", "está lendo o jornal")):
            lines = [f"A Rita {message} do dia {number}.\n" for number in numbers]
            (tmp_path / f"{name}_{side}.txt").write_text("".join(lines), encoding="utf-8")
    sources = [
        VarietySource(name=name, european=[f"{tmp_path}/{name}_pt.txt"], brazilian=[f"{tmp_path}/{name}_br.txt"])
        for name in ("a", "b")
    ]
    texts = read_sources(sources)
    for side in (False, True):
        lines = texts[(texts["is_european"] == side) & (texts["length"] == "line")]
        first, second = (set(lines[lines["source"] == name]["text"]) for name in ("a", "b"))
        assert (len(first), len(second), first & second) == (160, 80, set())


def test_a_trained_classifier_separates_the_varieties(trained):
    model, evaluation = trained
    assert model.variety_of(OURS)[0] == "pt-PT"
    assert model.variety_of(THEIRS)[0] == "pt-BR"
    assert list(evaluation) == ["a", "b"]
    # Each variety has other words in every sentence, so that the classifier makes no error.
    assert all(figures["document"]["balanced_accuracy"] == 1 for figures in evaluation.values())
    # All 160 lines, in 20 groups of 8, were scored by a classifier that was trained on the other source.
    assert (evaluation["a"]["document"]["num_european"], evaluation["a"]["line"]["num_brazilian"]) == (20, 160)


def test_the_evaluation_agrees_with_the_model_on_held_out_texts(tmp_path):
    # Labels that mean nothing: both sides are drawn alike, and no classifier can be better than chance by far.
    draw = random.Random(3)
    lines = sorted(set(sentences(EUROPEAN, 1, 700) + sentences(EUROPEAN, 2, 700)))
    draw.shuffle(lines)
    for k, variety in enumerate(("european", "brazilian")):
        (tmp_path / f"{variety}.txt").write_text("\n".join(lines[k::2]))
    paths = {v: [str(tmp_path / f"{v}.txt")] for v in ("european", "brazilian")}
    _, evaluation = train(read_sources([VarietySource(name="noise", **paths)]))
    # Of a single source every tenth group is held out: 2 x 8 or 9 groups of 8 lines. At chance: 0.5, with a standard
    # deviation of 0.04.
    assert evaluation["noise"]["line"]["num_european"] in (64, 72)
    assert evaluation["noise"]["line"]["balanced_accuracy"] == pytest.approx(0.5, abs=0.17)


def test_training_again_gives_the_same(trained, ready):
    again = load(ready[1])
    assert (again.weights == trained[0].weights).all()
    assert (again.calibration == trained[0].calibration).all()
    assert json.loads((ready[1] / "evaluation.json").read_text())["evaluation"] == trained[1]


def test_a_damaged_model_is_an_error(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with raises_code("corpus.damaged"):
        load(tmp_path)


def test_documents_of_the_other_variety_are_dropped(ready, trained_work):
    galician = document(THEIRS, 2, language="gl")
    portuguese = document(OURS, 3, language="pt")
    shard = [document(OURS, 0), document(THEIRS, 1), galician, portuguese]
    totals, folder = run(trained_work, shard, sources=ready[0])
    assert (totals["kept"], totals["dropped"]) == (3, {"variety": 1})
    assert [(row["id"], row["variety"]) for row in kept(folder)[0]] == [("d0", "pt-PT"), ("d2", None), ("d3", "pt-PT")]
    (row,) = dropped(folder)
    assert (row["id"], row["detail"].split()[0]) == ("d1", "pt-BR")
    assert totals["evaluation"] == json.loads((folder.parent / "variety" / "evaluation.json").read_text())["evaluation"]


def test_both_may_be_kept_and_unsure_ones_dropped(ready, trained_work):
    both = {"keep": ["pt-PT", "pt-BR"], "sources": ready[0]}
    totals, folder = run(trained_work, [OURS, THEIRS], **both)
    assert [row["variety"] for row in kept(folder)[0]] == ["pt-PT", "pt-BR"]
    totals, _ = run(trained_work, [OURS, THEIRS, "Hum."], **both, min_score=0.9)
    assert totals["dropped"] == {"variety unsure": 1}
    assert dropped(folder)[0]["id"] == "d2"


def test_the_classifier_is_trained_anew_when_its_texts_change(ready, trained_work):
    model = trained_work / "work" / "4_clean" / "variety"
    before = content(model)
    run(trained_work, [OURS], sources=ready[0], min_score=0.6)
    assert content(model) == before
    result = sources(trained_work / "sources", ["a"])
    run(trained_work, [OURS], sources=result)
    assert content(model) != before
    assert [
        source["name"] for source in json.loads((model / "evaluation.json").read_text())["trained_on"]["sources"]
    ] == ["a"]


def test_the_step_takes_part_when_there_are_sources(ready, trained_work):
    work = trained_work / "work"
    without = Corpus(work=str(work))
    assert "variety" not in [name for name, _, _ in enabled_steps(without)]
    clean = Clean(variety=Variety(sources=ready[0]), skip=["lines", "language", "quality", "duplicates", "personal"])
    run_folder = work / "4_clean"
    extracted(work, [OURS, THEIRS] * 2, [OURS])
    run_folder.joinpath("begun.json").write_text("{}")
    totals = run_clean(Corpus(work=str(work), clean=clean), 1, DISPLAY)
    assert (totals["kept"], totals["steps"]["variety"]["dropped"]) == (3, {"variety": 2})


def test_sources_that_cannot_be_used_are_refused(tmp_path):
    good = sources(tmp_path / "s", ["a"])[0]
    with raises_code("config.conflict", key="clean.variety.sources"):
        run(tmp_path, [OURS], sources=[good, good])
    with raises_code("corpus.too_little_text", "80"):
        run(tmp_path, [OURS], sources=[good.model_copy(update={"european": good.brazilian})])
    with raises_code("data.not_found", "none.txt"):
        run(tmp_path, [OURS], sources=[good.model_copy(update={"european": [str(tmp_path / "none.txt")]})])
    table = str(extracted(tmp_path / "t", [OURS]) / "part-00000.parquet")
    with raises_code("data.column_missing", "part-00000"):
        run(tmp_path, [OURS], sources=[good.model_copy(update={"european": [table], "columns": ["txt"]})])
