"""Bundles: what goes in comes out, whole or not at all; what is not honest is refused before anything is written."""

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from raised import raises_code

from paratune.errors import DataError
from paratune.hub import bundle as archive
from paratune.hub.bundle import (
    MANIFEST,
    BundledFile,
    Manifest,
    hash_file,
    name_problem,
    read_manifest,
    unpack,
    write_bundle,
)


def manifest_of(files, **changed):
    packed = tuple(hash_file(path, name) for name, path in files.items())
    return Manifest({"run": {}}, {}, packed, **changed)


@pytest.fixture
def files(tmp_path):
    result = {}
    for name, raw in {"model/config.json": b"{}", "data/0000/t.csv": b"a,b\n" * 1000, "model/empty.txt": b""}.items():
        path = tmp_path / "from" / name.replace("/", "_")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw)
        result[name] = path
    return result


@pytest.fixture
def bundle(tmp_path, files):
    write_bundle(tmp_path / "b.tar", manifest_of(files), files)
    return tmp_path / "b.tar"


def nothing_is_left(tmp_path):
    return not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_a_bundle_unpacks_to_the_same_files(tmp_path, bundle, files):
    manifest = unpack(bundle, tmp_path / "out")
    for name, path in files.items():
        assert (tmp_path / "out" / name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file()) == [
        "config.json",
        "empty.txt",
        "t.csv",
    ]
    assert read_manifest(bundle) == manifest
    assert manifest.files[0].sha256 == hashlib.sha256(b"{}").hexdigest()
    # Any tar reads it, and the same files give the same bundle.
    with tarfile.open(bundle) as tar:
        assert tar.getnames() == [MANIFEST, *files]
    write_bundle(tmp_path / "again.tar", manifest, files)
    assert (tmp_path / "again.tar").read_bytes() == bundle.read_bytes()


