"""The settings of a Hugging Face Trainer as a configuration."""

from paratune.config.trainer.conversion import Conversion, Left
from paratune.config.trainer.convert import check_text, convert
from paratune.config.trainer.settings import read_settings

__all__ = ["Conversion", "Left", "check_text", "convert", "read_settings"]
