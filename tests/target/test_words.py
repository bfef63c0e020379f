"""The line of an error that is worth showing."""

from __future__ import annotations

import pydantic
import pytest

from ggufmap.target.words import last_words


class Config(pydantic.BaseModel):
    model: str

    @pydantic.field_validator("model")
    @classmethod
    def known(cls, model: str) -> str:
        raise ValueError(f"{model} is not supported for now")


def test_pydantic_s_pointer_to_its_pages_is_no_message() -> None:
    with pytest.raises(pydantic.ValidationError) as e:
        Config(model="Glm5Next")
    assert str(e.value).splitlines()[-1].strip().startswith("For further information")
    assert last_words(str(e.value)) == "Value error, Glm5Next is not supported for now"


def test_the_last_line_of_a_traceback_and_nothing() -> None:
    assert last_words("Traceback:\n  File x\nImportError: no y\n\n") == "ImportError: no y"
    assert last_words(" \n") == ""
