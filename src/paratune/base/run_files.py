"""Names in a run folder that packages below `records` need, too; `records` has all of them."""

from typing import Final

RUN_FILE: Final = "run.json"
MODEL_FOLDER: Final = "model"
