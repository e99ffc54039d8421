"""The bytes of each capture: from archive files of this machine, by ranges of files on a server, or by replay."""
