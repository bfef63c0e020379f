"""`ggufmap check`: what fails, the lock file's life, the formats, and what a bad lock or option says."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from support import small_models as small
from support.converter import TinyFactory
from support.report_schema import LOCK, check_report
from support.synthetic import generator
from support.unprivileged import without_root

from .conftest import Cli

OFFLINE = "--offline"


@pytest.fixture(scope="module")
def synthesize() -> ModuleType:
    return generator()


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A file with a tensor too many."""
    return small.write_llama(tmp_path / "bad.gguf", tensors=[*small.llama_tensors(), small.tensor("stranger", 4)])


@pytest.fixture
def lock(cli: Cli, model: Path, tmp_path: Path) -> Path:
    """The lock file of `model`, offline."""
    path = tmp_path / "ggufmap.lock.json"
    assert cli("check", model, OFFLINE, "--lock", path, "--update").code == 0
    return path


def edit(lock: Path, tensor: str, **fields: object) -> None:
    found = json.loads(lock.read_text())
    found["tensors"][tensor].update(fields)
    lock.write_text(json.dumps(found))


# What fails.


def test_a_good_file_passes_and_shows_the_audit(cli: Cli, model: Path) -> None:
    found = cli("check", model, OFFLINE)
    assert (found.code, found.err) == (0, "")
    assert "mapped 21   draft 0" in found.out
    assert found.out.endswith("fails on: unmapped, missing, mismatched\ncheck passed: 21 tensors, by the rows alone\n")


@pytest.mark.parametrize(("fail_on", "code"), [(None, 1), ("unmapped", 1), ("missing,mismatched", 0), ("", 0)])
def test_the_exit_code_is_by_fail_on(cli: Cli, stranger: Path, fail_on: str | None, code: int) -> None:
    found = cli("check", stranger, OFFLINE, *([] if fail_on is None else ["--fail-on", fail_on]))
    assert found.code == code
    assert "unmapped  stranger" in found.out
    assert ("check failed: 1 unmapped" in found.out) is bool(code)


def test_a_warning_fails_when_asked(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"num_key_value_heads": 1}')
    arguments = ("check", model, OFFLINE, "--hf-config", tmp_path / "hf")
    assert cli(*arguments).code == 0
    found = cli(*arguments, "--fail-on", "warning")
    assert (found.code, "check failed: 1 warning" in found.out) == (1, True)


def test_an_unknown_family_never_passes(cli: Cli, tmp_path: Path) -> None:
    metadata = {key.replace("llama.", "nosuch."): value for key, value in small.llama_metadata().items()}
    metadata["general.architecture"] = (8, "nosuch")
    path = small.write_llama(tmp_path / "m.gguf", metadata)
    found = cli("check", path, OFFLINE, "--fail-on", "", "--format", "json")
    assert found.code == 1
    assert [x["kind"] for x in found.json["check"]["findings"] if x["fails"]] == ["inferred"]


# E1: metadata that promises a draft; E5: what of a draft may be absent.


def glm(synthesize: ModuleType, folder: Path, **changes: object) -> Path:
    """GLM-4.5 Air's real header with 802 of 803 tensors, or as `changes` say."""
    model = synthesize.MODELS["glm-4.5-air"]()
    return Path(synthesize.write(replace(model, **changes), folder)[0])


def drafts(synthesize: ModuleType, *unwanted: str) -> list[object]:
    """Tensors without those of the draft block that contain one of the words."""
    block = "blk.46."
    return [
        tensor
        for tensor in synthesize.MODELS["glm-4.5-air"]().tensors
        if not (tensor[0].startswith(block) and any(word in tensor[0] for word in unwanted))
    ]


@pytest.mark.parametrize(
    ("unwanted", "codes"),
    [
        ((), {"": 0, "phantom-mtp": 0, "unmapped,missing,mismatched": 0}),
        (("blk.",), {"": 0, "phantom-mtp": 1, "warning": 1, "unmapped,missing,mismatched": 0}),
        (("nextn.embed_tokens", "nextn.shared_head_head"), {"phantom-mtp": 0, "warning": 0}),
        (("nextn.enorm",), {"": 0, "phantom-mtp": 1, "missing": 1, "unmapped": 0}),
        (("ffn_down_exps",), {"phantom-mtp": 1, "missing": 1, "unmapped": 0}),
    ],
    ids=["whole", "no draft", "shared parts", "no enorm", "no experts"],
)
def test_a_promised_draft(
    cli: Cli, synthesize: ModuleType, tmp_path: Path, unwanted: tuple[str, ...], codes: dict[str, int]
) -> None:
    path = glm(synthesize, tmp_path, tensors=drafts(synthesize, *unwanted))
    assert {kinds: cli("check", path, OFFLINE, "--fail-on", kinds).code for kinds in codes} == codes


