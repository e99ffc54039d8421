"""The parts of `benchmarks/gpu.py`: each checks or measures something on a GPU, in a separate process.

- `setting`: the input of a part, and functions to time calls
- `texts`: texts, models and configurations made from a tokenizer and a fixed seed
- `training`: whole trainings in this process, with a callback for each step
- `runner`: the processes of the parts, and the division of the time
- `summary`: results as Markdown
- `pack`: one folder with everything that a machine without a network needs

Every other module is a part: its `checks(setting)` yields its checks, the most important first.
"""
