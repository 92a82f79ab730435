"""The wheel, built and installed into an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from torchrun import ROOT, python

PARTS = ("pyproject.toml", "README.md", "LICENSE", "shardwriter", "streaming")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the source tree, so that no build folder is left in it."""
    source = tmp_path_factory.mktemp("source")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    python("-m", "build", "--wheel", "--outdir", source / "dist", source, timeout=240)
    (built,) = (source / "dist").iterdir()
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_what_they_need(wheel: Path) -> None:
    """Both packages are in it with their type markers, the format's page and the licence, and nothing else is."""
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "shardwriter/py.typed",
        "streaming/py.typed",
        "shardwriter/FORMAT.md",
        "streaming/cache/LAYOUT.md",
        "shardwriter/store/local.py",
    ):
        assert wanted in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"shardwriter", "streaming"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_installs_and_runs(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has the dependencies but not the source tree, the command and both packages work."""
    home = tmp_path / "env"
    venv.create(home, symlinks=True, with_pip=False)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    # The dependencies come from the environment of the tests; an editable install there is not followed from here.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    bare = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    install = ("-m", "pip", "--python", home, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall")
    python(*install, "--prefix", home, wheel, more=bare)
    env = os.environ | bare

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("a caption")
    command = home / "bin" / "shardstream"
    assert "write" in run(command, "--help")
    assert run(command, "--version") == "shardstream 0.1.0\n"
    run(command, "write", "--source", "folder", "--input", "photos", "shards")
    code = (
        "import shardwriter, streaming; print(shardwriter.__file__, streaming.__file__, sep='\\n');"
        "print([sample['txt'] for sample in streaming.StreamingDataset('shards')])"
    )
    first, second, samples = run(home / "bin" / "python", "-c", code).splitlines()
    assert Path(first).is_relative_to(site)
    assert Path(second).is_relative_to(site)
    assert samples == "['a caption']"
    assert sys.prefix != str(home)
