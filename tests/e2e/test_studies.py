"""A few steps of the laptop variant of each published study, with the demo model.

The data sets are not part of the project. The tests use them if they are next to the checkout; otherwise they use small
files with the same names, columns and irregularities.
"""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from harness import Cli

from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "configs" / "studies"
REAL = ROOT.parent / "shared" / "data"
MATRICES = sorted(path for path in STUDIES.glob("*/*.yaml") if "\naxes:" in path.read_text(encoding="utf-8"))
SMOKE = sorted({*STUDIES.glob("*/smoke*.yaml")} - {*MATRICES})
SMOKE_MATRICES = [
    path for path in MATRICES if path.stem.startswith("smoke") and "nodes:" not in path.read_text(encoding="utf-8")
]
"""Studies on several nodes run on the toy Slurm."""
FIGURES = {
    "evora/smoke_scaling": ("scaling", "phases", "overview"),
    "evora/smoke_figure1": ("overview",),
    "ielts/smoke_matrix": ("over_steps", "scaling"),
    "oakridge/smoke_matrix": ("phases",),
    "squad/smoke_matrix": ("effects",),
}
"""Parts of the names of a study's main figures."""
FEW = (
    *("--set", "train.max_steps=2", "--set", "data.max_rows={train: 32, validation: 16}"),
    *("--set", "evaluate={every: never, steps: null, best: null}"),
)
SHORT = {
    "squad": ("--set", "data.max_length=64", "--set", "task.stride=16"),
    "evora/smoke_then": (),  # its tasks set the length, so that --set cannot
    "others": ("--set", "data.max_length=32"),
}
"""A matrix trains on texts truncated to a few tokens."""
ONLY = {
    "compress/smoke_matrix": "seed=1",
    "evora/smoke_figure1": "way=fp32,batch-32",
    "evora/smoke_precision": "precision=bf16",
    "evora/smoke_scaling": "*_total-16",
    "evora/smoke_table6": "*_mrpc_learning_rate-0.0001_linear",
    "evora/smoke_then": "seed=41",
    "ielts/smoke_matrix": "seed=41",
    "ielts/smoke_prompts_out": "fold-[01]",
    "imdb/smoke_matrix": "seed=1",
    "oakridge/smoke_matrix": "nproc-2_num_workers-?",
    "oakridge/smoke_nccl": "NCCL_NSOCKS_PERTHREAD=1",
    "squad/smoke_matrix": "seed=1",
}
"""The runs of a matrix that are trained; the others differ less. A matrix with few runs trains all."""
WORDS = (
    "the",
    "a",
    "film",
    "essay",
    "patient",
    "was",
    "is",
    "good",
    "bad",
    "long",
    "with",
    "of",
    "in",
    "people",
    "today",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `data` of the studies."""
    folder = tmp_path_factory.mktemp("data")
    for name, write in STAND_INS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (REAL / name).is_file():
            (folder / name).symlink_to(REAL / name)
        else:
            write(folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("path", SMOKE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_study_runs_on_a_laptop(tmp_path: Path, data: Path, path: Path):
    (tmp_path / "data").symlink_to(data)
    cli = Cli(tmp_path, {"PARATUNE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"})
    result = cli("train", path, *FEW, "--json")
    assert result.code == 0, result.stderr
    summary = result.json
    assert summary["num_steps"] == 2
    assert summary["scores"]["validation"]["loss"] > 0
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "model" / "model.safetensors").is_file()
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    num_rows = record["data"]["train"]["num_rows"]
    assert 32 < num_rows <= 64 if path.stem == "smoke_raters" else num_rows == 32  # there, one of each rater
    assert cli("report", run, "--out", tmp_path / "report").code == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)  # up to nine runs; each starts processes
@pytest.mark.parametrize("path", SMOKE_MATRICES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_matrix_of_a_study_runs_on_a_laptop_and_creates_its_tables_and_figures(
    tmp_path: Path, data: Path, path: Path
):
    (tmp_path / "data").symlink_to(data)
    cli = Cli(tmp_path, {"PARATUNE_CACHE": str(tmp_path / "cache")})
    name = f"{path.parent.name}/{path.stem}"
    short = SHORT.get(name, SHORT.get(path.parent.name, SHORT["others"]))
    options = (*short, *(("--only", ONLY[name]) if name in ONLY else ()))
    result = cli("sweep", path, *FEW[:4], *options, "--json", timeout_s=3500)
    assert result.code == 0, result.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    states = [cell["state"] for cell in record["cells"]]
    assert set(states) <= {"finished", "skipped", *(["pending"] if name in ONLY else [])}
    assert states.count("finished") > 1
    assert all(cell["reason"] for cell in record["cells"] if cell["state"] == "skipped")
    assert cli("report", folder, "--out", "paper", "--figures").code == 0
    figures = " ".join(entry.name for entry in (tmp_path / "paper" / "figures").iterdir())
    for part in FIGURES.get(name, ()):
        assert part in figures


@pytest.mark.parametrize("path", MATRICES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_matrix_of_a_study_is_valid_except_for_missing_files(path: Path):
    cells = cells_of(read_matrix(path))
    messages = {problem.message for cell in cells for problem in cell.problems}
    assert not [
        message for message in messages if " does not exist; " not in message and " does not exist (" not in message
    ]


def test_every_study_has_a_variant_for_a_laptop():
    folders = [folder for folder in STUDIES.iterdir() if folder.is_dir()]
    assert sorted(folder.name for folder in folders) == ["compress", "evora", "ielts", "imdb", "oakridge", "squad"]
    assert {path.parent for path in SMOKE_MATRICES} == set(folders)
    assert {path.parent for path in SMOKE} == {folder for folder in folders if folder.name != "compress"}


def _sentences(num: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(20, 60))) for _ in range(num)]


def _reviews(path: Path) -> None:
    table = {"text": _sentences(200), "label": [number % 2 for number in range(200)]}
    pq.write_table(pa.table(table), path)


def _essay_columns() -> dict[str, list[Any]]:
    """As in the published file: half bands, some missing; examiner's remarks almost always empty."""
    num = 120
    return {
        "Task_Type": [1 + number % 2 for number in range(num)],
        "Question": 3 * _sentences(num // 3, 1),
        "Essay": [f"{number} {text}" for number, text in enumerate(_sentences(num, 2))],
        "Examiner_Commen": ["well done" if number % 40 == 0 else "" for number in range(num)],
        "Overall": ["" if number % 30 == 7 else str(5 + number % 8 / 2) for number in range(num)],
    }


def _essays(path: Path) -> None:
    with gzip.open(path, "wb") as file:
        pyarrow.csv.write_csv(pa.table(_essay_columns()), file)


def _essays_with_criteria(path: Path) -> None:
    """The scores of the second criterion are half a band above those of the first."""
    columns = _essay_columns()
    first = [float(text) if text else None for text in columns["Overall"]]
    second = [None if score is None else score + 0.5 for score in first]
    pq.write_table(pa.table({**columns, "Overall": first, "Overall_mean_of_duplicates": second}), path)


def _essays_of_raters(path: Path) -> None:
    """The second rater did not rate every tenth text."""
    columns = _essay_columns()
    scores = [text or "5.0" for text in columns.pop("Overall")]
    second = ["" if number % 10 == 3 else score for number, score in enumerate(scores)]
    pyarrow.csv.write_csv(pa.table({**columns, "rater_1": scores, "rater_2": second}), path)


def _notes(path: Path) -> None:
    table = {"transcription": [*_sentences(100), None], "text": [*_sentences(100, 1), "fim"]}
    pq.write_table(pa.table(table), path)


def _pairs(path: Path) -> None:
    labels = [number % 2 for number in range(60)]
    pq.write_table(pa.table({"sentence1": _sentences(60, 1), "sentence2": _sentences(60, 2), "label": labels}), path)


def _scored_pairs(path: Path) -> None:
    scores = [number % 11 / 2 for number in range(60)]
    pq.write_table(pa.table({"sentence1": _sentences(60, 1), "sentence2": _sentences(60, 2), "score": scores}), path)


def _questions(path: Path) -> None:
    """As in SQuAD v2 on the hub: every third question has no answer."""
    rows = []
    for number, context in enumerate(_sentences(60)):
        answer = context.split()[3]
        start = context.index(f" {answer} ") + 1
        has_answer = number % 3 > 0
        rows.append(
            {
                "id": f"q{number}",
                "question": "what was it?",
                "context": context,
                "answers": {"text": [answer] * has_answer, "answer_start": [start] * has_answer},
            }
        )
    answers = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
    schema = pa.schema([("id", pa.string()), ("question", pa.string()), ("context", pa.string()), ("answers", answers)])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


STAND_INS: dict[str, Callable[[Path], None]] = {
    "imdb/train.parquet": _reviews,
    "imdb/test.parquet": _reviews,
    "mtsamples/train.parquet": _notes,
    "pt_raw_text/train.parquet": _notes,
    "squad_v2/train.parquet": _questions,
    "squad_v2/validation.parquet": _questions,
    "mrpc_ptbr_plue/train.parquet": _pairs,
    "mrpc_ptbr_plue/validation.parquet": _pairs,
    "stsb_pt_deepl/train.parquet": _scored_pairs,
    "stsb_pt_deepl/validation.parquet": _scored_pairs,
    **dict.fromkeys(["rte_ptbr_plue/train.parquet", "rte_ptbr_plue/validation.parquet"], _pairs),
    "wnli_ptbr_plue/train.parquet": _pairs,
    "wnli_ptbr_plue/validation.parquet": _pairs,
    "ielts/ielts_writing_dataset.csv.gz": _essays,
    "ielts/train.parquet": _essays_with_criteria,
    "ielts/raters.csv": _essays_of_raters,
}
