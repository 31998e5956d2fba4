"""Other processes are seen, this one and the timed workers are not.

And quotas are read where control groups set them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feedback.load import disturbance
from feedback.load.disturbance import CpuMeter, CpuReading, process_cpu_seconds

SPIN = "import time\nend = time.time() + 20\nwhile time.time() < end:\n    pass\n"


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class TestMeter:
    def test_own_work_is_ours_and_a_child_is_another_unless_named(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", SPIN])
        try:
            while process_cpu_seconds(child.pid) < 0.05:
                time.sleep(0.01)
            stranger, worker = CpuMeter(()), CpuMeter((child.pid,))
            before = stranger.read(), worker.read()
            spin(0.4)
            after = stranger.read(), worker.read()
        finally:
            child.kill()
            child.wait()
        # Others may run here too, so only the child's own part is certain.
        used = worker.used(before[1], after[1], (child.pid,))
        assert used > 0.05
        share = stranger.other_share(before[0], after[0])
        assert share >= 0.8 * used / ((after[0].at - before[0].at) * stranger.capacity) or stranger.blind
        assert worker.other_share(before[1], after[1]) < share or share == 1.0
        assert worker.used(before[1], after[1], (os.getpid(),)) > 0.05

    def test_a_gone_process_has_used_nothing_more(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "pass"])
        child.wait()
        assert process_cpu_seconds(child.pid) == 0.0

    def test_ticks_are_rounding_and_steal_is_not_ours(self) -> None:
        """/proc/stat alone: one or two ticks too many are not a disturbance, twenty are."""
        meter = CpuMeter(())
        meter.capacity, meter._use_stat, meter.blind = 2.0, True, None
        start = CpuReading(0.0, 100.0, {os.getpid(): 5.0}, {})
        assert meter.other_share(start, CpuReading(0.15, 100.17, {os.getpid(): 5.15}, {})) < 1e-9
        assert meter.other_share(start, CpuReading(0.15, 100.35, {os.getpid(): 5.15}, {})) == pytest.approx(0.6)

    def test_process_clocks_count_from_the_first_sight(self) -> None:
        meter = CpuMeter(())
        meter.capacity, meter._use_stat, meter.blind = 2.0, False, None
        start = CpuReading(0.0, 0.0, {}, {7: 50.0})
        end = CpuReading(0.1, 0.0, {}, {7: 50.05, 8: 900.0})  # 8 is new: how much of it is new is unknown
        assert meter.other_share(start, end) == pytest.approx(0.25)

    def test_a_blind_meter_says_so_and_accuses_nobody(self) -> None:
        meter = CpuMeter(())
        meter.blind = "cannot see other processes: no /proc"
        assert meter.other_share(CpuReading(0.0, 0.0, {}, {}), CpuReading(1.0, 9.0, {}, {})) == 0.0


class TestQuota:
    def test_two_numbers_are_a_quota_and_max_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.max").write_text("150000 100000\n")
        assert disturbance._numbers(tmp_path / "cpu.max") == 1.5
        (tmp_path / "cpu.max").write_text("max 100000\n")
        assert disturbance._numbers(tmp_path / "cpu.max") is None
        (tmp_path / "quota").write_text("-1\n")
        (tmp_path / "period").write_text("100000\n")
        assert disturbance._numbers(tmp_path / "quota", tmp_path / "period") is None
        assert disturbance._numbers(tmp_path / "nowhere") is None

    def test_a_group_above_may_set_it(self) -> None:
        found = disturbance._upwards(Path("/g"), "/a/b")
        assert found == [Path("/g/a/b"), Path("/g/a"), Path("/g")]
