"""Measures the Trainer of transformers with the clocks of paratune, and writes the record of its run."""

from paratune.hf.callback import PhaseCallback

__all__ = ["PhaseCallback"]
