"""Texts, labels, names and columns with code of other languages are shown as text in the report and on the terminal."""

import csv
from html.parser import HTMLParser
from pathlib import Path

from harness import Cli
from world import CONFIG

from paratune.errors import EXIT_OK

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'
MARKUP = "[red]not red[/red]"
ESCAPE = "\x1b[31mred\x1b[0m"


class Page(HTMLParser):
    """The elements of a page, and its code that would run."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.handlers: list[str] = []
        self.outside: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.outside += [
            value or ""
            for name, value in attrs
            if name in ("src", "href") and not (value or "").startswith(("#", "data:"))
        ]

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)


def test_hostile_text_does_not_run(world: Path, cli: Cli):
    with (world / "data.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", SCRIPT, IMAGE])
        for number in range(60):
            label = (SCRIPT, MARKUP)[number % 2]
            writer.writerow([f"{SCRIPT}{number}", f"{SCRIPT} {IMAGE} {ESCAPE} film {number}", label])
    config = CONFIG.replace("[negative, positive]", f"['{SCRIPT}', '{MARKUP}']")
    config = config.replace("text: text, label: label", f"text: '{SCRIPT}', label: '{IMAGE}'")
    (world / "c.yaml").write_text(config)
    hostile = world / f"{SCRIPT.replace('/', '')}.csv"
    (world / "data.csv").rename(hostile)
    named = ("--set", f"data.train={hostile.name}")

    trained = cli("train", "c.yaml", *named)
    assert trained.code == EXIT_OK, trained.stderr
    described = cli("data", "c.yaml", *named)
    assert described.code == EXIT_OK, described.stderr
    # Rich would interpret the brackets as a style, and the terminal the escape as a colour.
    assert MARKUP in described.stdout
    evaluated = cli("evaluate", "runs/c", "--data", hostile.name)
    assert evaluated.code == EXIT_OK, evaluated.stderr
    assert MARKUP in evaluated.stdout.replace("\n", "")
    reported = cli("report", "runs/c", "--out", "report")
    assert reported.code == EXIT_OK, reported.stderr

    text = (world / "report" / "index.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert "alert(1)" in text, "the label is not on the page at all"
    assert SCRIPT not in text
    assert "<img" not in text
    assert [code for code in page.scripts if "alert" in code] == []
    assert page.handlers == []
    assert page.outside == []
    assert SCRIPT not in (world / "report" / "index.html").read_text(encoding="utf-8")
    for output in (trained, described, evaluated, reported):
        assert "\x1b[31m" not in output.stdout + output.stderr
