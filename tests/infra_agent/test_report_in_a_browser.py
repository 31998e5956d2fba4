"""The report in a real browser: it shows its headings, draws its chart, fetches nothing, and fits a phone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from infra_agent import report
from tests.infra_agent.test_report import HOSTILE, played

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: Headless, and quiet: every flag that keeps the browser from looking anything up by itself.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the page cannot be looked at")


def seen(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    argv = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)


def test_the_page_is_drawn_and_nothing_in_it_runs(tmp_path: Path) -> None:
    page = report.write(played(tmp_path, goal_text=HOSTILE), tmp_path / "report.html")
    # What a page script would do shows in the document as the browser holds it after loading.
    done = seen(page, tmp_path / "profile", "--dump-dom")
    assert "Hypotheses" in done.stdout
    assert "<svg" in done.stdout
    assert "<script" not in done.stdout
    assert "CONSOLE" not in done.stderr


def test_it_fits_a_narrow_window(tmp_path: Path) -> None:
    page = report.write(played(tmp_path), tmp_path / "report.html")
    picture = tmp_path / "page.png"
    seen(page, tmp_path / "profile", "--window-size=500,900", f"--screenshot={picture}")
    assert picture.stat().st_size > 10_000
