"""The batch script of the Slurm job in which this process runs, as Slurm keeps it."""

import os
from collections.abc import Mapping

from paratune.base.secrets import hide_secrets
from paratune.hardware.system_files import command_output

MAX_CHARACTERS = 65_536
"""Length of a recorded script; the rest of a longer one is left out."""


def batch_script(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the text of the script; None outside of a job, without scontrol, and for a job without a script."""
    number = environ.get("SLURM_JOB_ID")
    text = None if number is None else command_output("scontrol", "write", "batch_script", number, "-")
    return text if text and text.startswith("#!") else None


def recorded_batch_script(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the text for a record: secrets replaced, and at most `MAX_CHARACTERS` of it."""
    text = batch_script(environ)
    if text is None:
        return None
    text = hide_secrets(text)
    left_out = len(text) - MAX_CHARACTERS
    return text if left_out <= 0 else f"{text[:MAX_CHARACTERS]}\n# paratune left out {left_out} more characters\n"
