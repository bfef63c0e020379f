"""The model directory: what vLLM needs beside the weights, written once per file and cached.

`config.json`, `generation_config.json`, tokenizer files, the chat template as the file has it (never rendered here),
and `ggufmap.json`, the manifest that names the GGUF file for the loader.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ggufmap import __version__
from ggufmap.archs.base import JsonValue, Rule
from ggufmap.checkpoint import Checkpoint
from ggufmap.checkpoint.source import Place
from ggufmap.errors import WRITABLE, UsageError
from ggufmap.modeldir.cache import cache_root, filled_once
from ggufmap.modeldir.config import ModelConfig, generation_config
from ggufmap.modeldir.given import listed_ids, read_optional
from ggufmap.modeldir.manifest import MANIFEST, Packed, rows_as_json
from ggufmap.modeldir.processor import name_tokens, processor_files
from ggufmap.modeldir.stop_tokens import stop_token_ids

_SCHEMA = 2
_WANTED = "--tokenizer takes the folder of the original model, or leave it out: the file has its own."
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def build_model_dir(
    checkpoint: Checkpoint,
    config: ModelConfig,
    *,
    tokenizer: Path | None = None,
    output: Path | None = None,
    packed: Mapping[str, Packed] | None = None,
    rows: Sequence[Rule] = (),
) -> Path:
    """The folder to give to vLLM for `checkpoint`, in `output` or in the cache.

    `tokenizer` is a folder whose tokenizer files are used instead of the file's own; `packed` is what the loader keeps
    in GGUF blocks, by role: it makes another folder, so that vLLM's own caches do not mix the two up. `rows` are
    inferred ones, for a family that has none.
    Raises UsageError when a folder cannot be read or written, UnsupportedError when the file's tokenizer cannot be
    built.
    """
    header_hash = checkpoint.header_hash()
    if output is not None:
        return _write_to(output, checkpoint, config, tokenizer, header_hash)
    values = json.dumps([dict(config.values), processor_files(config)], sort_keys=True)
    sides = str((checkpoint.draft_path, checkpoint.projector_path))
    parts = [header_hash, _whole(checkpoint.path), sides, values, _identity(tokenizer), __version__]
    if packed:
        parts.append(json.dumps(_plain(packed), sort_keys=True))
    parts += map(repr, rows)
    return filled_once(
        cache_root() / "models" / _digest(*parts),
        lambda folder: _fill(folder, checkpoint, config, tokenizer, header_hash, packed, rows),
        _intact,
    )


def _identity(tokenizer: Path | None) -> str:
    """What tells a given tokenizer folder from another, and from itself after a change."""
    if tokenizer is None:
        return ""
    stats = [(tokenizer / name).stat() for name in _tokenizer_files(tokenizer)]
    return repr([(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats])


def _tokenizer_files(folder: Path) -> list[str]:
    return [name for name in _TOKENIZER_FILES if os.path.isfile(folder / name)]  # noqa: PTH113 - never raises


def add_model_files(
    folder: Path, checkpoint: Checkpoint, config: ModelConfig, *, tokenizer: Path | None = None
) -> None:
    """Write config, generation config and tokenizer of `checkpoint` into a folder that already holds weights.

    Raises UsageError when a file cannot be written, UnsupportedError when the file's tokenizer cannot be built.
    """
    try:
        _write_files(folder, checkpoint, config, tokenizer, checkpoint.header_hash())
    except OSError as e:
        raise UsageError(f"{e.filename or folder}: cannot be written: {e.strerror}", hint=WRITABLE) from e


def tokenizer_warnings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What is odd about the file's token list, in sentences. Builds the tokenizer, or finds it built.

    Raises UnsupportedError when it cannot be built.
    """
    manifest = _built_tokenizer(checkpoint, checkpoint.header_hash()) / MANIFEST
    return tuple(json.loads(manifest.read_text(encoding="utf-8"))["warnings"])


def _write_files(
    folder: Path, checkpoint: Checkpoint, config: ModelConfig, tokenizer: Path | None, header_hash: str
) -> None:
    if tokenizer is None:
        built = _built_tokenizer(checkpoint, header_hash)
        _copy_all(built, folder, [file.name for file in built.iterdir() if file.name != MANIFEST])
        name_tokens(folder, config.tokens)
    else:
        _copy_tokenizer(tokenizer, folder)
    stops = _stop_ids(checkpoint, config, tokenizer)
    _dump(folder / "generation_config.json", generation_config(stops, checkpoint))
    _dump(folder / "config.json", config.values)
    for name, text in processor_files(config).items():
        (folder / name).write_text(text, encoding="utf-8")


