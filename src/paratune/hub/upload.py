"""Uploads a folder to a model repository of the Hugging Face hub, because a user asked for it."""

import re
from pathlib import Path
from typing import Final

from paratune import hub
from paratune.errors import ConfigError, option_error

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def check_repository(name: str) -> None:
    """Raise a ConfigError where the name of a repository is not OWNER/NAME."""
    if _REPOSITORY.fullmatch(name) is None or ".." in name or "--" in name:
        raise option_error(
            "--to", name, "give OWNER/NAME, such as my-team/reviews-minilm", code="cli.invalid_value", name=name
        )


def upload_folder(
    folder: Path, repository: str, files: list[str], *, is_private: bool, revision: str | None, message: str
) -> str:
    """Upload files of a folder as one commit, and return its address; create repository and branch if needed.

    The token is that of `hf auth login` or HF_TOKEN. Other files of the repository (OWNER/NAME) stay. `is_private` is
    for a new repository; one that exists keeps its visibility. `revision` is a branch, None for main; `message` is the
    title.

    Raises:
        ConfigError: The hub cannot be reached, there is no token, or the hub refuses.
    """
    check_repository(repository)
    if (reason := hub.unreachable_reason()) is not None:
        raise ConfigError(
            f"nothing was uploaded to {repository}: {reason}; push where there is a network",
            code="hub.unreachable",
            repository=repository,
        )
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise ConfigError(
            f"nothing was uploaded to {repository}: there is no token of the hub; log in with: hf auth login, or set "
            "HF_TOKEN to a token that may write",
            code="hub.no_token",
            repository=repository,
        )
    api = HfApi()
    try:
        api.create_repo(repository, private=is_private or None, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=files, revision=revision, commit_message=message
        )
    except Exception as error:  # depends on the HTTP client of the installed version
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ConfigError(
            f"{repository} was not updated: {first}; check the name and that the token may write there",
            code="hub.refused",
            repository=repository,
        ) from error
    return str(commit.commit_url)
