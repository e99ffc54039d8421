"""Detects runs that hang: each rank writes a heartbeat; a thread in each rank reports ranks without progress.

docs/howto/hangs.md describes what is watched and how.
"""