def _fill(
    folder: Path,
    checkpoint: Checkpoint,
    config: ModelConfig,
    tokenizer: Path | None,
    header_hash: str,
    packed: Mapping[str, Packed] | None = None,
    rows: Sequence[Rule] = (),
) -> None:
    _write_files(folder, checkpoint, config, tokenizer, header_hash)
    manifest: dict[str, JsonValue] = {
        "schema": _SCHEMA,
        "gguf": _whole(checkpoint.path),
        "header_hash": header_hash,
        "ggufmap": __version__,
        "files": _digests(folder),
    }
    for key, side in (("draft", checkpoint.draft_path), ("mmproj", checkpoint.projector_path)):
        if side is not None:
            manifest[key] = _whole(side)
    if packed:
        manifest["packed"] = _plain(packed)
    if rows:
        manifest["rows"] = rows_as_json(rows)
    _dump(folder / MANIFEST, manifest)


def _whole(place: Place) -> str:
    """`place` from wherever it is read. The file's own name stays, where that is a link (the hub's cache is made of
    them): the other splits are found by it.
    """
    return str(place.parent.resolve() / place.name) if isinstance(place, Path) else str(place)


def _plain(packed: Mapping[str, Packed]) -> dict[str, JsonValue]:
    return {
        role: {
            "tensors": list(found.tensors),
            "layers": {layer: dict(types) for layer, types in found.layers.items()},
        }
        for role, found in packed.items()
    }


def _stop_ids(checkpoint: Checkpoint, config: ModelConfig, tokenizer: Path | None) -> tuple[int, ...]:
    """Every id that ends an answer: the file's, the config's, and those of a generation_config.json beside either.

    Ids outside the vocabulary are left out: a given config may be another model's.
    """
    found = [stop.id for stop in stop_token_ids(checkpoint.metadata)]
    found += listed_ids(config.text.get("eos_token_id"))
    folders = [folder for folder in (config.folder, tokenizer) if folder is not None]
    for folder in folders:
        found += listed_ids(read_optional(folder / "generation_config.json").get("eos_token_id"))
    size = config.text.get("vocab_size")
    limit = size if isinstance(size, int) else max(found, default=0) + 1
    return tuple(dict.fromkeys(id for id in found if 0 <= id < limit))


def _intact(folder: Path) -> bool:
    """Whether a cached folder has the files that its manifest lists, unchanged: a broken tokenizer talks nonsense."""
    try:
        wanted = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all(_sha256(folder / name) == digest for name, digest in wanted.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _digests(folder: Path) -> dict[str, JsonValue]:
    return {file.name: _sha256(file) for file in sorted(folder.iterdir())}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _built_tokenizer(checkpoint: Checkpoint, header_hash: str) -> Path:
    """The tokenizer files of this header, built once: a large vocabulary costs seconds."""
    folder = cache_root() / "tokenizers" / _digest(header_hash, __version__)

    def fill(scratch: Path) -> None:
        from ggufmap.modeldir.tokenizer import build_tokenizer

        files = build_tokenizer(checkpoint.metadata)
        (scratch / "tokenizer.json").write_text(files.tokenizer_json, encoding="utf-8")
        _dump(scratch / "tokenizer_config.json", files.config)
        if files.chat_template is not None:
            (scratch / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")
        for name, text in files.modules.items():
            (scratch / name).write_text(text, encoding="utf-8")
        _dump(scratch / MANIFEST, {"schema": _SCHEMA, "files": _digests(scratch), "warnings": list(files.warnings)})

    return filled_once(folder, fill, _intact)


def _copy_all(source: Path, folder: Path, names: Iterable[str]) -> None:
    for name in names:
        shutil.copyfile(source / name, folder / name)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    if not {"tokenizer.json", "tokenizer.model", "vocab.json"}.intersection(_tokenizer_files(source)):
        raise UsageError(f"{source}: holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json)", hint=_WANTED)
    try:
        _copy_all(source, folder, _tokenizer_files(source))
    except OSError as e:
        raise UsageError(f"{e.filename}: cannot be copied: {e.strerror}", hint=WRITABLE) from e


def _write_to(
    output: Path, checkpoint: Checkpoint, config: ModelConfig, tokenizer: Path | None, header_hash: str
) -> Path:
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output}: is a file; a folder is needed", hint="Name a new folder.")
    if output.is_dir() and any(output.iterdir()):
        raise UsageError(f"{output}: is not empty", hint="Name a new folder.")
    fill = functools.partial(_fill, checkpoint=checkpoint, config=config, tokenizer=tokenizer, header_hash=header_hash)
    return filled_once(output, fill, lambda _: False, hint="Name another folder.")


def _dump(file: Path, values: Mapping[str, JsonValue] | Mapping[str, object]) -> None:
    # Plain ASCII: paths and foreign configs may hold what UTF-8 cannot.
    file.write_text(json.dumps(dict(values), indent=1) + "\n", encoding="ascii")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