def test_more_drafts_promised_than_there_are(cli: Cli, synthesize: ModuleType, tmp_path: Path) -> None:
    keys = {**synthesize.MODELS["glm-4.5-air"]().keys, "nextn_predict_layers": 2}
    path = glm(synthesize, tmp_path, keys=keys)
    found = cli("check", path, OFFLINE, "--fail-on", "phantom-mtp")
    assert found.code == 1
    assert "W107 phantom MTP: nextn_predict_layers is 2, the file has 1 draft blocks" in found.out
    fewer = {**keys, "nextn_predict_layers": 0}
    assert cli("check", glm(synthesize, tmp_path / "b", keys=fewer), OFFLINE, "--fail-on", "phantom-mtp").code == 0


# The lock file.


def test_a_lock_is_made_once_and_then_holds(cli: Cli, model: Path, lock: Path) -> None:
    jsonschema.validate(json.loads(lock.read_text()), LOCK)
    before = lock.read_bytes()
    found = cli("check", model, OFFLINE, "--lock", lock)
    assert found.code == 0
    assert f"check passed: 21 tensors, by the rows alone; as pinned in {lock}" in found.out
    assert cli("check", model, OFFLINE, "--lock", lock, "--update").code == 0
    assert lock.read_bytes() == before


def test_a_difference_fails_and_shows_what_moved(cli: Cli, model: Path, lock: Path) -> None:
    edit(lock, "blk.0.attn_v.weight", checkpoint=["model.layers.0.v.weight"])
    edit(lock, "blk.1.attn_v.weight", checkpoint=["model.layers.1.v.weight"])
    edit(lock, "output.weight", type="Q6_K")
    found = cli("check", model, OFFLINE, "--lock", lock, "--fail-on", "")
    assert found.code == 1
    lines = [line for line in found.out.splitlines() if line.startswith("  lock ")]
    assert lines == [
        "  lock      2 x blk.*.attn_v.weight  checkpoint tensor model.layers.*.v.weight"
        " -> model.layers.*.self_attn.v_proj.weight",
        "  lock      output.weight  ggml type Q6_K -> F32",
    ]
    assert "fails on: a difference from the lock\ncheck failed: 3 lock" in found.out
    report = cli("check", model, OFFLINE, "--lock", lock, "--format", "json").json
    check_report(report)
    assert [(x["subject"], x["old"], x["new"]) for x in report["check"]["lock"]["differences"]] == [
        (f"blk.{n}.attn_v.weight", f"model.layers.{n}.v.weight", f"model.layers.{n}.self_attn.v_proj.weight")
        for n in (0, 1)
    ] + [("output.weight", "Q6_K", "F32")]


def test_an_update_says_what_moved_and_passes(cli: Cli, model: Path, lock: Path) -> None:
    before = lock.read_bytes()
    edit(lock, "output.weight", type="Q6_K")
    found = cli("check", model, OFFLINE, "--lock", lock, "--update")
    assert found.code == 0
    assert "  lock      output.weight  ggml type Q6_K -> F32" in found.out
    assert f"pinned in {lock}" in found.out
    assert lock.read_bytes() == before


def test_a_mapping_with_problems_is_not_pinned(cli: Cli, stranger: Path, lock: Path, tmp_path: Path) -> None:
    before = lock.read_bytes()
    for path in (lock, tmp_path / "new.json"):
        found = cli("check", stranger, OFFLINE, "--lock", path, "--update")
        assert found.code == 1
        assert f"{path}: not written: the check fails" in found.err
    assert lock.read_bytes() == before and not (tmp_path / "new.json").exists()
    assert cli("check", stranger, OFFLINE, "--lock", lock, "--update", "--fail-on", "missing").code == 0
    assert json.loads(lock.read_text())["tensors"]["stranger"]["role"] == "unmapped"


def test_one_tensor_less_is_one_line_less(cli: Cli, lock: Path, tmp_path: Path) -> None:
    tied = small.write_llama(tmp_path / "b.gguf", tensors=small.llama_tensors(tied=True))
    found = cli("check", tied, OFFLINE, "--lock", lock)
    assert found.code == 1
    assert "  lock      output.weight  gone: F32 48x64 -> lm_head.weight\n" in found.out
    before = lock.read_text().splitlines()
    assert cli("check", tied, OFFLINE, "--lock", lock, "--update").code == 0
    after = lock.read_text().splitlines()
    assert after == [line for line in before if '"output.weight"' not in line]


