"""All checks and measurements on one GPU, in parts that fail independently.

    python benchmarks/gpu.py --minutes 9 --out FOLDER               # needs the demo model's package, or --tokenizer
    python benchmarks/gpu.py --device cpu --tiny --out FOLDER       # all checks with tiny shapes on a CPU
    python benchmarks/gpu.py --pack FOLDER                          # one folder for a machine without a network
    python benchmarks/gpu.py --write FOLDER/results.json            # the page benchmarks/gpu_<card>_<yyyymm>.md

Each part is a process with its own time limit. `results.json` and `summary.md` in FOLDER are replaced after each
check, and the output of a finished part is added to `log.txt`. docs/howto/gpu.md explains the parts and the page.
"""

import argparse
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(1, str(HERE.parent / "src"))

from gpu_parts.runner import PARTS, run_parts, start_part  # noqa: E402

SCHEMA_VERSION = 1
WORK = "work"
"""Folder next to the results while parts run."""
REHEARSAL_S = 600.0
"""Maximum time of a part with tiny shapes."""


def main() -> int:
    """Run the requested parts; return 1 if a check was wrong or could not be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of all parts together")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes and few steps, to test the checks")
    parser.add_argument("--parts", help=f"comma-separated; of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer; by default that of the demo model")
    parser.add_argument(
        "--packed-encoders",
        type=Path,
        metavar="PYTHON",
        default=os.environ.get("PARATUNE_PACKED_ENCODERS"),
        help="Python of an environment with packed-encoders (peers/packed_encoders_speed.py has how to make it); "
        "default: $PARATUNE_PACKED_ENCODERS; without one, it is not measured",
    )
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="make a folder for an offline machine; run nothing")
    parser.add_argument("--write", type=Path, metavar="JSON", help="write the page of results; run nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pack:
        from gpu_parts.pack import pack

        return pack(options.pack.absolute())
    if options.write:
        return write_page(options.write)
    if options.out is None:
        parser.error("--out is missing")
    options.out = options.out.absolute()
    options.tokenizer = (options.tokenizer or find_tokenizer()).absolute()
    if options.child:
        from gpu_parts.part import run

        where = {"folder": options.out / options.child, "tokenizer": options.tokenizer}
        run(options.child, options.device, options.tiny, packed_encoders=options.packed_encoders, **where)
        return 0
    return run_all(options, parser)


def run_all(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the parts and write results after each of them."""
    names = options.parts.split(",") if options.parts else [part.name for part in PARTS]
    if unknown := set(names) - {part.name for part in PARTS}:
        parser.error(f"--parts: {', '.join(sorted(unknown))}: there is {', '.join(part.name for part in PARTS)}")
    shutil.rmtree(options.out / WORK, ignore_errors=True)
    (options.out / WORK).mkdir(parents=True)
    (options.out / "log.txt").unlink(missing_ok=True)
    if options.packed_encoders is not None and not options.packed_encoders.is_file():
        parser.error(f"--packed-encoders: {options.packed_encoders} does not exist; give the Python of the environment")
    part_options = ["--device", options.device, "--tokenizer", str(options.tokenizer), *(["--tiny"] * options.tiny)]
    if options.packed_encoders is not None:  # not resolved: a virtual environment is known by the path of its link
        part_options += ["--packed-encoders", str(options.packed_encoders.absolute())]
    results = new_results(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with the processes of the parts

    def done(name: str, result: dict[str, Any]) -> None:
        """Write the results so far; a part that has ended leaves its log, and nothing else."""
        results["parts"][name] = result
        if result["status"] != "running":
            keep_log(options.out / WORK / f"{name}.log", options.out / "log.txt")
            shutil.rmtree(options.out / WORK / name, ignore_errors=True)  # runs with their checkpoints: gigabytes
            print(f"{name}: {result['status']} ({result['seconds']:.0f} s)", flush=True)
        write_results(results, options.out)

    chosen = [replace(part, most_s=REHEARSAL_S) if options.tiny else part for part in PARTS if part.name in names]
    start = partial(start_part, Path(__file__).absolute(), options=part_options, out=options.out / WORK)
    run_parts(chosen, start, seconds=60 * options.minutes, done=done)
    shutil.rmtree(options.out / WORK, ignore_errors=True)
    print(options.out / "summary.md")
    return int(any(part["status"] != "ok" for part in results["parts"].values()))


def keep_log(source: Path, target: Path) -> None:
    """Add the output of a part to the log of all parts."""
    if source.exists():
        with target.open("a", encoding="utf-8") as log:
            log.write(f"== {source.stem}\n{source.read_text(encoding='utf-8', errors='replace')}\n")


def new_results(options: argparse.Namespace) -> dict[str, Any]:
    """Return the results before the first part."""
    rehearsal = ["rehearsal with tiny shapes: durations mean nothing"] if options.tiny else []
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "minutes": options.minutes,
        "tiny": options.tiny,
        "card": options.device,
        "about": [f"command: `python {' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}`", *rehearsal],
        "parts": {},
    }


def write_results(results: dict[str, Any], out: Path) -> None:
    """Replace `results.json` and `summary.md`."""
    from gpu_parts.summary import lines

    from paratune.records import write_json

    rows = results["parts"].get("card", {}).get("rows", [])
    about = next((row["figures"] for row in rows if row["name"] == "device"), {})
    results["card"] = about.get("name") or results["card"]
    write_json(out / "results.json", results)
    page = out / "summary.md.new"
    page.write_text("\n".join(lines(results)) + "\n", encoding="utf-8")
    page.replace(out / "summary.md")


def find_tokenizer() -> Path:
    """Return the tokenizer next to a packed copy, or that of the demo model."""
    packed = HERE.parent.parent / "tokenizer"
    if packed.exists():
        return packed
    from paratune.models.locate import locate

    return Path(locate("demo:minilm"))


def write_page(path: Path) -> int:
    """Write the page of results next to this script, named after the card and the month."""
    from gpu_parts.summary import lines

    from paratune.records import read_json

    results = read_json(path)
    card = re.sub(r"[^a-z0-9]+", "_", str(results["card"]).lower().removeprefix("nvidia ")).strip("_")
    page = HERE / f"gpu_{card}_{results['created'][:7].replace('-', '')}.md"
    page.write_text("\n".join(lines(results)) + "\n", encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
