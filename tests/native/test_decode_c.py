"""The C itself: no undefined behaviour, no byte outside what it was given, no warning, the same bits for every CPU."""

from __future__ import annotations

import ctypes
import math
import subprocess
from pathlib import Path

import gguf
import pytest

from ggufmap.checkpoint.ggml_types import TYPES
from ggufmap.native import Native, build
from ggufmap.stream import compiled, dequantise

REAL = build._compiler()
pytestmark = pytest.mark.skipif(not REAL, reason="there is no C compiler here")
DRIVER = Path(__file__).with_name("sanitized.c")
NAMES = sorted({*(kind.name for kind in gguf.quants._type_traits), "Q1_0", "Q2_0"} - {"BF16"})
TYPE = {type.name: type for type in TYPES.values()}


def built(target: Path, *flags: str, also: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*REAL, *flags, str(build._SOURCE), *map(str, also), "-o", str(target)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_type_has_both_decoders(tmp_path: Path) -> None:
    done = built(tmp_path / "library.so", *build._FLAGS)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(tmp_path / "library.so"))
    for name in NAMES:
        assert hasattr(library, f"{name.lower()}_f32") and hasattr(library, f"{name.lower()}_bf16")


def test_no_warning(tmp_path: Path) -> None:
    flags = ("-Wall", "-Wextra", "-Wconversion", "-Wno-unused-parameter", "-Werror")
    done = built(tmp_path / "library.so", *build._FLAGS, *build._FOR_THIS_CPU, *flags)
    assert done.returncode == 0, done.stderr


def test_random_blocks_under_sanitizers(tmp_path: Path) -> None:
    """Also what a hostile file may hold: an index outside a table would end the process."""
    sizes = {name: [math.prod(shape) for shape in compiled._TABLES.get(name, ((), ()))[1]] + [0, 0] for name in NAMES}
    for name in ("MXFP4", "NVFP4"):
        sizes[name][1] *= 4  # float32
    rows = (
        f"X({name.lower()}, {TYPE[name].bytes}, {TYPE[name].block}, {sizes[name][0]}, {sizes[name][1]})"
        for name in NAMES
    )
    common = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-DTYPES(X)={' '.join(rows)}")
    done = built(tmp_path / "all", *common, also=(DRIVER,))
    if done.returncode != 0 and "san" in done.stderr:
        pytest.skip("the compiler has no sanitizers here")
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([tmp_path / "all"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) == len(NAMES) == 25


@pytest.mark.parametrize(
    "flags",
    [(), ("-O0",), ("-O3", "-march=native"), ("-O2", "-mssse3"), ("-O2", "-mavx2", "-mf16c"), ("-O2", "-U__F16C__")],
    ids=" ".join,
)
def test_every_way_to_build_it_makes_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    done = built(tmp_path / "library.so", *build._FLAGS, *flags)
    if done.returncode != 0 and any(flag.startswith("-m") for flag in flags):
        pytest.skip("flags of another CPU")
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(tmp_path / "library.so"))
    monkeypatch.setattr(compiled, "native", lambda: Native(library))
    for name in NAMES:
        assert compiled.compiled(TYPE[name], dequantise._decoder(TYPE[name])) is not None, name
