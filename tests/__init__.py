"""Tests of paratune.

A package, because a library that the tests install has a package of the same name: processes that tests start would
import it.
"""
