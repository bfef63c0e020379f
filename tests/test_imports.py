"""The parts of the package import what docs/architecture.md says; starting the command costs no torch and no vLLM."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import small_models as small

import ggufmap

PACKAGE = Path(ggufmap.__file__).parent
TABLE_FILE = PACKAGE.parent / "docs" / "architecture.md"

# What the words of the table's last column mean, as modules below ggufmap.
STAGES = ["checkpoint", "archs", "mapping", "target", "native", "stream", "modeldir", "remote"]
WORDS: dict[str, list[str]] = {
    "nothing": [],
    **{name: [name] for name in (*STAGES, "errors", "whole", "serving", "report")},
    "mapping's types": ["mapping.plan", "mapping.transforms"],
    "mapping's types and memory": ["mapping.plan", "mapping.transforms", "mapping.memory"],
    "archs' value types": ["archs.base"],
    "modeldir's cache": ["modeldir.cache"],
    "all stages": STAGES,
    "all": [*STAGES, "whole", "serving", "report", "doctor", "patching"],
    "numpy": [],
    "torch": [],
    "vllm only inside functions": [],
}
# Names that a folder exports of the modules above.
EXPORTED = {"mapping": {"Plan", "Role"}}

# Other packages, by folder.
OTHERS: dict[str, set[str]] = {
    "errors": set(),
    "whole": set(),
    "checkpoint": {"numpy"},
    "archs": set(),
    "mapping": set(),
    "target": {"torch", "numpy", "vllm", "vllm_gguf_plugin", "gguf", "transformers"},
    "native": set(),
    "stream": {"torch", "numpy", "gguf", "libgguf"},
    "modeldir": {"numpy", "jinja2", "tokenizers"},
    "remote": {"requests", "urllib3", "boto3", "botocore", "huggingface_hub"},
    "serving": {"torch", "vllm", "rich"},
    "doctor": {"packaging"},
    "patching": set(),
    "report": {"rich"},
    "cli": {"typer", "rich", "torch"},
}
# vLLM takes seconds to import and keeps state: nobody does it by being imported. Two folders have torch at the top.
REMOTE = {"requests", "urllib3", "boto3", "botocore", "huggingface_hub"}
ONLY_IN_FUNCTIONS = {"jinja2", "vllm", "vllm_gguf_plugin", "gguf", "libgguf", "tokenizers", "transformers", *REMOTE}
TORCH_AT_THE_TOP = {"target", "stream"}

# What breaks the table today, by folder. An entry that is gone must be deleted here; a new one is a decision about the
# table, not a line here.
KNOWN: set[tuple[str, str]] = set()
"""Violations that are being worked on."""


def table() -> dict[str, list[str]]:
    """Folder -> modules it may import, as docs/architecture.md has it."""
    found = {}
    for line in TABLE_FILE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = cells[0].strip("`").removesuffix("/").removesuffix(".py")
        if len(cells) == 3 and cells[0].startswith("`") and name in OTHERS:
            found[name] = [module for word in re.split(r"[,;] ", cells[2]) for module in WORDS[word]]
    return found


TABLE = table()


@dataclass(frozen=True)
class Import:
    """One import statement: the module it is in, what it names, and whether importing the module runs it."""

    module: str
    target: str
    names: frozenset[str]
    at_import: bool

    @property
    def folder(self) -> str:
        return self.module.split(".")[0]


def imports(path: Path) -> Iterator[Import]:
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")

    def walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, frozenset(), at_import)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                yield Import(module, child.module or "", frozenset(a.name for a in child.names), at_import)
            else:
                for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
                yield from walk(child, at_import and not for_types and not function)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


ALL = [found for path in sorted(PACKAGE.rglob("*.py")) for found in imports(path)]


def allowed(found: Import) -> bool:
    top, _, inner = found.target.partition(".")
    if top != "ggufmap":
        return top in sys.stdlib_module_names or top in OTHERS[found.folder]
    if not inner:  # `from ggufmap import __version__`
        return found.names <= {"__version__"}
    own = [found.folder, "errors", *TABLE[found.folder]]
    parts = {name.split(".")[0] for name in own if "." in name}
    return any(f"{inner}.".startswith(f"{name}.") for name in own) or (
        inner in parts and found.names <= EXPORTED.get(inner, set())
    )


def test_every_folder_is_in_the_table() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders | {"errors", "whole"} == TABLE.keys() == OTHERS.keys()


def test_the_import_table_of_the_design_holds() -> None:
    broken = {(x.folder, x.target, x.module) for x in ALL if x.folder in TABLE and not allowed(x)}
    assert {x for x in broken if x[:2] not in KNOWN} == set(), "these imports are not in docs/architecture.md's table"
    assert KNOWN - {x[:2] for x in broken} == set(), "these imports are gone: delete them from KNOWN"


def test_what_is_slow_is_imported_inside_functions_only() -> None:
    early = [
        (x.module, x.target)
        for x in ALL
        if x.at_import
        and (
            x.target.split(".")[0] in ONLY_IN_FUNCTIONS
            or (x.target.split(".")[0] == "torch" and x.folder not in TORCH_AT_THE_TOP)
        )
    ]
    assert early == []


def test_the_package_itself_imports_nothing() -> None:
    assert [x.target for x in ALL if x.module == "__init__"] == []


def loaded(code: str) -> set[str]:
    """The top-level modules that a fresh Python has after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n' + ' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


RUN = "import sys\nfrom ggufmap.cli.main import app\nsys.argv = {argv!r}\ntry:\n    app()\nexcept SystemExit as e:\n    assert not e.code, e.code"  # noqa: E501


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import ggufmap", {"torch", "vllm", "numpy", "typer", "rich", "gguf", "transformers", "tokenizers"}),
        (RUN.format(argv=["ggufmap", "--help"]), {"torch", "vllm", "numpy", "gguf", "transformers", "tokenizers"}),
        (RUN.format(argv=["ggufmap", "audit", "--help"]), {"torch", "vllm", "numpy", "gguf", "transformers"}),
        (RUN.format(argv=["ggufmap", "--version"]), {"torch", "vllm", "numpy", "gguf", "transformers", "tokenizers"}),
        ("import ggufmap.archs", {"torch", "vllm", "numpy"}),
        ("import ggufmap.serving.plugin, ggufmap.serving.loader", {"torch", "vllm", "numpy", "rich", "typer"}),
    ],
    ids=["import", "help", "audit help", "version", "archs", "plugin"],
)
def test_starting_costs_no_heavy_module(code: str, absent: set[str]) -> None:
    assert loaded(code) & absent == set()


@pytest.mark.parametrize("command", ["audit", "map"])
def test_an_offline_audit_costs_neither_torch_nor_vllm(tmp_path: Path, command: str) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    found = loaded(RUN.format(argv=["ggufmap", command, str(path), "--offline"]))
    assert found & {"torch", "vllm", "transformers", "tokenizers", "gguf", "libgguf"} == set()
    assert "numpy" in found


def test_rows_of_a_family_are_imported_when_asked_for() -> None:
    code = (
        "import ggufmap.archs as a, sys\nassert not [m for m in sys.modules if m.startswith('ggufmap.archs.gemma')]\n"
    )
    assert "ggufmap" in loaded(code + "a.find_architecture('gemma3', 'x')\nassert 'ggufmap.archs.gemma' in sys.modules")
