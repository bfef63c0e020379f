"""The facts that the checks judge. Gathering them (`gather.py`) is apart, so that a check is a function of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggufmap.serving.preflight import Preflight
from ggufmap.target.devices import World


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as torch sees it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Plugins:
    """What vLLM made of its general plugins. `failures` are (plugin, last line of its error)."""

    allowed: str | None
    """The environment variable VLLM_PLUGINS."""
    entries: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    fatal: bool = False
    """A plugin's error ended `load_general_plugins`, as it would end every vLLM process."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the installed vLLM and torch say of themselves, from a process of their own."""

    broken: Mapping[str, str] = field(default_factory=dict)
    """Installed packages that do not import, with the last line of the error."""
    platform: str = ""
    plugins: Plugins | None = None
    torch: str = ""
    torch_cuda: str | None = None
    torch_archs: tuple[str, ...] = ()
    cuda_error: str | None = None
    """Why torch has no GPU, in its own words."""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    gpu_memory_utilization: float = 0.9
    queue_bytes: int = 0
    """Most that one message queue of vLLM's executor takes of /dev/shm."""
    error: str | None = None
    """Why the process gave no answer."""

    @property
    def usable(self) -> bool:
        """Whether vLLM imports and has chosen a platform."""
        return self.error is None and "vllm" not in self.broken and bool(self.platform)


@dataclass(frozen=True, slots=True)
class Attention:
    """One kind of attention layer of the model, and vLLM's answer for it."""

    role: str
    layers: int
    needs: str
    chosen: str | None
    error: str | None = None
    others: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """What vLLM says of this model on this device."""

    dtype: str | None = None
    dtype_error: str | None = None
    supported_dtypes: tuple[str, ...] = ()
    attention: tuple[Attention, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """A measured sample of the file's bytes. `how` says whether the page cache was left out."""

    sampled: int
    seconds: float
    total: int
    how: str
    holes: bool = False
    """The file takes less of the disk than its size: zeros that no disk reads."""

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.sampled / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Untraced:
    """Why vLLM traced nothing, and what to do about it."""

    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Model:
    """The model's preflight, and why it was not traced where that went wrong."""

    found: Preflight
    world: World
    untraced: Untraced | None = None
    engine: Engine | None = None
    speed: ReadSpeed | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """Memory of the machine and of the container around this process, in bytes."""

    available: int
    total: int
    limit: int | None = None
    """The lowest limit of the control groups that this process is in; None for none."""
    limit_free: int | None = None
    shm_total: int = 0
    shm_free: int = 0

    @property
    def usable(self) -> int:
        """What a process here can still take."""
        return self.available if self.limit_free is None else min(self.available, self.limit_free)


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. `packages` are the installed distributions of interest, `conflicts` (requirement, found, by whom)."""

    python: str
    packages: Mapping[str, str]
    conflicts: tuple[tuple[str, str, str], ...]
    host: Host
    environment: Environment
    no_compiler: str = ""
    """Why the decoders in C cannot be built; empty where they are."""
    device: str = ""
    """The GPU to simulate (`sm_100`); empty for what is here."""
    model: Model | None = None
