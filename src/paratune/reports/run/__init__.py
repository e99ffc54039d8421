"""The report of runs: `paratune report RUN...`."""
