"""Split sets: any member or the folder gives the whole set, and a set with a fault is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small

from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.errors import FileError, MetadataError, UsageError

TENSORS = small.llama_tensors()
PARTS = [TENSORS[:5], TENSORS[5:12], TENSORS[12:]]


def contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {name: checkpoint.read(tensor) for name, tensor in checkpoint.tensors.items()}


EXPECTED = {str(spec.name): gb.tensor_bytes(spec) for spec in TENSORS}


@pytest.mark.parametrize("width", [5, 1, 2, 7])
@pytest.mark.parametrize("member", [0, 1, 2])
def test_any_member_resolves_to_the_set(tmp_path: Path, member: int, width: int) -> None:
    paths = small.write_splits(tmp_path, PARTS, width=width)
    with open_checkpoint(paths[member]) as checkpoint:
        assert [Path(split.source.name) for split in checkpoint.splits] == paths
        assert checkpoint.path == paths[0]
        assert checkpoint.architecture == "llama"
        assert contents(checkpoint) == EXPECTED
        assert list(checkpoint.tensors) == [spec.name for spec in TENSORS]
        assert checkpoint.nbytes == sum(path.stat().st_size for path in paths)


@pytest.mark.parametrize("member", [0, 1, 9])
def test_names_without_padding(tmp_path: Path, member: int) -> None:
    parts = [TENSORS[i : i + 2] for i in range(0, 18, 2)] + [TENSORS[18:]]
    paths = small.write_splits(tmp_path, parts, width=1)
    assert paths[9].name == "m-10-of-10.gguf"
    with open_checkpoint(paths[member]) as checkpoint:
        assert contents(checkpoint) == EXPECTED


def test_suffix_in_capitals(tmp_path: Path) -> None:
    paths = [path.rename(path.with_suffix(".GGUF")) for path in small.write_splits(tmp_path, PARTS)]
    with open_checkpoint(paths[1]) as checkpoint:
        assert contents(checkpoint) == EXPECTED


def test_the_folder_resolves_to_the_set(tmp_path: Path) -> None:
    small.write_splits(tmp_path, PARTS)
    small.write(tmp_path / "mmproj-F16.gguf", {"general.architecture": (gb.STRING, "clip")}, [])
    (tmp_path / "README.md").write_text("hello")
    with open_checkpoint(tmp_path) as checkpoint:
        assert contents(checkpoint) == EXPECTED


def test_relative_path_and_odd_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.write_splits(tmp_path, PARTS, stem="a b-00002-of-00009 [x]*")
    monkeypatch.chdir(tmp_path)
    with open_checkpoint(Path("a b-00002-of-00009 [x]*-00002-of-00003.gguf")) as checkpoint:
        assert contents(checkpoint) == EXPECTED


def test_one_of_one_is_a_plain_file(tmp_path: Path) -> None:
    (path,) = small.write_splits(tmp_path, [TENSORS])
    assert path.name == "m-00001-of-00001.gguf"
    with open_checkpoint(path) as checkpoint:
        assert len(checkpoint.splits) == 1
        assert contents(checkpoint) == EXPECTED
    plain = small.write_llama(tmp_path / "other" / "m-00001-of-00001.gguf")
    with open_checkpoint(plain) as checkpoint:
        assert contents(checkpoint) == EXPECTED


@pytest.mark.parametrize(
    ("index", "key", "value", "message"),
    [
        (1, "split.no", 2, r"m-00002-of-00003\.gguf: split\.no is 2, expected 1"),
        (0, "split.no", 1, r"m-00001-of-00003\.gguf: split\.no is 1, expected 0"),
        (2, "split.count", 4, r"m-00003-of-00003\.gguf: split\.count is 4, expected 3"),
        (2, "split.tensors.count", 99, r"m-00003-of-00003\.gguf: split\.tensors\.count is 99, the splits hold 21"),
        (0, "split.tensors.count", 20, r"m-00001-of-00003\.gguf: split\.tensors\.count is 20, the splits hold 21"),
    ],
)
def test_mutated_key_names_file_expected_and_found(
    tmp_path: Path, index: int, key: str, value: int, message: str
) -> None:
    paths = small.write_splits(tmp_path, PARTS, changes={index: {key: (gb.UINT16, value)}})
    with pytest.raises(FileError, match=message):
        open_checkpoint(paths[0])


@pytest.mark.parametrize(("value", "message"), [(4, "split.count is 4, the file name says 3"), (70_000, "allowed are")])
def test_count_of_the_opened_split_must_fit_its_name(tmp_path: Path, value: int, message: str) -> None:
    paths = small.write_splits(tmp_path, PARTS, changes={0: {"split.count": (gb.UINT32, value)}})
    with pytest.raises(FileError, match=message):
        open_checkpoint(paths[0])


def test_split_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, PARTS, changes={1: {"split.no": (gb.STRING, "1")}})
    with pytest.raises(MetadataError, match=r"m-00002-of-00003\.gguf: metadata key split\.no should be an integer"):
        open_checkpoint(paths[0])


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_missing_split_is_named(tmp_path: Path, gone: int) -> None:
    paths = small.write_splits(tmp_path, PARTS)
    paths[gone].unlink()
    for given in (paths[(gone + 1) % 3], tmp_path):
        with pytest.raises(FileError, match=f"1 of 3 splits are missing: {paths[gone].name}") as e:
            open_checkpoint(given)
        assert str(tmp_path) in str(e.value.hint)


def test_a_split_of_another_name_is_not_taken(tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, PARTS)
    paths[1].rename(tmp_path / "other-00002-of-00003.gguf")
    with pytest.raises(FileError, match=r"missing: m-00002-of-00003\.gguf"):
        open_checkpoint(paths[0])


def test_many_missing_splits_are_counted(tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, [TENSORS[:2], *[[] for _ in range(29)]])
    for path in paths[1:]:
        path.unlink()
    with pytest.raises(FileError, match=r"29 of 30 splits are missing: .*m-00011-of-00030\.gguf and 19 more"):
        open_checkpoint(paths[0])


def test_split_without_its_number_in_the_name(tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, PARTS)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(FileError, match="one of 3 splits, but its name has no -NNNNN-of-NNNNN") as e:
        open_checkpoint(renamed)
    assert "original file name" in str(e.value.hint)


def test_swapped_files_are_noticed(tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, PARTS)
    shutil.copy(paths[0], paths[1])
    with pytest.raises(FileError, match=r"m-00002-of-00003\.gguf: split\.no is 0, expected 1"):
        open_checkpoint(paths[0])


def test_a_split_of_another_model_is_noticed(tmp_path: Path) -> None:
    changes: dict[int, small.Metadata] = {1: {"general.architecture": (gb.STRING, "qwen3")}}
    paths = small.write_splits(tmp_path, PARTS, changes=changes)
    with pytest.raises(FileError, match=r"m-00002.*general\.architecture is qwen3, the first split says llama"):
        open_checkpoint(paths[2])


def test_tensor_in_two_splits_names_both(tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, [PARTS[0], [PARTS[0][1], *PARTS[1]], PARTS[2]])
    with pytest.raises(FileError) as e:
        open_checkpoint(paths[0])
    assert e.value.message == f"{paths[1]}: tensor {PARTS[0][1].name!s} is also in {paths[0]}"


def test_truncated_split_is_named(tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, PARTS)
    with paths[1].open("r+b") as file:
        file.truncate(paths[1].stat().st_size - 64)
    with pytest.raises(FileError, match=r"m-00002-of-00003\.gguf: truncated: tensor blk\.1"):
        open_checkpoint(paths[0])


def test_folder_with_two_models_lists_them(tmp_path: Path) -> None:
    small.write_splits(tmp_path, PARTS, stem="big")
    small.write_llama(tmp_path / "small.gguf")
    with pytest.raises(UsageError, match=r"holds 2 models: big-00001-of-00003\.gguf, small\.gguf") as e:
        open_checkpoint(tmp_path)
    assert "Name one of these files" in str(e.value.hint)


def test_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no model"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("projector", ["mmproj-F16.gguf", "mmproj-model-f16.gguf", "Small-mmproj-F16.gguf"])
def test_projector_beside_a_model_is_no_second_model(tmp_path: Path, projector: str) -> None:
    model = small.write_llama(tmp_path / "small.gguf")
    small.write(tmp_path / projector, {"general.architecture": (gb.STRING, "clip")}, [])
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.path == model
    model.unlink()
    with pytest.raises(UsageError, match="holds no model"):
        open_checkpoint(tmp_path)