def test_glm_5_is_a_line_per_tensor(cli: Cli, synthesize: ModuleType, tmp_path: Path) -> None:
    path = synthesize.write(synthesize.MODELS["glm-5"](), tmp_path, 10)[0]
    lock = tmp_path / "l.json"
    assert cli("check", path, OFFLINE, "--lock", lock, "--update").code == 0
    lines = lock.read_text().splitlines()
    assert len(lines) == 1809 + 14
    assert max(map(len, lines)) < 250
    assert sum("experts.{0..255}." in line for line in lines) == 3 * 76
    assert cli("check", path, OFFLINE, "--lock", lock).code == 0


def test_a_lock_pins_the_parameters_of_vllm(cli: Cli, tiny: TinyFactory, tmp_path: Path, without_vllm: Cli) -> None:
    _, model = tiny("qwen3")
    lock = tmp_path / "l.json"
    assert cli("check", model, "--lock", lock, "--update").code == 0
    made = json.loads(lock.read_text())
    jsonschema.validate(made, LOCK)
    version = made["target"]["vllm"]
    assert made["tensors"]["blk.0.attn_q.weight"]["parameters"] == ["model.layers.0.self_attn.qkv_proj.weight[q]"]

    # Another vLLM: its version is no difference, another parameter is.
    made["target"]["vllm"] = "0.1.0"
    made["tensors"]["blk.0.attn_q.weight"]["parameters"] = ["model.layers.0.self_attn.q_proj.weight"]
    lock.write_text(json.dumps(made))
    found = cli("check", model, "--lock", lock)
    assert found.code == 1
    assert (
        "lock      blk.0.attn_q.weight  parameter model.layers.0.self_attn.q_proj.weight"
        " -> model.layers.0.self_attn.qkv_proj.weight[q]" in found.out
    )
    assert f"lock      made with vLLM 0.1.0, this is vLLM {version}" in found.out
    assert "check failed: 1 lock" in found.out

    # Names alone, and a Python that cannot do more.
    offline = cli("check", model, "--lock", lock, OFFLINE)
    assert offline.code == 0
    assert "made with vLLM 0.1.0; parameters are not compared with --offline" in offline.out
    refused = cli("check", model, "--lock", lock, OFFLINE, "--update")
    assert (refused.code, "which --offline would drop" in refused.err) == (2, True)
    absent = without_vllm("check", model, "--lock", lock)
    assert (absent.code, absent.out) == (3, "")
    assert "pins the parameters of vLLM 0.1.0, and vLLM is not installed here" in absent.err


# Formats and files.


