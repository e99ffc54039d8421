"""Quotes values for shell scripts, and refuses values that cannot be quoted."""

import re
import shlex
import shutil
import subprocess

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_VARIABLE = re.compile(r"\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)")
_WORD = re.compile(r"[A-Za-z0-9_.,:/=+@%-]+")


def quoted(text: str) -> str:
    """Return text as one shell word in which only `$NAME` and `${NAME}` are expanded.

    >>> quoted("/scratch/$USER/my data")
    '"/scratch/$USER/my data"'
    """
    if _WORD.fullmatch(text):
        return text
    if "$" not in text:
        return shlex.quote(text)
    # Variables stay as they are; other characters that act inside of double quotes are escaped.
    escaped = re.sub(rf'({_VARIABLE.pattern})|([\\"`$])', lambda match: match[1] or f"\\{match[3]}", text)
    return f'"{escaped}"'


def directive(name: str, value: str | None = None) -> str:
    """Return an #SBATCH line; sbatch handles quotes like a shell, but expands no variables."""
    if value is None:
        return f"#SBATCH --{name}"
    word = value if _WORD.fullmatch(value) else f'"{value}"'
    return f"#SBATCH --{name}={word}"


def word_problem(text: str, *, more: str = "") -> str | None:
    """Return why a text is not a plain word; None if it is.

    Args:
        more: Additional allowed characters, besides letters, digits and those of paths.
    """
    if re.fullmatch(rf"(?:{_WORD.pattern}|[{re.escape(more)}])+" if more else _WORD.pattern, text):
        return None
    also = f" {more.strip()}" if more else ""
    return f"is {_shown(text)}; allowed: letters, digits and _ . , : / = + @ % -{also}"


def path_problem(text: str | None) -> str | None:
    """Return why a text cannot be quoted; None if it can. `$NAME` and `${NAME}` are variables."""
    if text is None:
        return None
    if _CONTROL.search(text):
        return f"is {_shown(text)}; line breaks and other control characters are not allowed"
    if "$" in _VARIABLE.sub("", text):
        return f"is {_shown(text)}; after $, only the name of a variable is allowed"
    return None


def shell_problem(line: str) -> str | None:
    """Return why a text is not a complete shell command; None if it is, or bash was not found."""
    if _CONTROL.search(line.replace("\t", " ")):
        return f"is {_shown(line)}; write each line as a separate item"
    bash = shutil.which("bash")
    if bash is None:
        return None
    checked = subprocess.run([bash, "-n", "-c", line], capture_output=True, text=True, timeout=10, check=False)
    if checked.returncode == 0:
        return None
    messages = checked.stderr.strip().splitlines()
    return f"is {_shown(line)}, which is a syntax error in bash: {messages[0].rpartition(': ')[2] if messages else '?'}"


def sbatch_path_problem(text: str) -> str | None:
    """Return why a path is not allowed in an #SBATCH line; None if it is."""
    if _CONTROL.search(text) or re.search(r"[\"'\\]", text):
        return f"{_shown(text)} contains a quote, a backslash or a line break, which sbatch cannot read in a path"
    return None


def _shown(text: str) -> str:
    short = text if len(text) <= 60 else f"{text[:56]} ..."
    return repr(short)
