"""URLs, options and credentials of stores."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import MissingExtra, ObjectNotFound, StoreError
from shardwriter.store import join_url, open_store, split_url
from shardwriter.store.credentials import resolve
from shardwriter.store.options import Options
from shardwriter.store.remote import RemoteStore
from shardwriter.store.urls import redact

ROOTS = [".", "/", "/a", "a/b", "/50%20 #1", "s3://b", "s3://b/x y%20", "gs://b/x", "memory://m/x", "file:///a%20b",
         "file:///", "http://host", "https://host:1/x%20y", "https://host/x?sig=a%2Fb&c=/d"]  # fmt: skip
NAME = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=12)


@given(st.sampled_from(ROOTS), NAME)
def test_joining_and_splitting_are_inverse(root: str, name: str) -> None:
    """Root and name come back from their URL, whatever characters the name has."""
    if root == "." and name.startswith("pipe:"):
        return  # refused by itself
    assert split_url(join_url(root, name)) == (root, name)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://b/x/y.tar", ("s3://b/x", "y.tar")),
        ("s3://b/y%20?#z.tar", ("s3://b", "y%20?#z.tar")),
        ("s3://b", ("s3://b", "")),
        ("s3://b/", ("s3://b", "")),
        ("/a/b.tar", ("/a", "b.tar")),
        ("/b.tar", ("/", "b.tar")),
        ("b.tar", (".", "b.tar")),
        ("a/b%20c.tar", ("a", "b%20c.tar")),
        ("../b.tar", ("..", "b.tar")),
        (Path("/a/b.tar"), ("/a", "b.tar")),
        ("file:///a/b%20c.tar", ("file:///a", "b c.tar")),
        ("https://h/x/a%20b.tar?sig=1/2", ("https://h/x?sig=1/2", "a b.tar")),
    ],
)
def test_splitting(url: str | Path, parts: tuple[str, str]) -> None:
    """Plain paths and object keys are literal; file and web URLs are decoded, and keep their query with the root."""
    assert split_url(url) == parts


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("data/", "data"),
        ("/", "/"),
        ("s3://bucket/x//", "s3://bucket/x"),
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("https://user:pw@host/x/?sig=abc", "https://host/x"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("sftp://user:pw@host/x/", "sftp://host/x"),
        ("memory://x", "memory://x"),
    ],
)
def test_urls_of_stores(url: str, shown: str) -> None:
    """A store's url is the one given, without credentials and without a slash at its end; so is its repr."""
    assert open_store(url).url == shown
    assert repr(open_store(url)) == f"<store {shown}>"


@pytest.mark.parametrize("url", ["nosuch://x/y", "zip::nosuch://x"])
def test_unknown_schemes(url: str) -> None:
    """A scheme that nothing serves is an error that names it, when the store is opened."""
    with pytest.raises(StoreError, match="nosuch"):
        open_store(url)


def test_commands_are_refused() -> None:
    """`pipe:` URLs, which other loaders run in a shell, are refused; a file of such a name is reachable."""
    for call in (open_store, split_url):
        with pytest.raises(StoreError, match="run a command"):
            call("pipe:cat /etc/passwd")
    assert split_url("./pipe:x.tar") == (".", "pipe:x.tar")


def test_urls_made_into_paths_are_refused() -> None:
    """Path("s3://b/x") has lost a slash, and would be a local folder called "s3:"."""
    with pytest.raises(StoreError, match="was a URL"):
        open_store(Path("s3://bucket/x"))


def test_urls_without_a_bucket_or_with_a_strange_host() -> None:
    """A missing bucket, and a file URL that names another machine, are errors."""
    with pytest.raises(StoreError, match="no bucket"):
        open_store("s3:///x")
    with pytest.raises(StoreError, match="three slashes"):
        open_store("file://data/x")


