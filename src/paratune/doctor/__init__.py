"""`paratune doctor`: what this machine has, what would not work on it, why, and what to do.

Rests on floors 0 and 1; torch is imported only inside the checks that ask it something. Nothing is changed on the
machine: a probe of the disk writes a file without a name. docs/doctor.md lists the findings.
"""

from paratune.doctor.checkup import examine, run
from paratune.doctor.finding import Finding

__all__ = ["Finding", "examine", "run"]
