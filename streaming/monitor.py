"""What the GPU does while the loader reads, through NVML where it is there.

>>> Monitor(torch.device("cuda", 0)).read()
Gpu(busy=0.93, memory=21474836480, total=85899345920)
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch


@dataclass(frozen=True)
class Gpu:
    """Share of the last moments in which a kernel ran, and bytes of memory in use and in all."""

    busy: float
    memory: int
    total: int

    def __str__(self) -> str:
        return f"gpu busy {self.busy:.0%}, {self.memory / 1e9:.1f} of {self.total / 1e9:.1f} GB"


class Monitor:
    """Asks NVML for one CUDA device; says nothing for others, or where the extra `gpu` is not installed."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._nvml: ModuleType | None = None
        self._handle: Any = None

    def read(self) -> Gpu | None:
        """How the device is used now; None where that can't be known."""
        if self._device is None or self._device.type != "cuda":
            return None
        if self._handle is None:
            self._open(self._device)
        nvml, handle = self._nvml, self._handle
        if nvml is None or handle is None:
            return None
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            return Gpu(busy, int(memory.used), int(memory.total))
        return None

    def _open(self, device: torch.device) -> None:
        try:
            import pynvml
        except ImportError:
            return
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            index = device.index if device.index is not None else torch.cuda.current_device()
            # NVML counts all devices of the machine, CUDA those that CUDA_VISIBLE_DEVICES leaves; the UUID is one name.
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            self._nvml = pynvml
