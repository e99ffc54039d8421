"""Runs that stand still: each rank says what it is at, a thread of each notices when nobody gets on, and why.

Beside floor 1; torch is asked by the thread, once it is imported. docs/howto/hangs.md says what is watched and how.
"""
