"""The captures of `demo:captures`: pages of three imagined sites, written for paratune (CC0), as a WARC file.

python tests/demo_captures.py   # writes src/paratune/demo/captures.warc.gz
"""

import gzip
import re
import uuid
from pathlib import Path

FILE = Path(__file__).parents[1] / "src" / "paratune" / "demo" / "captures.warc.gz"
MENU = "".join(
    f"<li><a href='/{name}'>{title}</a></li>"
    for name, title in (("", "Início"), ("mapa", "Mapa"), ("contactos", "Contactos"))
)
COOKIES = "<div>Este site utiliza cookies para melhorar a sua experiência. Aceitar</div>"


def read_pages() -> dict[str, list[str]]:
    """Return the title and the paragraphs of each page, by name, from the text file beside this one."""
    pages = {}
    for page_text in re.split(r"^# ", Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"), flags=re.M)[1:]:
        heading, *paragraphs = page_text.strip().split("\n\n")
        name, _, title = heading.partition(": ")
        pages[name] = [title, *(" ".join(paragraph.split()) for paragraph in paragraphs)]
    return pages


def page(title: str, *paragraphs: str, menu: str = MENU) -> bytes:
    """Return a page of HTML in UTF-8."""
    text = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    head = f"<head><meta charset='utf-8'><title>{title}</title></head>"
    body = f"<body><nav><ul>{menu}</ul></nav><article><h1>{title}</h1>{text}</article>{COOKIES}</body>"
    return f"<!DOCTYPE html><html lang='pt'>{head}{body}</html>".encode()


def record(url: str, date: str, body: bytes, mime: str, status: str = "200 OK") -> bytes:
    """Return a compressed record of a WARC file (ISO 28500)."""
    http = f"HTTP/1.1 {status}\r\nContent-Type: {mime}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: {date}\r\n"
        f"WARC-Record-ID: <urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, url + date)}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + http + b"\r\n\r\n", mtime=0)


def captures() -> list[bytes]:
    """Return 30 records: 26 pages, a near-duplicate, a page in English, a short one, and an image."""
    sites = ("www.aldeia.example", "jornal-do-vale.example", "museu.example")
    pages = read_pages()
    english = pages.pop("en")
    records = []
    for number, (name, (title, *paragraphs)) in enumerate(pages.items()):
        date = f"{2004 + number % 12}-0{1 + number % 9}-1{number % 10}T08:0{number % 10}:00Z"
        records.append(record(f"http://{sites[number % 3]}/{name}", date, page(title, *paragraphs), "text/html"))
    title, *paragraphs = pages["farol"]
    again = page(title, *paragraphs, "Texto publicado pela primeira vez no jornal.", menu="")
    for name, body, mime in (
        ("farol-2", again, "text/html"),
        ("en", page(*english), "text/html"),
        ("obras", page("Em obras", "Página em construção."), "text/html"),
        ("logo.png", b"\x89PNG\r\n\x1a\n", "image/png"),
    ):
        records.append(record(f"http://{sites[0]}/{name}", "2016-05-06T07:08:09Z", body, mime))
    return records


if __name__ == "__main__":
    FILE.write_bytes(b"".join(captures()))
