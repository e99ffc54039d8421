"""Options of a configuration that a user writes as flags of the command line, such as `--epochs 3`."""

from collections.abc import Sequence

from paratune.config.options import find_key
from paratune.config.sections import Config
from paratune.config.validate import ELSEWHERE

_PRECISIONS = ("fp16", "bf16", "tf32", "fp32")


def set_for_flag(flag: str, words: Sequence[str] = ()) -> str | None:
    """Return the `--set` that has the effect of a flag, such as "--set train.epochs=3"; None for other flags.

    Names of our options and of arguments of the Hugging Face Trainer are known.

    Args:
        words: All words of the command line; one has the value: "--epochs=3", or the word after "--epochs".
    """
    key = flag.removeprefix("--").replace("-", "_")
    if key in _PRECISIONS:
        return f"--set precision={key}"
    dotted = "model.name" if key == "model" else ELSEWHERE.get(key) or find_key(key, Config)
    dotted = key if "." in key else dotted
    if dotted is None:
        return None
    attached = next((word for word in words if word.startswith(f"{flag}=")), None)
    following = next(iter(words[words.index(flag) + 1 :]), "--") if flag in words else "--"
    value = "VALUE" if following.startswith("--") else following
    return f"--set {dotted}={value if attached is None else attached.partition('=')[2]}"
