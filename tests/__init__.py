"""Tests of paratune.

A package: a library of the tests installs one of the same name, which processes that tests start would find.
"""