def test_a_bundle_is_whole_or_absent(tmp_path, files, monkeypatch):
    def full(*_arguments, **_named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with raises_code("output.not_writable"):
        write_bundle(tmp_path / "b.tar", manifest_of(files), files)
    assert not list(tmp_path.glob("*.tar")) + list(tmp_path.glob(".*"))


def test_a_file_that_became_shorter_meanwhile(tmp_path, files):
    manifest = manifest_of(files)
    files["data/0000/t.csv"].write_bytes(b"a")
    with raises_code("output.not_writable"):
        write_bundle(tmp_path / "b.tar", manifest, files)


def test_a_file_system_that_is_read_only(tmp_path, files, monkeypatch):
    def read_only(*_arguments, **_named):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(archive.Path, "open", read_only)
    monkeypatch.setattr(archive.Path, "unlink", read_only)
    with raises_code("output.not_writable", "b.tar"):
        write_bundle(tmp_path / "b.tar", Manifest({"run": {}}, {}, ()), {})


@pytest.mark.parametrize("at", [600, 2000, 4000, 6000])
def test_a_bundle_that_was_cut_off(tmp_path, bundle, at):
    bundle.write_bytes(bundle.read_bytes()[:at])
    with pytest.raises(DataError):
        unpack(bundle, tmp_path / "out")
    assert nothing_is_left(tmp_path)


def test_a_byte_that_changed(tmp_path, bundle):
    raw = bytearray(bundle.read_bytes())
    raw[raw.rindex(b"a,b\n")] ^= 1
    bundle.write_bytes(raw)
    with raises_code("bundle.damaged", "data/0000/t.csv", "SHA", "256"):
        unpack(bundle, tmp_path / "out")
    assert nothing_is_left(tmp_path)


def pass_over(source, target, length=None, **_):
    """Copy nothing and leave a hole as long: the tar then has its true size, and uses no space on the disk."""
    source.seek(length, os.SEEK_CUR)
    target.seek(length, os.SEEK_CUR)


OVER_8_GIB = 2**33 + 1
"""11 octal digits, which is what the oldest tar has for a size, end at 8 GiB - 1."""


@pytest.fixture
def large_bundle(tmp_path, monkeypatch):
    """A bundle of a file over 8 GiB and one behind it, and what its manifest names."""
    large, small = tmp_path / "large", tmp_path / "small"
    with large.open("wb") as file:
        file.truncate(OVER_8_GIB)
    small.write_bytes(b'{"a": 1}')
    packed = (BundledFile("data/0000/large.txt", OVER_8_GIB, "0" * 64), hash_file(small, "data/0001/small.json"))
    copied = tarfile.copyfileobj

    def copy_but_the_large(source, target, length=None, **more):
        (pass_over if length == OVER_8_GIB else copied)(source, target, length, **more)

    path = tmp_path / "b.tar"
    with monkeypatch.context() as patched:
        patched.setattr(tarfile, "copyfileobj", copy_but_the_large)
        write_bundle(path, Manifest({"run": {}}, {}, packed), {packed[0].name: large, packed[1].name: small})
    return path, packed


def test_a_file_over_8_gib_is_in_a_tar_that_others_read(large_bundle):
    path, packed = large_bundle
    assert read_manifest(path).files == packed
    # manifest: header and text in 512s; then header, 2**33 + 1 in 512s, header, 8 in 512s, the end, in 10240s.
    with tarfile.open(path) as tar:
        text = -(-tar.next().size // 512) * 512
    expected = 512 + text + 512 + 2**33 + 512 + 512 + 512 + 1024
    assert path.stat().st_size == -(-expected // 10240) * 10240
    if program := shutil.which("tar"):
        listed = subprocess.run([program, "-tvf", str(path)], capture_output=True, text=True, check=True).stdout
        sizes = {line.split()[-1]: int(line.split()[2]) for line in listed.splitlines()}
        assert [sizes[item.name] for item in packed] == [OVER_8_GIB, 8]


def test_a_file_over_8_gib_is_unpacked_to_its_size(large_bundle, tmp_path, monkeypatch):
    path, packed = large_bundle
    copy = archive._copy

    def copy_but_the_large(file, target, num_bytes):
        if num_bytes != OVER_8_GIB:
            return copy(file, target, num_bytes)
        with target.open("xb") as out:
            out.truncate(num_bytes)
        file.seek(num_bytes + -num_bytes % 512, os.SEEK_CUR)
        return packed[0].sha256

    monkeypatch.setattr(archive, "_copy", copy_but_the_large)
    unpack(path, tmp_path / "out")
    assert (tmp_path / "out" / packed[0].name).stat().st_size == OVER_8_GIB
    assert (tmp_path / "out" / packed[1].name).read_bytes() == b'{"a": 1}'


def test_manifests_that_are_made_to_hurt(tmp_path):
    path = tmp_path / "b.tar"
    for raw, code in (
        (b"[" * 100_000, "bundle.damaged"),
        (
            b'{"schema_version": 1, "files": [{"name": "a", "num_bytes": Infinity, '
            b'"sha256": "0"}], "paths": {}, "config": {}, "sources": {}, "versions": {}}',
            "bundle.damaged",
        ),
        (b'{"schema_version": 2, "files": [], "paths": {}, "config": {}}', "bundle.damaged"),
    ):
        with tarfile.open(path, "w") as tar:
            tar.addfile(member("manifest.json", raw)[0], io.BytesIO(raw))
        with raises_code(code):
            unpack(path, tmp_path / "out")
    header = tarfile.TarInfo("manifest.json")
    header.size = -1
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
    with raises_code("bundle.damaged", name="manifest.json"):
        unpack(path, tmp_path / "out")


def test_a_folder_that_exists_is_refused(tmp_path, bundle):
    (tmp_path / "out").mkdir()
    with raises_code("output.exists"):
        unpack(bundle, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def evil(path, members, files=None):
    """Write a tar by hand: a manifest with these files, and members as they are."""
    manifest = {"schema_version": 1, "config": {}, "paths": {}, "sources": {}, "versions": {}}
    manifest["files"] = files if files is not None else []
    text = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
        for info, raw in members:
            tar.addfile(info, io.BytesIO(raw))
    return path


def member(name, raw=b"x", **changed):
    info = tarfile.TarInfo(name)
    info.size = len(raw)
    for key, value in changed.items():
        setattr(info, key, value)
    return info, raw


def named(name, raw=b"x", **changed):
    return {"name": name, "num_bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), **changed}


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a/.", "a\\b", "C:x", "-rf", ".ssh/x", "a\nb", "a b", "é", ""],
)
def test_names_that_lead_elsewhere(tmp_path, name):
    assert name_problem(name)
    path = evil(tmp_path / "b.tar", [], [named(name)])
    with raises_code("bundle.unsafe"):
        unpack(path, tmp_path / "out")
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0},
        {"type": tarfile.LNKTYPE, "linkname": "manifest.json", "size": 0},
        {"type": tarfile.CHRTYPE, "size": 0},
        {"type": tarfile.BLKTYPE, "size": 0},
        {"type": tarfile.FIFOTYPE, "size": 0},
        {"type": tarfile.DIRTYPE, "size": 0},
        {"pax_headers": {"path": "../x"}},
    ],
)
def test_members_that_are_no_plain_files(tmp_path, changed):
    path = evil(tmp_path / "b.tar", [member("a.txt", **changed)], [named("a.txt")])
    with raises_code("bundle.unsafe"):
        unpack(path, tmp_path / "out")
    assert nothing_is_left(tmp_path)


EXTENDED = {
    "long name": [(tarfile.GNUTYPE_LONGNAME, b"a.txt\0")],
    "long link": [(tarfile.GNUTYPE_LONGLINK, b"a.txt\0")],
    "sparse map": [(tarfile.XHDTYPE, b"27 GNU.sparse.map=a,b\n")],
    "sparse size": [(tarfile.XHDTYPE, b"47 GNU.sparse.major=1\n"), (tarfile.XHDTYPE, b"31 GNU.sparse.realsize=x\n")],
    "chain": [(tarfile.XHDTYPE, b"")] * 5000,
    "global": [(tarfile.XGLTYPE, b"13 path=../x\n")],
}


@pytest.mark.parametrize("case", EXTENDED)
@pytest.mark.parametrize("is_first", [True, False])
def test_extended_headers_are_refused_before_they_are_parsed(tmp_path, case, is_first):
    path = evil(tmp_path / "b.tar", [member("a.txt")], [named("a.txt")])
    raw = path.read_bytes()
    at = 0 if is_first else raw.rindex(b"a.txt")
    extra = b"".join(
        member("h", text, type=kind)[0].tobuf(tarfile.GNU_FORMAT) + text.ljust(-len(text) % 512 + len(text), b"\0")
        for kind, text in EXTENDED[case]
    )
    path.write_bytes(raw[:at] + extra + raw[at:])
    with raises_code("bundle.unsafe"):
        unpack(path, tmp_path / "out")
    assert nothing_is_left(tmp_path)


def test_bytes_after_the_last_file_are_refused(tmp_path):
    path = evil(tmp_path / "b.tar", [member("a.txt")], [named("a.txt")])
    end = path.read_bytes().rindex(b"x") // 512 * 512 + 512
    path.write_bytes(path.read_bytes()[:end] + b"no header!" * 100)
    with raises_code("bundle.unsafe"):
        unpack(path, tmp_path / "out")
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("members", "files", "refused"),
    [
        ([member("b.txt")], [named("a.txt")], ("bundle.damaged", "b.txt")),
        ([member("a.txt"), member("b.txt")], [named("a.txt")], ("bundle.unsafe",)),
        ([member("a.txt")], [named("a.txt"), named("A.txt")], ("bundle.unsafe",)),
        ([member("a.txt")], [named("a.txt", num_bytes=2**60)], ("bundle.damaged",)),
        ([member("a.txt")], [named("a.txt", num_bytes=-1)], ("bundle.damaged", "num_bytes")),
        ([member("a.txt")], [named("a.txt", sha256="0" * 64)], ("bundle.damaged", "SHA", "256")),
        ([member("a.txt")], [named("manifest.json")], ("bundle.unsafe",)),
        ([member("a.txt")], [{"name": "a.txt"}], ("bundle.damaged", "num_bytes")),
    ],
)
def test_a_manifest_that_is_not_that_of_the_files(tmp_path, members, files, refused):
    with raises_code(*refused):
        unpack(evil(tmp_path / "b.tar", members, files), tmp_path / "out")
    assert nothing_is_left(tmp_path)


def test_a_path_of_the_configuration_that_is_not_there(tmp_path, files):
    manifest = Manifest({"run": {}}, {"model.name": "../../home"}, (hash_file(files["model/config.json"], "a/b.json"),))
    write_bundle(tmp_path / "b.tar", manifest, {"a/b.json": files["model/config.json"]})
    with raises_code("bundle.unsafe", "model.name", "../../home"):
        unpack(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize("raw", [b"", b"PK\3\4" + bytes(600), b"\x1f\x8b" + bytes(600), bytes(10240)])
def test_other_files(tmp_path, raw):
    (tmp_path / "b.tar").write_bytes(raw)
    with raises_code("bundle.damaged"):
        unpack(tmp_path / "b.tar", tmp_path / "out")


def test_an_absent_file(tmp_path):
    with raises_code("data.unreadable"):
        unpack(Path(tmp_path / "none.tar"), tmp_path / "out")
