"""paratune: plan, run, prove and compare fine-tuning runs of transformer encoders.

`import paratune` imports nothing else; a function is imported, with what it needs, when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paratune.api.certify import certify
    from paratune.api.evaluate import EvaluationResult, evaluate
    from paratune.api.plan import plan
    from paratune.api.predict import predict
    from paratune.api.report import compare, report
    from paratune.api.run import Run, Sweep
    from paratune.api.sweep import sweep
    from paratune.api.train import train

__version__ = "0.2.0"

__all__ = [
    "EvaluationResult",
    "Run",
    "Sweep",
    "certify",
    "compare",
    "evaluate",
    "plan",
    "predict",
    "report",
    "sweep",
    "train",
]

_MODULES = {
    "EvaluationResult": "evaluate",
    "Run": "run",
    "Sweep": "run",
    "certify": "certify",
    "compare": "report",
    "evaluate": "evaluate",
    "plan": "plan",
    "predict": "predict",
    "report": "report",
    "sweep": "sweep",
    "train": "train",
}
"""Name -> its module in `paratune.api`."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'paratune' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"paratune.api.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
