"""The parts of `benchmarks/gpu.py`: what each of them proves or measures on a GPU, in a process of its own.

- `setting`: what a part is given, and how it times things
- `texts`: texts, models and configurations made from a tokenizer and a fixed seed
- `training`: whole trainings in this process, with a look at each step
- `runner`: the processes of the parts, and the division of the time
- `summary`: results as Markdown
- `pack`: one folder with everything that a bare machine needs

Every other module is a part: its `checks(setting)` yields what is tried, most important first.
"""
