"""The site of the documentation: collected pages, their links, generated pages. Building it needs the extra `docs`."""

import re
import tomllib
from pathlib import Path
from typing import Any

import build
import pytest
import reference
from check import problems_of

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"
PART = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)
"""A part of a page that a program writes."""
OUTPUT = re.compile(r"^```text\n.*?^```$", re.DOTALL | re.MULTILINE)
"""What a command prints."""
LIMIT, PAGE_LIMIT = 65_000, 2_600
"""Words that are written by hand: of the README and all pages of docs together, and of one page."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    build.collect(folder)
    return folder


def _paths_of(entries: list[Any]) -> list[str]:
    values = [value for entry in entries for value in entry.values()]
    return [path for value in values for path in (_paths_of(value) if isinstance(value, list) else [value])]


def test_every_page_of_docs_is_in_the_navigation(pages: Path):
    config = tomllib.loads((SITE / "zensical.toml").read_text(encoding="utf-8"))
    listed = _paths_of(config["project"]["nav"])
    assert sorted(listed) == sorted(set(listed))
    assert [path for path in listed if not (pages / path).is_file()] == []
    written = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written | {"index.md"} <= set(listed)


def test_every_link_of_a_page_leads_to_a_file_of_the_site(pages: Path):
    broken = []
    for page in pages.rglob("*.md"):
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in build.LINK.finditer(text):
            if not re.match(r"\w+:", link[2]) and not (page.parent / link[2]).exists():
                broken.append((page.relative_to(pages).as_posix(), link[2]))
    assert broken == []


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_what_the_code_makes(name: str):
    stored = (ROOT / name).read_text(encoding="utf-8")
    assert stored == reference.generated(name), f"run: {reference.COMMAND}"


def test_words_by_hand():
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - set(reference.PAGES)
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in pages | {"README.md"}}
    words = {name: len(OUTPUT.sub("", PART.sub("", text)).split()) for name, text in texts.items()}
    assert {name: count for name, count in words.items() if count > PAGE_LIMIT} == {}
    assert sum(words.values()) <= LIMIT


def test_generated_pages_have_options_and_commands():
    options = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    commands = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert "### `strategy` with `kind: pipeline`" in options
    assert "| `hang_timeout_s` | `1800` |" in options
    for command in ("train", "sweep", "config from-trainer", "corpus sample"):
        assert f"## paratune {command}\n" in commands, command


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="b.html#there">x</a>', None),
        ('<a href="b.html#gone">x</a>', "b.html#gone"),
        ('<a href="c.html">x</a>', "c.html"),
        ('<a href="https://example.org/c.html">x</a>', None),
        ('<script src="https://example.org/a.js"></script>', "https://example.org/a.js"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "https://example.org/a.css"),
        ('<link rel="canonical" href="https://example.org/">', None),
    ],
)
def test_links_that_lead_nowhere_and_addresses_of_the_network_are_problems(
    page: str, problem: str | None, tmp_path: Path
):
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    (tmp_path / "b.html").write_text('<h1 id="there">B</h1>', encoding="utf-8")
    problems = problems_of(tmp_path)
    assert len(problems) == (problem is not None)
    assert all(problem in line for line in problems if problem)
