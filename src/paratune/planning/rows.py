"""The predictions of a plan as an Arrow table."""

from collections.abc import Sequence

import pyarrow as pa

from paratune.planning.figure_range import FigureRange
from paratune.planning.predict import Prediction

_SPANS = ("step", "epoch", "run", "job")
_SCHEMA = pa.schema(
    [
        ("strategy", pa.string()),
        ("precision", pa.string()),
        ("num_ranks", pa.int64()),
        ("num_nodes", pa.int64()),
        ("micro_batch_size", pa.int64()),
        ("grad_accum_steps", pa.int64()),
        ("fits", pa.bool_()),
        ("fit", pa.string()),
        ("memory_bytes", pa.int64()),
        ("memory_low_bytes", pa.int64()),
        ("memory_high_bytes", pa.int64()),
        *((f"{span}{end}_s", pa.float64()) for span in _SPANS for end in ("", "_low", "_high")),
        *((f"price{end}", pa.float64()) for end in ("", "_low", "_high")),
        ("is_recommended", pa.bool_()),
    ]
)


def prediction_rows(predictions: Sequence[Prediction], best: Prediction | None) -> pa.Table:
    """Return a row for each prediction of a plan; unknown values are null."""
    return pa.Table.from_pylist([_row(prediction, prediction is best) for prediction in predictions], _SCHEMA)


def _row(prediction: Prediction, is_recommended: bool) -> dict[str, object]:
    memory = prediction.memory
    row: dict[str, object] = prediction.as_dict() | {
        "memory_bytes": memory.total,
        "memory_low_bytes": memory.low,
        "memory_high_bytes": memory.high,
        "is_recommended": is_recommended,
    }
    for span in _SPANS:
        row |= _interval(span, getattr(prediction, span), "_s")
    return row | _interval("price", prediction.price, "")


def _interval(name: str, figure: FigureRange | None, unit: str) -> dict[str, object]:
    if figure is None:
        return {}
    return {f"{name}{unit}": figure.value, f"{name}_low{unit}": figure.low, f"{name}_high{unit}": figure.high}
