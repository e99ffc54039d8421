"""Measures the Trainer of transformers with the clocks of paratune, and writes its run in paratune's record."""

from paratune.hf.callback import PhaseCallback

__all__ = ["PhaseCallback"]
