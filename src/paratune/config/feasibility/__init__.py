"""Decides whether a configuration can run: rules, the reasons that they return, and messages for each command."""
