"""The captures that come with paratune are those of their text file."""

import gzip

import demo_captures

from paratune.corpus.inputs import find_files


def test_the_captures_are_those_of_their_text():
    (path,) = find_files(["demo:captures"], "index.warcs")
    expected = demo_captures.captures()
    assert len(expected) == 30
    # Not the compressed bytes, which depend on the version of zlib.
    assert gzip.decompress(path.read_bytes()) == b"".join(map(gzip.decompress, expected))
