"""The table of results: a line for each run, a column for each measure, with the columns of the configuration."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paratune.records.finished import RunRecord
from paratune.reports.measures import MEASURES, constant_measures, score_measures

if TYPE_CHECKING:
    import pandas


def results_frame(
    runs: Mapping[str, RunRecord | None], columns: Sequence[Mapping[str, Any]] | None = None
) -> "pandas.DataFrame":
    """Return a line for each run with all measures, in the units of their names; unknown values are missing.

    Args:
        runs: Records by the name of the run; None for a run without one.
        columns: Columns of each run that come first, such as the values of axes; they replace measures of their name.
    """
    import pandas as pd

    found = [run for run in runs.values() if run is not None]
    measures = [*MEASURES.values(), *score_measures(found), *constant_measures(found)]
    given = columns if columns is not None else [{} for _ in runs]
    rows = [
        {**own, **{measure.key: run and measure.of(run) for measure in measures if measure.key not in own}}
        for own, run in zip(given, runs.values(), strict=True)
    ]
    # Whole numbers stay whole beside missing values.
    return pd.DataFrame(rows, index=pd.Index(runs, name="run")).convert_dtypes()
