"""Make the example report of docs/howto/example from a finished matrix. Needs chromium (`make chromium`).

paratune sweep configs/sweeps/layouts.yaml
paratune report runs/layouts --margin accuracy=0.02 --margin f1_macro=0.02 --out report/layouts
python docs/site/example.py report/layouts
"""

import base64
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "howto" / "example"
WIDTH, HEIGHT = 1000, 2150
"""Of the pictures of the page, in pixels."""
PARTS = {"summary": (620, 1.35), "effects": (1145, 1.0)}
"""Width of the window in pixels, and scale, of the picture of each part: the conclusions have large letters."""
MARGIN = 24
"""Space around a part, in pixels."""
_PART = """(() => {
  const trust = document.querySelector('#summary details');
  trust.open = false;
  const box = document.querySelector('#summary').getBoundingClientRect();
  return [box.left, box.top, trust.getBoundingClientRect().bottom];
})()"""
"""Left, top and bottom of the conclusions."""
_EFFECTS = """(() => {
  const first = document.querySelector('#verdicts').getBoundingClientRect();
  const last = document.querySelector('#verdicts figure').getBoundingClientRect();
  return [first.left, first.top, last.bottom];
})()"""
"""The same for the effects of the axes."""


def main(report: Path) -> None:
    """Copy the page of a report, and write the pictures of it and of its parts."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import browser

    page = (report / "index.html").read_text(encoding="utf-8")
    directory = str(Path.cwd())
    # The folder of the runs is nobody's business.
    text = re.sub(rf"{re.escape(directory)}(?=[/&<)\s])", "~/studies", page)
    (EXAMPLE / "index.html").write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as opened:
        for name, is_dark in (("page", False), ("page_dark", True)):
            opened.look(dark=is_dark, width=WIDTH, height=HEIGHT)
            opened.events.clear()  # the page before has been loaded too
            opened.open(EXAMPLE / "index.html")
            opened.screenshot(EXAMPLE / f"{name}.png", whole=False)
        for name, part in (("summary", _PART), ("effects", _EFFECTS)):
            width, scale = PARTS[name]
            opened.look(width=width)
            opened.events.clear()
            opened.open(EXAMPLE / "index.html")
            left, top, bottom = opened.js(part)
            size = {"width": width, "height": bottom - top + MARGIN, "scale": scale}
            clip = {"x": max(0, left - MARGIN), "y": top, **size}
            shot = opened.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
            (EXAMPLE / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
