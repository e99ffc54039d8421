"""Golden numbers: what reports and comparisons say about stored records, number by number, to 12 digits.

    python benchmarks/golden.py                    # the check: exit code 1 if a number differs or is lost
    python benchmarks/golden.py --uncovered        # also the numbers of the documents that are not compared
    python benchmarks/golden.py --new              # take the numbers of today's code: read the diff of expected.csv
    python benchmarks/golden.py --make FOLDER      # train all runs anew in FOLDER, and store their records, too

`tests/golden/numbers/` has `records.tar.xz`, what the runs wrote, and `expected.csv`, a flat table: case, subject,
measure, unit, statistic, value. Neither depends on the names in records or reports; `golden_parts/adapter.py` connects
them. To change a format: convert the records, change the adapter, and keep expected.csv. A number that was wrong is
replaced in a commit that gives the reason.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent / "tests")]
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from golden_parts import adapter, numbers, records  # noqa: E402

STORED = HERE.parent / "tests" / "golden" / "numbers"
RECORDS, EXPECTED = "records.tar.xz", "expected.csv"
SMALLEST_SHARE = 0.95
"""Of the numeric cells of all documents, the share that is compared."""


def main() -> int:
    """Check, or store; return 1 if a number differs or is lost, or too few are compared."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="train the runs in an empty folder; store all")
    parser.add_argument("--new", action="store_true", help="store the numbers of today's code")
    parser.add_argument("--uncovered", action="store_true", help="print the cells that are not compared")
    options = parser.parse_args()
    if options.make is not None:
        from golden_parts.making import make

        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
        make(options.make.resolve())
        records.pack(options.make.resolve(), STORED / RECORDS)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        records.unpack(STORED / RECORDS, Path(folder))
        found = adapter.collect(Path(folder))
    if options.make is not None or options.new:
        numbers.write(STORED / EXPECTED, found.numbers)
    differences = numbers.compare(numbers.read(STORED / EXPECTED), found.numbers)
    for line in [*(found.left if options.uncovered else ()), *numbers.lines(differences)]:
        print(line)
    print(f"{differences.counts()}; {found.share:.1%} of {found.num_cells} numeric cells are compared")
    return int(not differences.is_equal or found.share < SMALLEST_SHARE)


if __name__ == "__main__":
    sys.exit(main())
