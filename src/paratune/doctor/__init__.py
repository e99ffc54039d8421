"""`paratune doctor`: what this machine has, what would not work on it or in a run, why, and what to do.

Rests on floors 0 and 1; torch is imported only inside the checks that ask it something. Nothing is changed on the
machine: a probe of the disk writes a file without a name. docs/howto/doctor.md lists the findings. What is asked of the
files and the model of a run, which other rooms know how to read, `paratune.commands.doctor` gathers.
"""

from paratune.doctor.checkup import examine, run
from paratune.doctor.finding import Finding

__all__ = ["Finding", "examine", "run"]