def test_unknown_options_list_the_known() -> None:
    """A misspelt option is an error that lists the right ones."""
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket", {"endpoint": "http://x"})
    assert "'endpoint'" in str(caught.value)
    assert "endpoint_url" in str(caught.value.hint)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "a"},
        {"secret": "a"},
        {"key": "a", "access_key_id": "b", "secret": "c"},
        {"timeout": 0},
        {"deadline": 0},
        {"deadline": float("inf")},
        {"deadline": True},
        {"timeout": "5s"},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    """Half a pair of keys, an option given twice, and times that are no numbers are refused at once."""
    with pytest.raises(StoreError):
        open_store("s3://bucket", options)


def test_the_deadline_is_an_option_of_every_remote_store() -> None:
    """Seconds for the tries of a read: 120, or as given; fsspec's filesystems do not see it, and are checked alike."""
    for url in ("s3://bucket/x", "https://host/x", "memory://x"):
        for options, deadline in (({}, 120), ({"deadline": 7}, 7), ({"deadline": None}, 120)):
            store = open_store(url, options)
            assert isinstance(store, RemoteStore)
            assert store.deadline == deadline
            assert pickle.loads(pickle.dumps(store)).deadline == copy.deepcopy(store).deadline == deadline
        with pytest.raises(StoreError, match="deadline"):
            open_store(url, {"deadline": -1})
    store = open_store("memory://deadline", {"deadline": 7})
    store.write("a", b"1")
    assert store.read("a") == b"1"


def test_no_request_outlives_the_deadline_for_long() -> None:
    """Reads get time-outs that end with the deadline; those of other requests stay as given."""
    options = Options.parse({"deadline": 3, "timeout": 100})
    reading = options.for_reading()
    assert (reading.timeout, reading.read_timeout, reading.connect_timeout) == (3, 3, 3)
    assert (options.timeout, options.read_timeout, options.connect_timeout) == (100, 10, 5)
    assert Options.parse({}).for_reading().timeout == 120


def test_missing_packages_are_named() -> None:
    """A scheme whose package is not installed is an ImportError that names what is missing."""
    store = open_store("sftp://host/x")
    with pytest.raises(MissingExtra, match="paramiko"):
        store.info("a")


@pytest.mark.parametrize(
    "text",
    [
        "GET https://host/a.tar?X-Amz-Signature=hush failed",
        "(https://me:hush@host/a)",
        "s3://me:hush@bucket/a and http://h/?hush",
        "url='https://h/x?a=hush&b=hush' next",
    ],
)
def test_redaction(text: str) -> None:
    """Passwords and queries of URLs anywhere in a text are left out; the rest stays."""
    assert "hush" not in redact(text)
    assert redact("no URL: a?b a@b 50% s3://b/x") == "no URL: a?b a@b 50% s3://b/x"


def test_nothing_heavy_is_loaded() -> None:
    """Importing the stores and opening a local or an S3 one loads no cloud library."""
    code = (
        "import sys; from shardwriter.store import open_store; open_store('/tmp'); open_store('s3://b/x', {});"
        "print(*{'obstore', 'fsspec', 's3fs', 'botocore', 'tenacity', 'torch', 'streaming', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_root())
    assert done.stdout.strip() == ""


def _root() -> Path:
    return Path(__file__).parents[2]


def test_arguments_come_before_the_environment() -> None:
    """Explicit keys win over the environment's, and take no session token from it."""
    environment = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "env", "AWS_SESSION_TOKEN": "env"}
    _, provider = resolve(Options.parse({"key": "arg", "secret": "arg"}), environment)
    assert provider is not None
    assert provider() == {"access_key_id": "arg", "secret_access_key": "arg", "token": None, "expires_at": None}


