"""What importing a part of the library loads, and what it must not load."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import shardwriter
import streaming.plan

HEAVY = ("PIL", "simplejpeg", "soundfile", "obstore", "fsspec", "s3fs", "msgpack", "tqdm")
"""Imaging, audio, cloud and progress bars: loaded by the functions that use them."""


def modules(package: str) -> list[str]:
    path = __import__(package, fromlist=["*"]).__path__
    return [package, *(m.name for m in pkgutil.walk_packages(path, f"{package}."))]


def loaded(*names: str) -> dict[str, set[str]]:
    """What a fresh interpreter has loaded after importing each of some modules, one after the other."""
    program = f"""
import importlib, json, sys
found = {{}}
for name in {names!r}:
    importlib.import_module(name)
    found[name] = sorted(sys.modules)
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return {name: set(found) for name, found in json.loads(done.stdout).items()}


def unwanted(found: dict[str, set[str]], *roots: str) -> dict[str, list[str]]:
    """Which of `roots`, packages or modules, are among what was loaded."""
    wrong = {name: sorted(root for root in roots if root in mods) for name, mods in found.items()}
    return {name: roots_found for name, roots_found in wrong.items() if roots_found}


def test_no_module_of_shardwriter_loads_torch_or_streaming() -> None:
    """Datasets are written on machines that have no torch; every module is imported, the command's too."""
    names = modules("shardwriter")
    assert {"shardwriter.cli", "shardwriter.store.remote", "shardwriter.sources.tables"} <= set(names)
    assert unwanted(loaded(*names), "torch", "streaming") == {}


def test_plans_load_neither_torch_nor_stores() -> None:
    """The plan is pure: all its modules load no torch, no store, and no library that reads anything."""
    names = [name for name in modules("streaming") if name.startswith("streaming.plan")]
    assert len(names) > 5
    assert unwanted(loaded(*names), "torch", "shardwriter.store", *HEAVY) == {}


@pytest.mark.parametrize("package", ["shardwriter", "streaming", "streaming.plan", "streaming.errors"])
def test_importing_a_package_is_light(package: str) -> None:
    """No torch, no imaging, audio or cloud library, and no store comes with it."""
    assert unwanted(loaded(package), "torch", "shardwriter.store", *HEAVY) == {}


def test_no_module_loads_heavy_libraries_by_itself() -> None:
    """Every module of both packages leaves them for first use; what torch itself loads can't be helped."""
    found = loaded("torch.utils.data", *modules("shardwriter"), *modules("streaming"))
    heavy = set(HEAVY) - found.pop("torch.utils.data")
    assert {"PIL", "obstore", "soundfile"} <= heavy
    assert unwanted(found, *heavy) == {}


def test_any_module_can_be_imported_first() -> None:
    """No module needs another to have been imported before: each is tried in a process that has imported none."""
    names = modules("shardwriter") + modules("streaming")
    program = f"""
import os, sys, traceback
import numpy, torch, torch.utils.data                  # theirs, so that each child has only ours to load
wrong = []
for name in {names!r}:
    child = os.fork()
    if not child:
        try:
            __import__(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        wrong.append(name)
sys.exit(", ".join(wrong) or None)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_loaded_when_they_are_used() -> None:
    """A plan can be made from the package's own names without torch."""
    program = """
import sys
import numpy as np
from streaming import FixedBatch, Plan, PlanError, Shuffle
assert len(Plan.make(np.array([5, 5]), batch=FixedBatch(2), shuffle=Shuffle())) == 5
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_these_packages_are_the_ones_that_are_tested() -> None:
    """The interpreter that the tests start imports the same files as the tests themselves."""
    program = "import shardwriter, streaming.plan; print(shardwriter.__file__, streaming.plan.__file__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [shardwriter.__file__, streaming.plan.__file__]
