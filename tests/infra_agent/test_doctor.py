"""`doctor`: what is there, what a lack costs, and when that is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra_agent import doctor
from infra_agent.cli import main


def test_every_need_is_examined_and_every_lack_has_a_cost() -> None:
    checks = doctor.examine()
    assert [check.name for check in checks] == [
        "Python", "torch", "triton", "GPU", "C compiler", "Sandbox", "git", "Weights", "LLM key", "CPU cores", "Memory",
        "Disk",
    ]  # fmt: skip
    assert all(check.cost for check in checks if check.state != "ok")


def test_no_compiler_and_no_git_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert doctor.compiler().state == "missing"
    assert doctor.git().state == "missing"
    assert doctor.gpu().state == "absent"


def test_a_compiler_that_does_not_compile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho cc 1.0\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", str(broken))
    check = doctor.compiler()
    assert check.state == "missing"
    assert "cannot make a shared library" in check.found


def test_the_key_is_seen_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in doctor.LLM_KEYS:
        monkeypatch.delenv(name, raising=False)
    assert doctor.llm_key().state == "absent"
    monkeypatch.setenv("OPENAI_API_KEY", "a-value-for-this-test")
    assert doctor.llm_key() == doctor.Check("LLM key", "ok", "OPENAI_API_KEY")


def test_weights_are_looked_for_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "fetch-model" in doctor.weights().cost
    file = tmp_path / "infra-agent/models/abc/some.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 2**20)
    assert doctor.weights().found == "some.gguf (1 MiB)"


def test_a_home_that_cannot_be_made_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / "file/home"))
    check = doctor.disk()
    assert check.state == "missing"
    assert "is a file" in check.found


def test_an_absent_package() -> None:
    assert doctor.package("no-such-distribution", "missing", "cost").state == "missing"
    assert doctor.package("pytest", "missing", "cost").state == "ok"


def test_the_command_tells_and_exits_accordingly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert {check["state"] for check in told["checks"]} <= {"ok", "absent"}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert "install gcc or clang" in out
    assert err == "infra-agent: missing: C compiler, git\n"
