"""paratune: plan, run, prove and compare fine-tuning runs of transformer encoders."""

__version__ = "0.1.0"
