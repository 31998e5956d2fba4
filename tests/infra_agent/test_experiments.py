"""Experiments are found by their folder, and leave a table, a picture and JSON behind."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from feedback.errors import UserError
from infra_agent import experiments
from infra_agent.experiments import Result, discover, execute, find, table
from infra_agent.ledger import Ledger
from infra_agent.summary import summary
from tests.infra_agent.worlds import play, typical

SOURCE = '''"""Does two follow one?

More words that the list does not show.
"""

from infra_agent.experiments import Context, Result
from infra_agent.report.charts import Bar, bars


def run(context: Context) -> Result:
    context.say("counting")
    rows = (("one", 1.0, None), ("two & <three>", 2.5, 3))
    chart = bars([Bar(name, value) for name, value, _ in rows], "numbers")
    return Result(("name", "value", "note"), rows, chart, ("seed " + str(context.seed),), {"two follows one": True},
                  {"half": context.option("half", "0.5")})
'''


def write(folder: Path, source: str = SOURCE) -> Path:
    folder.mkdir(parents=True)
    (folder / "experiment.py").write_text(source)
    return folder


def test_an_experiment_is_found_by_its_folder_without_being_imported(tmp_path: Path) -> None:
    write(tmp_path / "counting")
    write(tmp_path / "broken", '"""Asks nothing?"""\nraise SystemExit(1)\n')
    (tmp_path / "no_experiment").mkdir()
    found = discover(tmp_path)
    assert [(each.name, each.question) for each in found] == [
        ("broken", "Asks nothing?"),
        ("counting", "Does two follow one?"),
    ]


def test_the_shipped_ones_ask_a_question() -> None:
    shipped = discover()
    assert "evolution" in [each.name for each in shipped]
    for each in shipped:
        assert each.question.endswith("?"), f"{each.name}: {each.question}"
        assert find(each.name) == each


def test_running_one_leaves_table_picture_and_json(tmp_path: Path) -> None:
    said: list[str] = []
    found = find(str(write(tmp_path / "counting")))
    result, folder = execute(found, tmp_path / "out", said.append, seed=3, options={"half": "0.25"})
    assert said == ["counting"]
    assert folder == tmp_path / "out"
    told = json.loads((folder / "result.json").read_text())
    assert told["rows"][1] == {"name": "two & <three>", "value": 2.5, "note": 3}
    assert told["data"] == {"half": "0.25"}
    assert told["claims"] == {"two follows one": True}
    text = (folder / "table.txt").read_text()
    assert text == table(result)
    assert "holds: two follows one" in text
    assert "seed 3" in text
    ElementTree.parse(folder / "picture.svg")


def test_the_command_prints_the_table_or_json_and_fails_with_a_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(write(tmp_path / "good"))
    assert experiments.run_experiment(good, out=tmp_path / "out") == 0
    assert "two & <three>" in capsys.readouterr().out
    assert experiments.run_experiment(good, as_json=True, out=tmp_path / "out") == 0
    assert json.loads(capsys.readouterr().out)["experiment"] == "good"
    bad = str(write(tmp_path / "bad", SOURCE.replace('"two follows one": True', '"two follows one": False')))
    assert experiments.run_experiment(bad, out=tmp_path / "out") == 1
    assert "FAILS: two follows one" in capsys.readouterr().out


def test_without_out_every_run_gets_a_folder_of_its_own(tmp_path: Path, private_home: Path) -> None:
    found = find(str(write(tmp_path / "counting")))
    folders = {execute(found, None, lambda line: None)[1] for _ in range(3)}
    assert len(folders) == 3
    assert all(folder.is_relative_to(private_home) for folder in folders)


def test_numbers_are_aligned_and_absent_ones_are_a_dash() -> None:
    text = table(Result(("name", "value"), (("a", 1.0), ("bb", None), ("c", 123.456))))
    assert text.splitlines() == ["name  value", "----  -----", "a         1", "bb        -", "c     123.5"]


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells under 1 columns"):
        Result(("name",), (("a", 1),))


@pytest.mark.parametrize(
    ("name", "words"),
    [("evolutoin", "did you mean 'evolution'"), ("./nowhere", "there is no experiment in nowhere")],
)
def test_an_unknown_one_is_one_clear_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find(name)


@pytest.mark.parametrize(
    ("source", "words"),
    [('"""What?"""\n', "defines no run"), ('"""What?"""\n\n\ndef run(context):\n    return 1\n', "returned int")],
)
def test_a_wrong_experiment_is_one_clear_line(source: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        execute(find(str(write(tmp_path / "wrong", source))), tmp_path / "out")


def test_an_output_folder_under_a_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = find(str(write(tmp_path / "wrong", '"""What?"""\nraise AssertionError("ran")\n')))
    with pytest.raises(UserError, match="is a file"):
        execute(found, tmp_path / "file" / "out")


def test_listing_stays_light() -> None:
    code = (
        "import sys; from infra_agent import experiments; experiments.discover();"
        "heavy = {'torch', 'plotly', 'libcst', 'git', 'pandas', 'target_engine'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert experiments.shipped_folder().is_dir()


def test_the_evolution_of_a_run_is_told_move_by_move_with_its_references(tmp_path: Path) -> None:
    from experiments.evolution.experiment import COLUMNS, notes, rows

    play(typical(), tmp_path / "ledger")
    with Ledger.read(tmp_path / "ledger") as ledger:
        told = summary(ledger.rows())
    found = [dict(zip(COLUMNS, row, strict=True)) for row in rows(told)]
    kept = [row for row in found if row["decision"] == "keep"]
    assert [row["best_over_start"] for row in kept] == sorted(row["best_over_start"] for row in kept)
    assert kept[-1]["best_over_start"] == pytest.approx(1.7 * 1.5 * 1.3 * 1.12, rel=0.05)
    assert {row["step"] for row in found if row["kind"] == "final"} == {
        "best against start",
        "best against start (held out)",
        "best against par",
        "best against sequential",
    }
    assert any("9 candidates" in line for line in notes(told))
