"""`paratune completion`: the script with which a shell completes commands, options and their values."""

from typing import Literal

from paratune.errors import EXIT_OK


def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the script with which SHELL completes commands, options and their values.

    For bash, add this line to ~/.bashrc: source <(paratune completion bash)
    """
    from paratune.cli import app

    print(app.generate_completion(shell=shell), end="")  # noqa: T201
    return EXIT_OK
