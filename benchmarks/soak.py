"""Kill commands at random and give damaged files to readers, for a time or a number of kills: nothing may differ.

    python benchmarks/soak.py --minutes 10                       # everything, with a new seed, which is printed
    python benchmarks/soak.py --minutes 10 --seed 7 --json soak.json
    python benchmarks/soak.py --kills 60                         # commands alone, until 60 signals reached a process
    python benchmarks/soak.py --only ddp --trial 12 --seed 7     # repeats the trial of a finding
    python benchmarks/soak.py --list                             # the kinds

Commands are killed at file operations (a small C library counts them; it needs a C compiler and Linux) and at random
times, restarted until they finish, and compared with an undisturbed run. Readers get files that Hypothesis
draws: valid ones, compared with another implementation, and damaged ones. Exit code 1 if there is a finding.
"""

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent / "tests")]

from soak_parts import killer  # noqa: E402

READING = 0.35
"""Share of the time for readers, if commands are killed as well."""


def main() -> int:
    """Run the requested kinds; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--minutes", type=float, help="time for all kinds together; default: 10, or no limit with --kills"
    )
    parser.add_argument("--kills", type=int, help="end after this number of kills; no readers")
    parser.add_argument("--seed", type=int, help="seed of all draws; default: a new one")
    parser.add_argument("--only", help="comma-separated kinds")
    parser.add_argument("--without", default="", help="comma-separated kinds that are left out")
    parser.add_argument("--trial", type=int, help="number of the one trial to run, with --only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for counts and findings")
    parser.add_argument("--folder", type=Path, help="folder for trials; those with findings stay there")
    parser.add_argument("--list", action="store_true", help="print the kinds; run nothing")
    options = parser.parse_args()
    _with_killer()
    from soak_parts import soak

    if options.list:
        print("\n".join(soak.names()))
        return 0
    named, left_out = (set(filter(None, (text or "").split(","))) for text in (options.only, options.without))
    if unknown := (named | left_out) - set(soak.names()):
        parser.error(f"{', '.join(sorted(unknown))}: there is {', '.join(soak.names())}")
    candidates = named or set(soak.names(readers=options.kills is None))
    chosen = [name for name in soak.names() if name in candidates - left_out]
    if options.trial is not None and len(chosen) != 1:
        parser.error("--trial needs --only with one kind")
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    minutes = options.minutes or (10.0 if options.kills is None else math.inf)
    kills = math.inf if options.kills is None else options.kills
    limits = {"seconds": 60 * minutes, "kills": kills, "trial": options.trial, "reading": READING}
    counts = soak.run(chosen, seed, folder.resolve(), **limits)
    return _report(counts, seed, folder, options.json)


def _report(counts: list[object], seed: int, folder: Path, path: Path | None) -> int:
    from soak_parts.findings import table

    print(table(counts))
    findings = [finding for count in counts for finding in count.findings]
    for finding in findings:
        again = f"python benchmarks/soak.py --seed {seed} --only {finding.kind} --trial {finding.trial}"
        print(f"\n{finding.sort}: {again}\n{finding.text}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"seed": seed, "created_s": time.time(), "counts": [count.as_dict() for count in counts]}
        path.write_text(json.dumps(record, indent=1))
    if findings:
        print(f"\nfolders of the trials: {folder}")
    elif folder.name.startswith("soak-"):
        shutil.rmtree(folder)
    return int(bool(findings))


def _with_killer() -> None:
    """Restart this program with the library that counts file operations, if it can be compiled."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    if killer.is_loaded() or "SOAK_WITHOUT_KILLER" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="soak-killer-"))
    library = killer.build(folder)
    if library is None:
        print("no C compiler, or no Linux: commands are killed only at random times", flush=True)
        os.environ["SOAK_WITHOUT_KILLER"] = "1"
        return
    os.environ["LD_PRELOAD"] = ":".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # when the interpreter exits, some imported libraries print memory leaks
