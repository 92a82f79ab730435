"""What NVML says of the GPU, with one that is made up."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from streaming.monitor import Gpu, Monitor

UUID = "4d5e6f70-0000-1111-2222-333344445555"
CUDA = torch.device("cuda", 1)


class _Nvml(ModuleType):
    """Stands in for pynvml: one device, which can be lost."""

    class NVMLError(Exception):
        """What every call may raise."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.calls: list[str] = []
        self.lost = False

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.lost:
            raise self.NVMLError("GPU is lost")

    def nvmlInit(self) -> None:  # noqa: N802
        self._called("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self._called(uuid)
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        self._called(f"memory {handle}")
        return SimpleNamespace(used=3_000, total=8_000)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        self._called(f"use {handle}")
        return SimpleNamespace(gpu=93)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> _Nvml:
    """An NVML, and a CUDA that counts its devices in another way."""
    fake = _Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    names = {1: UUID, 2: f"GPU-{UUID}"}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=names[index]))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    return fake


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_devices_without_nvml(nvml: _Nvml, device: torch.device | None) -> None:
    """Nothing is asked, and nothing said, where the device is not CUDA's."""
    assert Monitor(device).read() is None
    assert nvml.calls == []


@pytest.mark.parametrize("device", [CUDA, torch.device("cuda")])
def test_use_and_memory(nvml: _Nvml, device: torch.device) -> None:
    """The device is found by its UUID, once, whether it is named by number or is the current one; its figures are
    read each time.
    """
    monitor = Monitor(device)
    assert [monitor.read() for _ in range(2)] == [Gpu(0.93, 3_000, 8_000)] * 2
    assert nvml.calls == ["init", f"GPU-{UUID}", *["memory handle", "use handle"] * 2]


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pynvml is not installed nothing is said, and nothing fails."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Monitor(CUDA).read() is None


def test_a_gpu_that_is_lost_and_comes_back(nvml: _Nvml) -> None:
    """What NVML can't answer is nothing, before and behind the first answer; it is asked again the next time."""
    monitor = Monitor(CUDA)
    nvml.lost = True
    assert monitor.read() is None
    nvml.lost = False
    assert monitor.read() is not None
    nvml.lost = True
    assert monitor.read() is None
    nvml.lost = False
    assert monitor.read() == Gpu(0.93, 3_000, 8_000)


def test_in_words() -> None:
    """A line has use in percent and memory in GB."""
    assert str(Gpu(0.93, 21_474_836_480, 85_899_345_920)) == "gpu busy 93%, 21.5 of 85.9 GB"
