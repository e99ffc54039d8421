"""Make the pictures of docs/howto/pictures from real runs. Needs chromium (`make chromium`) and tmux; about 10 minutes.

python docs/site/pictures.py

It trains the quick start, and takes the terminal and the page of commands as a person sees them.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "howto" / "pictures"
CONFIG = "configs/quickstart/single.yaml"
TOUR = f"paratune train {CONFIG} --epochs 2 --set run.name=tour --set evaluate.every=steps --set evaluate.steps=15"
TERMINAL = {
    "plan": f"paratune plan {CONFIG} --device a100-40gb --devices 1,2,4",
    "explain": "paratune explain runs/tour --input demo:sentences --rows 0-2 --method occlusion 2> /dev/null",
    "watch": "paratune watch runs/tour",
}
"""Command of each picture of a terminal. The one of `watch` is taken while the run trains."""
WIDTH, HEIGHT = 100, 32
"""Of the terminal, in columns and lines."""
_LIMIT_S = 600.0


def terminal(command: str, done: str, folder: Path) -> str:
    """Return the screen of a command in a terminal, with its colours, when it shows `done` or has ended."""
    name = f"pictures-{os.getpid()}"
    shell = f"clear; {command}; tmux wait-for -S {name}; sleep {_LIMIT_S}"
    size = ("-x", str(WIDTH), "-y", str(HEIGHT))
    subprocess.run(["tmux", "new-session", "-d", "-s", name, "-c", str(folder), *size, shell], check=True)
    try:
        if not done:
            subprocess.run(["tmux", "wait-for", name], check=True, timeout=_LIMIT_S)
        limit = time.monotonic() + _LIMIT_S
        while done not in (shown := _pane(name)) and time.monotonic() < limit:
            time.sleep(1)
        return shown
    finally:
        subprocess.run(["tmux", "kill-session", "-t", name], check=True)


def _pane(name: str) -> str:
    shown = subprocess.run(["tmux", "capture-pane", "-e", "-p", "-t", name], check=True, capture_output=True, text=True)
    return shown.stdout.rstrip()


def draw(shown: str, command: str, path: Path) -> None:
    """Write a screen with its command as SVG."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text(f"$ {command.removesuffix(' 2> /dev/null')}", "bold"))
        console.print(Text.from_ansi(shown))
    svg = console.export_svg(title="paratune", unique_id=path.stem)
    # Without the font of another site, and whole: the underscore of other fonts is outside the box of its line.
    svg = re.sub(r"@font-face \{.*?\}|" + rf' clip-path="url\(#{path.stem}-[\w-]+\)"', "", svg, flags=re.DOTALL)
    path.write_text(svg, encoding="utf-8")


def page(folder: Path) -> None:
    """Write the page of `paratune serve` with a prediction and its explanation."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import browser

    command = ["paratune", "serve", "runs/tour", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = next(line for line in server.stderr if " at http" in line).split(" at ")[1].strip()
            with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as opened:
                opened.look(width=800, height=620)
                opened.call("Page.navigate", url=f"{address}/")
                for wanted, action in (
                    ("document.getElementById('column-0')", "byId('form').requestSubmit()"),
                    ("document.querySelector('.why')", "document.querySelector('.why').click()"),
                    ("document.querySelector('.marked')", "document.activeElement.blur()"),
                ):
                    while not opened.js(f"Boolean({wanted})"):
                        time.sleep(0.2)
                    opened.js(action)
                opened.screenshot(PICTURES / "serve.png", whole=False)
        finally:
            server.terminate()


def main() -> None:
    """Train the tour, and write each picture."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "configs").symlink_to(ROOT / "configs")
        draw(terminal(TERMINAL["plan"], "", folder), TERMINAL["plan"], PICTURES / "plan.svg")
        with (
            (folder / "train.txt").open("w") as log,
            subprocess.Popen(shlex.split(TOUR), cwd=folder, stderr=log) as run,
        ):
            while not (folder / "runs" / "tour" / "run.json").exists() and run.poll() is None:
                time.sleep(1)
            draw(terminal(TERMINAL["watch"], "at step 90", folder), TERMINAL["watch"], PICTURES / "watch.svg")
        draw(terminal(TERMINAL["explain"], "", folder), TERMINAL["explain"], PICTURES / "explain.svg")
        page(folder)


if __name__ == "__main__":
    main()
