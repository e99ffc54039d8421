"""Predictions of GLUE's hidden tests as its site takes them: a zip of tables, written whole and checked.

A side room on floors 0 and 1: no torch.
"""
