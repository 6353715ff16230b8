"""Files on other file systems: local ones by URL, fsspec's memory, and S3 as moto plays it on this machine."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from graphlink.engine import files
from graphlink.errors import GraphlinkError, InputError, OutputError, UsageError

fsspec = pytest.importorskip(
    "fsspec", reason="fsspec is not installed: pip install '.[remote]' in a clone of graphlink"
)
TREE = {"a.json": b"a", "b.json.gz": b"", "notes.txt": b"n", "deep/er/c.json": b"c" * 70_000}


@pytest.fixture(params=["file", "local", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a folder that does not exist yet."""
    inner = uuid.uuid4().hex
    if request.param == "s3":
        request.applymarker(pytest.mark.filterwarnings("ignore"))  # of moto and botocore
        return f"{request.getfixturevalue('s3')}/{inner}/run"
    return f"memory://{inner}/run" if request.param == "memory" else f"{request.param}://{tmp_path}/{inner}/run"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name, data in TREE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def listing(url: str) -> list[str]:
    return [one.name for one in files.found(url)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_a_url() -> None:
    assert [files.is_url(text) for text in ("s3://b/k", "file:///x", "a/b.json", "C:\\x", "/a:b")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def put_folder(folder: Path, url: str) -> list[str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    urls = [url + "/" + path.relative_to(folder).as_posix() for path in paths]
    for path, to in zip(paths, urls, strict=True):
        files.put_file(path, to)
    return urls


def test_a_file_is_fetched_under_its_name(root: str, tree: Path, tmp_path: Path) -> None:
    put_folder(tree, root)
    assert files.fetch(f"{root}/deep/er/c.json", tmp_path) == tmp_path / "c.json"
    assert (tmp_path / "c.json").read_bytes() == TREE["deep/er/c.json"]
    assert not list(tmp_path.glob("*.part"))


def test_listing_a_folder_and_a_pattern(root: str, tree: Path) -> None:
    put_folder(tree, root)
    assert listing(root) == listing(root + "/") == [f"{root}/{name}" for name in ("a.json", "b.json.gz", "notes.txt")]
    assert listing(f"{root}/*.json*") == [f"{root}/a.json", f"{root}/b.json.gz"]
    assert listing(f"{root}/[ab].json") == [f"{root}/a.json"]
    assert listing(f"{root}/deep/*/c.json") == [f"{root}/deep/er/c.json"]
    assert listing(f"{root}/*.none") == []
    assert [files.fetch(url, tree / "deep").name for url in listing(f"{root}/?.json")] == ["a.json"]


def test_a_listing_sees_what_others_wrote_since(root: str, tree: Path) -> None:
    files.put_file(tree / "a.json", f"{root}/a.json")
    listing(root)
    other = fsspec.filesystem(root.partition("://")[0], skip_instance_cache=True)
    other.pipe_file(f"{root}/new.json", b"new")
    assert listing(root) == [f"{root}/a.json", f"{root}/new.json"]


def test_a_file_is_put_in_place_of_an_older_one(root: str, tree: Path, tmp_path: Path) -> None:
    for name in ("a.json", "notes.txt"):
        files.put_file(tree / name, f"{root}/one")
    assert files.fetch(f"{root}/one", tmp_path).read_bytes() == TREE["notes.txt"]
    assert listing(root) == [f"{root}/one"]


def test_removed_is_gone_and_what_was_not_there_is_fine(root: str, tree: Path) -> None:
    first, *rest = put_folder(tree, root)
    files.remove([first, f"{root}/never"])
    assert listing(root) == sorted(url for url in rest if "deep" not in url)


@pytest.mark.parametrize("call", ["fetch", "found"])
def test_what_is_missing_is_named(root: str, tmp_path: Path, call: str) -> None:
    url = f"{root}/none.json"
    local = tmp_path / "here"
    local.mkdir()
    with pytest.raises(InputError) as raised:
        getattr(files, call)(url, *([local] if call != "found" else []))
    assert raised.value.text() == f"{url}: there is no such file or folder\n  do: check the name"
    assert not list(local.iterdir())


def test_a_folder_is_no_file(root: str, tree: Path, tmp_path: Path) -> None:
    put_folder(tree, root)
    with pytest.raises(InputError, match="is a folder"):
        files.fetch(f"{root}/deep", tmp_path)


class Broken:
    """A file system that fails after half of the file; ``whole`` is what stood there before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException):
        kind = fsspec.get_filesystem_class("memory")

        def put(system: Any, lpath: str, rpath: str, **kwargs: Any) -> None:
            system.pipe_file(rpath, Path(lpath).read_bytes()[:1])
            raise error

        def get(system: Any, rpath: str, lpath: str, **kwargs: Any) -> None:
            Path(lpath).write_bytes(b"h")
            raise error

        monkeypatch.setattr(kind, "put_file", put)
        monkeypatch.setattr(kind, "get_file", get)


@pytest.mark.parametrize("error", [PermissionError("403"), OSError("reset"), ValueError("odd"), KeyboardInterrupt()])
def test_no_half_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    url = f"memory://{uuid.uuid4().hex}/a.json"
    fsspec.filesystem("memory").pipe_file(url, b"before")
    local, back = tmp_path / "local", tmp_path / "back"
    local.write_bytes(b"after")
    back.mkdir()
    told = isinstance(error, Exception)
    with monkeypatch.context() as patch:
        Broken(patch, error)
        with pytest.raises(OutputError if told else KeyboardInterrupt) as put:
            files.put_file(local, url)
        with pytest.raises(InputError if told else KeyboardInterrupt) as got:
            files.fetch(url, back)
    for raised in (put, got) if told else ():
        assert isinstance(raised.value, GraphlinkError)
        assert raised.value.text().startswith(f"{url}: ")
        assert str(error) in raised.value.text()
    assert not list(back.iterdir())
    assert listing(url.rpartition("/")[0]) == [url]
    assert files.fetch(url, back).read_bytes() == b"before"


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    url = f"file://{tmp_path}/file/run/a.json"
    with pytest.raises(OutputError, match=r"file/run/a\.json: cannot be written"):
        files.put_file(tmp_path / "file", url)


def test_a_bucket_that_is_not_there(s3: str, tree: Path, request: pytest.FixtureRequest) -> None:
    request.applymarker(pytest.mark.filterwarnings("ignore"))
    with pytest.raises(OutputError, match="s3://other/a"):
        files.put_file(tree / "a.json", "s3://other/a")


def test_an_unknown_protocol_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fsspec knows no nope://"):
        files.fetch("nope://x/y", tmp_path)


def test_a_package_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("odd", "no_such_package.core.Odd", errtxt="Please install it")
    with pytest.raises(UsageError) as raised:
        files.fetch("odd://x/y", tmp_path)
    assert (
        raised.value.text()
        == "odd://x/y: odd:// needs one more package (Please install it)\n  do: pip install no_such_package"
    )


def test_without_fsspec_its_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[remote\]'"):
        listing("s3://bucket")


@pytest.mark.parametrize("url", ["s3://", "file:///a/..", "https://host/"])
def test_a_url_without_a_name(url: str) -> None:
    with pytest.raises(InputError, match="names no file"):
        files._name(url)


def test_the_query_of_a_web_address_is_not_part_of_its_name() -> None:
    assert files._name("https://host/k/kineto_0.json.gz?X-Amz=a/b") == "kineto_0.json.gz"
    assert files._name("s3://bucket/k/a?b.json") == "a?b.json"