@pytest.mark.parametrize("name", ["console", "json", "junit", "sarif", "markdown", "github"])
def test_a_file_is_what_stdout_would_be(
    cli: Cli, stranger: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    shown = cli("check", stranger, OFFLINE, "--format", name)
    assert (shown.code, shown.err) == (1, "")
    path = tmp_path / "out"
    written = cli("check", stranger, OFFLINE, "--format", name, "-o", path)
    assert (written.code, written.out, written.err) == (1, "", "")
    assert path.read_text(encoding="utf-8") == shown.out
    assert "stranger" in shown.out
    assert [x.name for x in tmp_path.iterdir() if x.name.startswith(".")] == []


def test_json_is_the_audit_s_report_and_the_verdict(cli: Cli, stranger: Path) -> None:
    found = cli("check", stranger, OFFLINE, "--format", "json").json
    check_report(found)
    audit = cli("audit", stranger, OFFLINE, "--json").json
    assert {key: value for key, value in found.items() if key != "check"} == audit
    assert found["check"]["fail_on"] == ["unmapped", "missing", "mismatched", "inferred"]


def test_json_says_how_to_serve_it(cli: Cli, model: Path) -> None:
    options = (model, OFFLINE, "--storage", "dense")
    serve = cli("check", *options, "--format", "json").json["serve"]
    assert serve == cli("audit", *options, "--json").json["serve"] == f"ggufmap serve {model} --storage dense"


def test_junit_and_sarif_are_what_they_say(cli: Cli, stranger: Path) -> None:
    root = ET.fromstring(cli("check", stranger, OFFLINE, "--format", "junit").out)
    assert (root.tag, root.get("failures")) == ("testsuites", "1")
    log = cli("check", stranger, OFFLINE, "--format", "sarif").json
    assert [x["ruleId"] for x in log["runs"][0]["results"]] == ["unmapped"]


def test_a_github_job_gets_its_summary(
    cli: Cli, stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    found = cli("check", stranger, OFFLINE, "--format", "github")
    assert found.out.startswith("::error title=ggufmap%3A unmapped::stranger: no row for stranger")
    assert summary.read_text().startswith("before\n### ❌ ggufmap check: `small`")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary.md"))
    again = cli("check", stranger, OFFLINE, "--format", "github")
    assert (again.code, again.out) == (1, found.out)
    assert "GITHUB_STEP_SUMMARY" in again.err and "cannot be written" in again.err


def test_a_file_keeps_its_mode_and_its_link(cli: Cli, model: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real.md", tmp_path / "link.md"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    assert cli("check", model, OFFLINE, "--format", "markdown", "-o", link).code == 0
    assert link.is_symlink() and real.read_text().startswith("### ✅")
    assert real.stat().st_mode & 0o777 == 0o640
    fresh = tmp_path / "fresh.md"
    mask = os.umask(0o027)
    try:
        assert cli("check", model, OFFLINE, "-o", fresh).code == 0
    finally:
        os.umask(mask)
    assert fresh.stat().st_mode & 0o777 == 0o640


# Bad input.


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--fail-on", "unmaped,lock"], "--fail-on: unknown: unmaped, lock", "unmapped, missing, mismatched, phantom"),
        (["--update"], "--update writes a lock file, and none is named", "Name it with --lock FILE."),
        (["--lock", "{tmp}/none.json"], "none.json: no such lock file", "Make it with --update"),
        (["--lock", "{tmp}"], "cannot be read: Is a directory", ""),
        (["--lock", "{model}"], "not a text file", "another file"),
        (["--lock", "{model}", "--update"], "not a text file", "another file"),
        (["--lock", "{tmp}/text.json"], "text.json: not a lock file", "--update"),
        (["--lock", "{tmp}/text.json", "--update"], "text.json: not a lock file", "--update"),
        (["--lock", "{tmp}/none/l.json", "--update"], "l.json: cannot be written", "folder that exists"),
        (["--format", "junit", "-o", "{tmp}/none/r.xml"], "r.xml: cannot be written", "folder that exists"),
        (["--device", "sm_100"], "--offline traces nothing", ""),
        (["--format", "xml"], "'xml' is not one of 'console', 'json'", ""),
    ],
)
def test_bad_options_are_said(
    cli: Cli, model: Path, tmp_path: Path, options: list[str], message: str, hint: str
) -> None:
    (tmp_path / "text.json").write_text("{}, but not quite")
    before = model.read_bytes()
    found = cli("check", model, OFFLINE, *(x.format(tmp=tmp_path, model=model) for x in options))
    assert (found.code, found.out) == (2, "")
    assert message in found.err and hint in found.err and "Traceback" not in found.err
    assert model.read_bytes() == before and (tmp_path / "text.json").read_text() == "{}, but not quite"


def test_a_lock_larger_than_any_is_not_read(cli: Cli, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    found = cli("check", model, OFFLINE, "--lock", path)
    assert (found.code, "larger than 67108864 bytes" in found.err) == (2, True)


def test_a_folder_that_may_not_be_written(cli: Cli) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = small.write_llama(folder / "m.gguf")
        folder.chmod(0o555)
        with without_root():
            found = cli("check", path, OFFLINE, "--format", "markdown", "-o", folder / "out.md")
    assert (found.code, "cannot be written: Permission denied" in found.err) == (2, True)


def test_a_hostile_lock_is_shown_as_text(cli: Cli, model: Path, lock: Path) -> None:
    found = json.loads(lock.read_text())
    found["tensors"]["\x1b[31m[red]../../etc\n::error::"] = {"type": "\x1b]0;x\x07", "shape": [1]}
    lock.write_text(json.dumps(found))
    shown = cli("check", model, OFFLINE, "--lock", lock)
    assert shown.code == 1
    assert "\\x1b[31m[red]../../etc\\n\\x3a:error::  gone: \\x1b]0;x\\x07 1 -> target" in shown.out
    assert "\x1b" not in shown.out


def test_the_reader_may_leave(model: Path) -> None:
    command = f"ggufmap check {model} --offline --format json | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_pipe_is_written_as_it_is(model: Path) -> None:
    command = f"ggufmap check {model} --offline --format github -o /dev/stdout | cat"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("::notice") and done.stderr == ""
