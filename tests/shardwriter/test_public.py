"""The public names of shardwriter."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import shardwriter
from shardwriter import errors


def test_every_public_name_is_there_and_listed() -> None:
    """`__all__` names nothing twice, every name in it can be had, and dir() shows it."""
    assert len(set(shardwriter.__all__)) == len(shardwriter.__all__)
    for name in shardwriter.__all__:
        assert getattr(shardwriter, name) is not None
        assert name in dir(shardwriter)


def test_every_error_is_public() -> None:
    """Each class of the error tree can be caught by a name of the package."""
    tree = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.ShardError)
    }
    assert tree <= set(shardwriter.__all__)
    assert all(getattr(shardwriter, name) is getattr(errors, name) for name in tree)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Lazy loading makes no difference for names that don't exist."""
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = shardwriter.no_such_name


def test_names_mean_the_same_whatever_was_imported_before() -> None:
    """`convert` is the function also after its module was loaded in other ways."""
    code = (
        "import shardwriter.cli, shardwriter.conversion, shardwriter.index, shardwriter.verify, shardwriter.sources\n"
        "from shardwriter import convert, index_shards, verify_shards, sources, ShardWriter\n"
        "print(callable(convert), callable(index_shards), callable(verify_shards), sources.folder.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True True folder\n"


def test_importing_loads_nothing_heavy() -> None:
    """The package, and even all of its public names, load no imaging, audio, cloud or training library."""
    heavy = ["torch", "streaming", "PIL", "soundfile", "obstore", "fsspec", "s3fs", "msgpack", "tqdm", "simplejpeg"]
    code = (
        "import sys, shardwriter\n"
        "print('numpy' in sys.modules)\n"
        "for name in shardwriter.__all__: getattr(shardwriter, name)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n[]\n"
