"""All that a run needs in one file, for machines without a network: written whole or not at all, unpacked with care.

A side room on floors 0 and 1. docs/howto/offline.md says what is in a bundle.
"""
