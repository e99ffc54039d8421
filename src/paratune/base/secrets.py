"""Removes passwords, keys and tokens from texts and command lines, for records and reports."""

import re
from collections.abc import Sequence

HIDDEN = "***"
"""Replaces a secret."""
_KIND = r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS)"
_NAME = re.compile(rf"(^|[_.-]){_KIND}$", re.IGNORECASE)
_GIVEN = re.compile(
    rf"""((?<![\w.-])(?:[\w.-]*[_.-])?{_KIND}["']?(?::[ \t]*|[ \t]*=[ \t]*))("[^"\n]*"|'[^'\n]*'|[^\s,;}}\]"']+)""",
    re.IGNORECASE,
)
# The patterns begin where a word begins: elsewhere, each position of a long word would be tried.
_OPTION = re.compile(rf"""((?<![\w.-])--(?:[\w.-]*[_.-])?{_KIND}[ \t]+)("[^"\n]*"|'[^'\n]*'|[^\s"']+)""", re.IGNORECASE)
_ADDRESS = re.compile(r"((?<!\w)\w+://[^\s/:@]*:)[^\s/@]+(?=@)")
_TOKEN_ADDRESS = re.compile(r"((?<!\w)https?://)[^\s/:@]+(?=@)")


def is_secret_name(name: str) -> bool:
    """Return whether a variable or an option with this name probably contains a secret, such as WANDB_API_KEY."""
    return _NAME.search(name) is not None


def hide_secrets(text: str) -> str:
    """Return a text with *** for the values of names such as API_KEY and for passwords in addresses.

    `NAME=value`, `name: value`, `--name value`, `scheme://user:password@` and `https://token@` are recognised.
    """
    for pattern in (_GIVEN, _OPTION, _ADDRESS, _TOKEN_ADDRESS):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def hide_in_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the values of secrets."""
    shown: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        name, equals, _ = word.partition("=")
        if equals and is_secret_name(name):  # the value ends with the word, whatever characters it has
            shown.append(f"{name}={HIDDEN}")
        elif before.startswith("--") and is_secret_name(before.removeprefix("--")) and not word.startswith("--"):
            shown.append(HIDDEN)
        else:
            shown.append(hide_secrets(word))
    return shown
