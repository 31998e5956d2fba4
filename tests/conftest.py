"""Shared fixtures: one tiny random Llama for the whole session, a private home, and a bounded hypothesis profile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two cores are shared by everything that a test starts: no deadline, since a slow example is not a wrong one.
# The examples are the same in every run, so that a merge is judged by what it changed; `make fuzz` draws fresh ones.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("fuzz", settings.get_profile("default"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a two-layer random Llama (config.json, model.safetensors, tokenizer.json)."""
    from tests.tiny_model import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def trusted_root() -> Path:
    """The directory that holds the installed `target_engine` package."""
    import importlib.util

    spec = importlib.util.find_spec("target_engine")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).parent


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs and learnt skeletons of a test never reach the user's own."""
    home = tmp_path / "infra-agent-home"
    monkeypatch.setenv("INFRA_AGENT_HOME", str(home))
    return home
