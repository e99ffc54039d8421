"""Pipeline parallelism for any encoder: its blocks cut into stages, a stage on each rank."""
