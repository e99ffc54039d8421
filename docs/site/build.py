"""Build the site of the documentation: collect pages, run Zensical, check all links.

The pages keep the folders of the repository (docs/, benchmarks/, configs/), so that links work in both. The README is
the home page. A link to a source file or a folder leads to a page made from it.

    python docs/site/build.py FOLDER        # FOLDER/html/index.html
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from check import problems_of

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {"README.md": "index.md", **{name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}}
"""Pages of the top folder -> their names in the site."""
ASSETS = (".png", ".svg", ".html")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".toml": "toml"}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")


def collect(pages: Path) -> None:
    """Write all pages and the files that they link to below `pages`."""
    waiting = [ROOT / name for name in ROOT_PAGES]
    waiting += sorted(path for suffix in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{suffix}"))
    done: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if source not in done:
            done.add(source)
            waiting += _add(source, pages)


def _add(source: Path, pages: Path) -> list[Path]:
    """Write the page of `source` and return the files that it links to."""
    name = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        names = sorted(path for path in source.rglob("*.yaml"))
        lines = [f"- [`{path.relative_to(ROOT)}`]({path.relative_to(source)}.md)" for path in names]
        _write(pages / name / "index.md", f"# {name}\n\n" + "\n".join(lines) + "\n")
        return names
    if source.suffix in ASSETS:
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, pages / name)
        return []
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".ipynb":
        text = notebook_page(text, name)
        _write(pages / f"{name}.md", LINK.sub(lambda link: _site_link(link, source), text))
        return list(_linked(source, text))
    if source.suffix != ".md":
        _write(
            pages / f"{name}.md",
            f"# {source.name}\n\n`{name}`\n\n````{LANGUAGES.get(source.suffix, 'text')}\n{text}````\n",
        )
        return []
    _write(pages / ROOT_PAGES.get(name, name), LINK.sub(lambda link: _site_link(link, source), text))
    return list(_linked(source, text))


def notebook_page(text: str, name: str) -> str:
    """Return the page of a notebook: its text and code in order, without outputs, with the path of the file."""
    parts = [
        "".join(cell["source"]) if cell["cell_type"] == "markdown" else f"```python\n{''.join(cell['source'])}\n```"
        for cell in json.loads(text)["cells"]
    ]
    return "\n\n".join([*parts, f"This page is the notebook `{name}`, which runs as it is."]) + "\n"


def _linked(source: Path, text: str) -> Iterator[Path]:
    for link in LINK.finditer(text):
        path = _target(source, link[2])
        if path is not None and path.exists():
            yield path


def _target(source: Path, link: str) -> Path | None:
    """Return the file of the repository that a link of `source` names, or None for an address."""
    if re.match(r"\w+:", link):
        return None
    return Path(os.path.normpath(source.parent / link))


def _site_link(link: re.Match[str], source: Path) -> str:
    """Return a link as it has to be in the site: to the page made from a source file, a folder or the README."""
    path, where = _target(source, link[2]), link[2]
    if path == ROOT / "README.md":
        where = f"{link[2].removesuffix('README.md')}index.md"
    elif path is not None and path.is_dir():
        where = f"{link[2].rstrip('/')}/index.md"
    elif path is not None and path.suffix not in (".md", *ASSETS):
        where = f"{link[2]}.md"
    return f"{link[1]}{where}{link[3] or ''})"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def build(folder: Path) -> list[str]:
    """Build the site in `folder`, which is replaced, and return its problems: none when it is whole."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    collect(folder / "pages")
    shutil.copyfile(Path(__file__).with_name("extra.css"), folder / "pages" / "extra.css")
    config = shutil.copyfile(Path(__file__).with_name("zensical.toml"), folder / "zensical.toml")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(config)]
    if subprocess.run(command, check=False).returncode != 0:
        return ["zensical found problems: see above"]
    return problems_of(folder / "html")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to build; an existing folder is replaced")
    folder = parser.parse_args().folder
    problems = build(folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(folder / "html" / "index.html")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
