"""llama.cpp's own tokenizer. xllamacpp's library holds all of it; its Python side offers it through a server only."""

from __future__ import annotations

import ctypes
from pathlib import Path


class Params(ctypes.Structure):
    """`llama_model_params`, larger than it is: only passed from llama.cpp back to llama.cpp."""

    _fields_ = (("raw", ctypes.c_ubyte * 256),)


VOCAB_ONLY = 72
"""Offset of the first of six bools: vocab_only, check_tensors, use_extra_bufts, no_host, no_alloc, load_mtp."""


def library() -> ctypes.CDLL:
    import xllamacpp.xllamacpp as extension

    lib = ctypes.CDLL(extension.__file__)
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
    numbers = ctypes.POINTER(number)
    for name, result, arguments in (
        ("llama_backend_init", None, ()),
        ("llama_log_set", None, (pointer, pointer)),
        ("llama_model_default_params", Params, ()),
        ("llama_model_load_from_file", pointer, (ctypes.c_char_p, Params)),
        ("llama_model_free", None, (pointer,)),
        ("llama_model_get_vocab", pointer, (pointer,)),
        ("llama_vocab_n_tokens", number, (pointer,)),
        ("llama_vocab_is_eog", flag, (pointer, number)),
        ("llama_tokenize", number, (pointer, ctypes.c_char_p, number, numbers, number, flag, flag)),
        ("llama_token_to_piece", number, (pointer, number, ctypes.c_char_p, number, number, flag)),
        ("llama_detokenize", number, (pointer, numbers, number, ctypes.c_char_p, number, flag, flag)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
SILENT = LOG(lambda level, text, data: None)


class LlamaCpp:
    """The vocabulary of one GGUF in llama.cpp."""

    def __init__(self, lib: ctypes.CDLL, path: Path) -> None:
        self.lib = lib
        params = lib.llama_model_default_params()
        bools = bytes(params.raw[VOCAB_ONLY : VOCAB_ONLY + 5])
        assert bools == b"\0\0\1\0\0", f"llama_model_params has another layout: {bytes(params.raw).hex(' ')}"
        params.raw[VOCAB_ONLY] = 1
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = lib.llama_model_get_vocab(self.model)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        raw = text.encode()
        room = (ctypes.c_int32 * (3 * len(raw) + 8))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), add_special, True)
        assert count >= 0
        return list(room[:count])

    def decode(self, ids: list[int]) -> bytes:
        room = ctypes.create_string_buffer(256 * len(ids) + 256)
        given = (ctypes.c_int32 * max(len(ids), 1))(*ids)
        count = self.lib.llama_detokenize(self.vocab, given, len(ids), room, len(room), False, False)
        assert count >= 0
        return room.raw[:count]

    def piece(self, token: int) -> bytes:
        room = ctypes.create_string_buffer(4096)
        count = self.lib.llama_token_to_piece(self.vocab, token, room, len(room), 0, False)
        assert count >= 0
        return room.raw[:count]

    def stops(self) -> set[int]:
        count = self.lib.llama_vocab_n_tokens(self.vocab)
        return {token for token in range(count) if self.lib.llama_vocab_is_eog(self.vocab, token)}

    def close(self) -> None:
        self.lib.llama_model_free(self.model)
