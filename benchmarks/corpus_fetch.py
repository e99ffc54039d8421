"""Documents per CPU-second from files, ranges of files and by replay, and memory at ten times the input.

    python benchmarks/corpus_fetch.py --data FOLDER

FOLDER holds pt_docs (pages of LibreOffice's Portuguese help); each capture consists of four pages and a number. The
archive is a stand-in on loopback in a separate process, whose time does not count. The request limit is so high that
no request waits.
"""

import argparse
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from archive import network, write_warc

from paratune.console import Display
from paratune.corpus.fetch.run import run_fetch
from paratune.corpus.index.run import run_index
from paratune.corpus.settings import Corpus, Fetch, Index
from paratune.hardware import peak_memory_bytes

NUMBERS = (500, 5_000)
WAYS = ("file", "range", "replay")
MOMENT, GMT = "20010101000000", "Mon, 01 Jan 2001 00:00:00 GMT"
MIB = 2**20


def make_archive(data: Path, folder: Path, number: int) -> None:
    """Write a WARC file of `number` captures, and its index."""
    with tarfile.open(data / "pt_docs/libreoffice-help-pt.sample.html.tar.gz") as archive:
        files = (archive.extractfile(member) for member in archive if member.name.endswith((".html", ".xhp")))
        pages = [file.read() for file in files if file is not None]
    headers = [("Content-Type", "text/html; charset=utf-8")]
    bodies = [b"".join(pages[(n + k) % len(pages)] for k in range(4)) + f"<!-- {n} -->".encode() for n in range(number)]
    records = [(f"http://a.pt/{n}", MOMENT, "200 OK", headers, body) for n, body in enumerate(bodies)]
    places = write_warc(folder / "a.warc", records)
    with (folder / "a.cdxj").open("w") as index:
        for (url, *_), (offset, length) in zip(records, places, strict=True):
            fields = {"url": url, "mime": "text/html", "status": "200", "filename": "a.warc"}
            index.write(f"pt,a)/ {MOMENT} {json.dumps(fields | {'offset': str(offset), 'length': str(length)})}\n")


class Archive(BaseHTTPRequestHandler):
    """Serves ranges of a file, and replays its captures."""

    protocol_version = "HTTP/1.1"
    file: Any
    places: list[tuple[int, int]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if "id_/" in self.path:
            offset, length = self.places[int(self.path.rsplit("/", 1)[1])]
            body = self.file[offset : offset + length].split(b"\r\n\r\n", 2)[2][:-4]
            self._send(200, {"Memento-Datetime": GMT, "Content-Type": "text/html; charset=utf-8"}, body)
        else:
            first, last = map(int, re.findall("[0-9]+", self.headers["Range"]))
            self._send(206, {}, self.file[first : last + 1])

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def serve(folder: Path, ports: Any) -> None:
    Archive.file = (folder / "a.warc").read_bytes()
    lines = (folder / "a.cdxj").read_text().splitlines()
    fields = [json.loads(line.split(" ", 2)[2]) for line in lines]
    Archive.places = [(int(field["offset"]), int(field["length"])) for field in fields]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Archive)
    ports.put(server.server_port)
    server.serve_forever()


def fetch_once(folder: Path, way: str, port: int) -> None:
    """Fetch all captures in this process; print the CPU time, the peak memory, and the number of captures."""
    url = f"http://127.0.0.1:{port}"
    ways = {
        "file": {"warcs": [str(folder / "a.warc")]},
        "range": {"ranges": f"{url}/warcs"},
        "replay": {"replay": f"{url}/replay"},
    }
    with tempfile.TemporaryDirectory() as work:
        corpus = Corpus(
            work=work,
            network=network(Path(work), requests_per_minute=10_000_000),
            index=Index(files=[str(folder / "a.cdxj")]),
            fetch=Fetch(**ways[way]),
        )
        display = Display(speaks=False)
        run_index(corpus, 1, display)
        before = resource.getrusage(resource.RUSAGE_SELF)
        totals = run_fetch(corpus, 1, display)
        used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"kept": totals["kept"], "seconds": seconds, "peak_mib": (peak_memory_bytes() or 0) / 2**20}))


def main() -> None:
    os.environ.setdefault(
        "ARROW_DEFAULT_MEMORY_POOL", "system"
    )  # as the command does; the measured processes are started by this one
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--once", nargs=3)
    options = parser.parse_args()
    if options.once:
        folder, way, port = options.once
        fetch_once(Path(folder), way, int(port))
        return
    print("| way | captures | MiB | documents per CPU-second (least - most) | peak memory, MiB (least - most) |")
    print("| --- | --- | --- | --- | --- |")
    for number in NUMBERS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_archive(options.data, folder, number)
            ports: Any = multiprocessing.Queue()
            server = multiprocessing.Process(target=serve, args=(folder, ports), daemon=True)
            server.start()
            print_rows(options, folder, number, ports.get())
            server.terminate()
            server.join()


def print_rows(options: argparse.Namespace, folder: Path, number: int, port: int) -> None:
    size = (folder / "a.warc").stat().st_size / MIB
    for way in WAYS:
        command = [sys.executable, __file__, "--data", str(options.data), "--once", str(folder), way, str(port)]
        runs = []
        for _ in range(options.runs):
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs.append(json.loads(out.splitlines()[-1]))
        assert {figures["kept"] for figures in runs} == {number}
        rates = sorted(number / figures["seconds"] for figures in runs)
        peaks = sorted(figures["peak_mib"] for figures in runs)
        middle = f"{rates[len(rates) // 2]:,.0f} ({rates[0]:,.0f} - {rates[-1]:,.0f})"
        print(f"| {way} | {number:,} | {size:.1f} | {middle} | {peaks[0]:.0f} - {peaks[-1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
