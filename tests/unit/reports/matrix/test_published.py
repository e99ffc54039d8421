"""Published figures beside measured and planned ones, and claims with their intervals."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import NPROC, SEED, Made, make_matrix
from raised import raises_code

from paratune.records.sweep import ClaimKind, ComparedPair, Published, PublishedClaim, PublishedFigure
from paratune.reports.matrix import make_sweep
from paratune.reports.published import planned_figures
from paratune.reports.tables.table import Table

ONE, TWO = {"nproc": "nproc-1"}, {"nproc": "nproc-2"}


def _figure(measure: str, value: float, unit: str, values: Mapping[str, str] = ONE) -> PublishedFigure:
    return PublishedFigure(values, measure, value, unit, "table 1")


def _claim(kind: ClaimKind, measure: str, by: float) -> PublishedClaim:
    return PublishedClaim(f"{kind} {measure}", kind, measure, by, (ComparedPair(of=TWO, than=ONE),), "")


def _matrix(folder: Path, published: Published, seconds: Mapping[tuple[int, int], float], scores=(0.9, 0.9)) -> Path:
    """Write a matrix of 1, 2 and 4 processes with two seeds; `seconds` is the time by processes and seed."""

    def tell(values: Mapping[str, str]) -> Made:
        size, seed = (int(values[key].rpartition("-")[2]) for key in ("nproc", "seed"))
        summary = {
            "time.train_s": seconds.get((size, seed), 100.0),
            "memory.largest_bytes": 3_000_000_000 // size,
            "scores.validation.accuracy": scores[0] if size == 1 else scores[1] + 0.0001 * seed,
        }
        return Made(world_size=size, summary=summary)

    return make_matrix(folder / "m", (NPROC, SEED), tell, published=published)


def _tables(folder: Path, **more: Path) -> dict[str, Table]:
    report = make_sweep(folder, None, **more)
    return {table.key: table for section in report.sections for table in section.tables}


def test_figures_have_the_unit_of_the_publication(tmp_path: Path):
    published = Published(
        "Somebody",
        (
            _figure("time", 2.0, "min"),
            _figure("memory", 6.0, "GB"),
            _figure("accuracy", 80.0, "%"),
            _figure("state_memory", 1.0, "GB"),
        ),
    )
    # 90 s and 150 s are 2 min on average; the memory is 3 GB; 0.9 is 90%.
    folder = _matrix(tmp_path, published, {(1, 1): 90.0, (1, 2): 150.0})

    table = _tables(folder)["published"]

    at = [column.key for column in table.columns].index("measured")
    assert [line[at].value for line in table.lines] == pytest.approx([2.0, 3.0, 90.0, None])
    assert [line[at + 2].value for line in table.lines] == pytest.approx([1.0, 0.5, 1.125, None])
    assert table.lines[0][at].runs == ("nproc-1_seed-1", "nproc-1_seed-2")
    assert table.lines[0][-1].text == "table 1"
    assert "Published: Somebody." in table.notes


def test_values_of_several_configurations_have_no_figure(tmp_path: Path):
    table = _tables(_matrix(tmp_path, Published("Somebody", (_figure("time", 2.0, "min", {}),)), {}))["published"]

    assert [cell.text for cell in table.lines[0][3:5]] == ["n/a", "n/a"]
    assert any("3 configurations" in note for note in table.notes)


def test_planned_figures_are_a_column(tmp_path: Path):
    folder = _matrix(
        tmp_path, Published("Somebody", (_figure("memory", 2.0, "GB"), _figure("state_memory", 1.0, "GB"))), {}
    )
    terms = {"weights": 2e8, "gradients": 2e8, "optimizer": 6e8, "context": 5e8, "fragmentation": 1e8}
    option = {"memory": {"total_bytes": 3.6e9, "terms": terms}, "run_s": [60.0, 50.0, 70.0]}
    plan = {"generator": "paratune plan of a matrix", "schema_version": 1, "matrix": "m"}
    cells = {"nproc-1_seed-1": option, "nproc-1_seed-2": option}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan, "cells": cells}))

    table = _tables(folder, plan=path)["published"]

    at = [column.key for column in table.columns].index("planned")
    # 3.6 GB less the context and fragmentation, which PyTorch does not count; the states are 0.2 + 0.2 + 0.6 GB.
    assert [line[at].value for line in table.lines] == pytest.approx([3.0, 1.0])
    for wrong in ({**plan, "matrix": "other", "cells": cells}, {**plan, "cells": 3}, []):
        path.write_text(json.dumps(wrong))
        with raises_code("report.no_plan", "plan.json"):
            _tables(folder, plan=path)


@pytest.mark.parametrize(
    ("terms", "known"),
    [
        ({"weights": 2.0, "gradients": 2.0, "optimizer": None, "context": 5.0}, {"memory": 5.0}),
        ({"weights": 2.0, "gradients": 2.0, "optimizer": 6.0, "context": None}, {"state_memory": 10.0}),
        (None, {"memory": 10.0}),
    ],
)
def test_an_unknown_term_of_a_plan_is_not_0(terms: dict[str, float | None] | None, known: dict[str, float]):
    assert planned_figures(None, 10.0, terms) == known


def test_a_plan_without_published_figures_raises_an_error(tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (NPROC,), lambda values: Made())

    with raises_code("cli.no_effect", "plan.json", option="--plan"):
        make_sweep(folder, None, plan=tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("kind", "measure", "by", "seconds", "result"),
    [
        # Pairs of seeds: 100 s become 50 s and 51 s; the change is about -49.5%, with an interval of 12 points.
        ("less", "time", 0.2, (50.0, 51.0), "holds"),
        ("less", "time", 0.0, (50.0, 51.0), "holds"),
        ("less", "time", 0.8, (50.0, 51.0), "does not hold"),
        ("less", "time", 0.5, (50.0, 51.0), "cannot tell"),
        ("not_less", "time", 0.05, (50.0, 51.0), "does not hold"),
        ("not_less", "time", 0.05, (130.0, 131.0), "holds"),
        ("not_less", "time", 0.05, (60.0, 140.0), "cannot tell"),
        # The memory is half in both seeds, without any spread.
        ("less", "memory", 0.4, (), "holds"),
        ("less", "memory", 0.6, (), "does not hold"),
    ],
)
def test_claims_about_ratios(
    tmp_path: Path, kind: ClaimKind, measure: str, by: float, seconds: tuple[float, ...], result: str
):
    times = {(2, seed): value for seed, value in enumerate(seconds, start=1)}

    table = _tables(_matrix(tmp_path, Published("Somebody", claims=(_claim(kind, measure, by),)), times))["claims"]

    assert table.lines[0][1].text == result
    assert table.lines[0][1].better is {"holds": True, "does not hold": False, "cannot tell": None}[result]
    assert len(table.lines[0][2].runs) == 4


def test_equal_memory_is_not_less(tmp_path: Path):
    published = Published("Somebody", claims=(_claim("less", "memory", 0.0),))
    folder = make_matrix(
        tmp_path / "m",
        (NPROC, SEED),
        lambda values: Made(world_size=int(values["nproc"][-1]), summary={"memory.largest_bytes": 3_000_000_000}),
        published=published,
    )

    assert _tables(folder)["claims"].lines[0][1].text == "does not hold"


@pytest.mark.parametrize(("measure", "result"), [("memory", "cannot tell"), ("time", "holds")])
def test_kinds_of_memory_do_not_compare(tmp_path: Path, measure: str, result: str):
    def tell(values: Mapping[str, str]) -> Made:
        size = int(values["nproc"].rpartition("-")[2])
        kind = "rss" if size == 1 else "cuda_allocated"
        largest = 3_000_000_000 // size
        return Made(
            world_size=size, summary={"time.train_s": 60.0 / size, "memory.kind": kind, "memory.largest_bytes": largest}
        )

    published = Published("Somebody", claims=(_claim("less", measure, 0.4),))

    table = _tables(make_matrix(tmp_path / "m", (NPROC, SEED), tell, published=published))["claims"]

    assert table.lines[0][1].text == result
    assert ("cuda_allocated, rss" in table.lines[0][2].text) == (measure == "memory")


@pytest.mark.parametrize(
    ("kind", "by", "score", "result"),
    [
        ("worse", 0.005, 0.85, "holds"),
        ("worse", 0.005, 0.95, "does not hold"),
        ("equal", 0.005, 0.9, "holds"),
        ("equal", 0.005, 0.8, "does not hold"),
    ],
)
def test_claims_about_scores(tmp_path: Path, kind: ClaimKind, by: float, score: float, result: str):
    # Seeds differ by 0.0001, so the interval of two is less than 0.001 wide on either side of the change.
    claims = (_claim(kind, "accuracy", by),)

    table = _tables(_matrix(tmp_path, Published("Somebody", claims=claims), {}, scores=(0.9, score)))["claims"]

    assert table.lines[0][1].text == result


@pytest.mark.parametrize(
    ("claim", "result"),
    [
        # 100 s become 60 s, and an accuracy of 0.9 becomes 0.8.
        (_claim("less", "time", 0.3), "as published, one run"),
        (_claim("less", "time", 0.5), "not as published, one run"),
        (_claim("not_less", "time", 0.05), "not as published, one run"),
        (_claim("worse", "accuracy", 0.05), "as published, one run"),
        (_claim("equal", "accuracy", 0.05), "not as published, one run"),
        # An unknown time is neither.
        (_claim("less", "total_time", 0.1), "cannot tell"),
    ],
)
def test_one_run_is_as_published_or_not(tmp_path: Path, claim: PublishedClaim, result: str):
    def tell(values: Mapping[str, str]) -> Made:
        size = int(values["nproc"].rpartition("-")[2])
        time = {"time.train_s": 100.0 if size == 1 else 60.0, "time.total_s": None if size == 2 else 110.0}
        return Made(world_size=size, summary={**time, "scores.test.accuracy": 0.9 if size == 1 else 0.8})

    table = _tables(make_matrix(tmp_path / "m", (NPROC,), tell, published=Published("Somebody", claims=(claim,))))[
        "claims"
    ]

    outcome, change = table.lines[0][1:3]
    assert (outcome.text, outcome.better) == (result, None)
    assert claim.measure != "accuracy" or "Test accuracy" in change.text


def test_one_pair_that_is_not_as_published_decides(tmp_path: Path):
    # 100, 60 and 101 s: the first pair is faster, the second is not.
    pairs = tuple(ComparedPair(of={"nproc": f"nproc-{size}"}, than=ONE) for size in (2, 4))
    claim = replace(_claim("less", "time", 0.1), pairs=pairs)
    times = {"nproc-1": 100.0, "nproc-2": 60.0, "nproc-4": 101.0}
    folder = make_matrix(
        tmp_path / "m",
        (NPROC,),
        lambda values: Made(world_size=int(values["nproc"][-1]), summary={"time.train_s": times[values["nproc"]]}),
        published=Published("Somebody", claims=(claim,)),
    )

    assert _tables(folder)["claims"].lines[0][1].text == "not as published, one run"