def test_endpoint_and_region_of_the_environment() -> None:
    """AWS_ENDPOINT_URL is followed, the S3-specific one first, and http:// in it allows plain HTTP."""
    environment = {
        "AWS_ACCESS_KEY_ID": "env",
        "AWS_ENDPOINT_URL": "https://other",
        "AWS_ENDPOINT_URL_S3": "http://here:1",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    resolved, provider = resolve(Options.parse({}), environment)
    assert provider is None
    assert (resolved.endpoint_url, resolved.region, resolved.allow_http) == ("http://here:1", "eu-west-1", True)
    resolved, _ = resolve(Options.parse({"endpoint_url": "https://arg", "region": "r"}), environment)
    assert (resolved.endpoint_url, resolved.region, resolved.allow_http) == ("https://arg", "r", False)


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without any AWS setting and with an empty home."""
    import os

    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return monkeypatch


@pytest.mark.parametrize("how", ["environment", "option", "default"])
def test_profiles(s3: Any, no_aws: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    """Keys and endpoint of a profile in ~/.aws are used, by AWS_PROFILE, by option, or as the default profile."""
    name = "default" if how == "default" else "work"
    folder = tmp_path / "home" / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text(f"[{name}]\naws_access_key_id={s3.key}\naws_secret_access_key={s3.secret}\n")
    section = name if name == "default" else f"profile {name}"
    (folder / "config").write_text(f"[{section}]\nregion=us-east-1\nendpoint_url={s3.endpoint}\n")
    options = {}
    if how == "environment":
        no_aws.setenv("AWS_PROFILE", name)
    elif how == "option":
        no_aws.setenv("AWS_ACCESS_KEY_ID", "wrong")
        no_aws.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        options = {"profile": name}
    store = open_store(s3.bucket("profile"), options)
    store.write("a", b"123")
    assert store.read("a") == b"123"


def test_a_profile_that_does_not_exist(no_aws: pytest.MonkeyPatch) -> None:
    """Asking for an unknown profile is an error that names it."""
    with pytest.raises(StoreError, match="nosuch") as caught:
        open_store("s3://bucket", {"profile": "nosuch"}).info("a")
    assert "AWS_PROFILE" in str(caught.value.hint)


def test_credentials_of_the_environment(s3: Any, no_aws: pytest.MonkeyPatch) -> None:
    """AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL are enough."""
    for name, value in s3.environment.items():
        no_aws.setenv(name, value)
    store = open_store(s3.bucket("environment"))
    store.write("a", b"123")
    assert store.read("a") == b"123"


def test_wrong_credentials_are_told_without_showing_them(s3: Any) -> None:
    """A refusal by the server hints at the credentials, and does not show the secret."""
    store = open_store(s3.bucket(), s3.options | {"secret": "0123456789abcdef", "token": "fedcba9876543210"})
    for call in (store.read, store.info, lambda name: store.write(name, b"1"), lambda name: list(store.list())):
        with pytest.raises(StoreError) as caught:
            call("a")
        assert "credentials" in str(caught.value.hint)
        assert not isinstance(caught.value, ObjectNotFound)
        assert "0123456789abcdef" not in str(caught.value)
        assert "fedcba9876543210" not in str(caught.value)


def test_anonymous_access_sends_no_credentials(s3: Any, no_aws: pytest.MonkeyPatch) -> None:
    """anon=True asks without a signature, which a server without public data refuses, though good keys are set."""
    for name, value in s3.environment.items():
        no_aws.setenv(name, value)
    with pytest.raises(StoreError, match="403"):
        open_store(s3.bucket(), {"anon": True}).read("a")


def test_missing_buckets(s3: Any) -> None:
    """A bucket that does not exist is ObjectNotFound, in listings too."""
    store = open_store("s3://no-such-bucket-here/x", s3.options)
    with pytest.raises(ObjectNotFound):
        store.info("a")
    with pytest.raises(ObjectNotFound, match="NoSuchBucket"):
        list(store.list())


def test_servers_that_do_not_answer() -> None:
    """A refused connection is an error that says so and hints at the endpoint, after the deadline."""
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b", "deadline": 0.5}
    with pytest.raises(StoreError, match="refused") as caught:
        open_store("s3://bucket/x", options).info("a")
    assert "endpoint_url" in str(caught.value.hint)
    assert caught.value.shard == "s3://bucket/x/a"


def test_plain_http_must_be_meant() -> None:
    """An http:// endpoint among the options allows plain HTTP, and nothing else does."""
    assert Options.parse({"endpoint_url": "http://h"}).allow_http
    assert not Options.parse({"endpoint_url": "https://h"}).allow_http
