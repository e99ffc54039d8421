import gzip
import zipfile

from raised import raises_code

from paratune.corpus.inputs import Source, find_files, index_sources, open_index

GIB = 2**30


def read(source, max_bytes=GIB):
    with open_index(source, max_bytes) as file:
        return file.read()


def make_zip(path, **files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_patterns_are_in_their_order_and_files_once(tmp_path):
    for name in ("b.cdx", "a.cdx"):
        (tmp_path / name).write_text("")
    result = find_files([str(tmp_path / "b.cdx"), str(tmp_path / "*.cdx")], "index.files")
    assert [path.name for path in result] == ["b.cdx", "a.cdx"]


def test_a_pattern_without_files_is_an_error(tmp_path):
    with raises_code("data.not_found", "index.files", "none.cdx"):
        find_files([str(tmp_path / "none.cdx")], "index.files")
    with raises_code("data.not_found", key="index.files"):
        find_files([str(tmp_path)], "index.files")


def test_plain_gzipped_and_zipped_indexes_are_unpacked(tmp_path):
    (tmp_path / "a.cdx").write_bytes(b"one\n")
    (tmp_path / "a.cdx.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    path = make_zip(tmp_path / "a.zip", **{"x/a.cdxj": b"one\n", "b.cdx.gz": gzip.compress(b"two\n"), "readme": b""})
    assert read(Source(tmp_path / "a.cdx", "cdx")) == b"one\n"
    assert read(Source(tmp_path / "a.cdx.gz", "cdx")) == b"one\ntwo\n"
    result, ignored = index_sources(path)
    assert [item.name for item in result] == ["a.zip/x/a.cdxj", "a.zip/b.cdx.gz"]
    assert [read(value) for value in result] == [b"one\n", b"two\n"]
    assert ignored == ["readme"]


def test_a_name_in_a_broken_charset_is_refused(tmp_path):
    path = make_zip(tmp_path / "a.zip", **{"é.cdx": b"one\n"})
    (source,), _ = index_sources(path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace("é".encode(), b"\xff\xff"))
    with raises_code("corpus.archive_unreadable", "a.zip"):
        index_sources(path)
    with raises_code("corpus.archive_unreadable"):
        read(source)


def test_a_zip_without_an_index_is_refused(tmp_path):
    with raises_code("corpus.archive_unreadable"):
        index_sources(make_zip(tmp_path / "a.zip", readme=b"x"))


def test_a_file_that_is_no_zip_is_refused(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK nothing")
    with raises_code("corpus.archive_unreadable", "a.zip"):
        index_sources(tmp_path / "a.zip")


def test_the_limit_is_that_of_the_settings(tmp_path):
    (tmp_path / "a.cdx.gz").write_bytes(gzip.compress(b"line\n" * 1000))
    with raises_code("corpus.archive_unreadable", "index.max_unpacked_gib"):
        read(Source(tmp_path / "a.cdx.gz", "cdx"), max_bytes=4999)
    assert len(read(Source(tmp_path / "a.cdx.gz", "cdx"), max_bytes=5000)) == 5000
    (source,), _ = index_sources(make_zip(tmp_path / "a.zip", **{"a.cdx": bytes(5001)}))
    with raises_code("corpus.archive_unreadable", "index.max_unpacked_gib"):
        read(source, max_bytes=5000)


def test_a_truncated_gzip_is_an_error(tmp_path):
    (tmp_path / "a.cdx.gz").write_bytes(gzip.compress(b"line\n" * 1000)[:-10])
    with raises_code("corpus.archive_unreadable", name="a.cdx.gz"):
        read(Source(tmp_path / "a.cdx.gz", "cdx"))
