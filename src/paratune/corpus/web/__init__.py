"""Requests to archives on the network, with a limit that all processes share."""
