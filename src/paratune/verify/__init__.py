"""Publications: folders with which others can check the results of runs, see `paratune.verify.publication`."""
