"""How a gate tells its outcome: lines for a terminal, JUnit XML for a CI system, Markdown for a summary."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from infra_agent.gate.checks import Answer, Check, Report

MARKS = {
    Answer.PASS: "✓",
    Answer.FAIL: "✗",
    Answer.INCONCLUSIVE: "~",
    Answer.BROKEN: "!",
    Answer.SKIPPED: "-",
}

#: GitHub refuses a step summary of more than 1 MiB; a line that long helps nobody either.
LONGEST_LINE = 2000


def line(check: Check) -> str:
    """One check as a line."""
    return f"{MARKS[check.answer]} {check.name:<28} {check.line}  ({check.seconds:.1f} s)"


def outcome_line(report: Report) -> str:
    """The outcome as a line."""
    failed = [check.name for check in report.checks if check.answer is Answer.FAIL]
    what = f": {', '.join(failed)}" if failed else ""
    return (
        f"gate {report.outcome}{what} ({report.base[:12]} -> {report.head[:12]}, {len(report.checks)} checks, "
        f"{report.seconds:.0f} s)"
    )


def junit(report: Report) -> str:
    """JUnit XML: one test case a check. Inconclusive counts as an error there, since a skipped test reads as a pass."""
    count = {answer: sum(check.answer is answer for check in report.checks) for answer in Answer}
    suite = ElementTree.Element(
        "testsuite",
        name="infra-agent gate",
        tests=str(len(report.checks)),
        failures=str(count[Answer.FAIL]),
        errors=str(count[Answer.BROKEN] + count[Answer.INCONCLUSIVE]),
        skipped=str(count[Answer.SKIPPED]),
        time=f"{report.seconds:.3f}",
    )
    for check in report.checks:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=check.name, time=f"{check.seconds:.3f}")
        said = _xml_text(check.line)
        if check.answer is Answer.FAIL:
            ElementTree.SubElement(case, "failure", message=said, type="regression").text = said
        elif check.answer in (Answer.BROKEN, Answer.INCONCLUSIVE):
            ElementTree.SubElement(case, "error", message=said, type=check.answer.value).text = said
        elif check.answer is Answer.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=said)
        else:
            ElementTree.SubElement(case, "system-out").text = said
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def markdown(report: Report) -> str:
    """A table with what a reviewer needs; text from the target is shown as code, so it cannot be markup."""
    title = {"pass": "passes", "regression": "finds a regression", "broken": "could not be run"}.get(
        report.outcome, "is inconclusive"
    )
    rows = [
        f"| {MARKS[check.answer]} {check.answer.value} | {check.name} | {_code(check.line)} | {check.seconds:.1f} |"
        for check in report.checks
    ]
    return "\n".join(
        [
            f"### The gate {title}",
            "",
            f"`{report.base[:12]}` → `{report.head[:12]}`, {len(report.checks)} checks in {report.seconds:.0f} s",
            "",
            "| | check | found | seconds |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _code(text: str) -> str:
    text = " ".join(text.split())[:LONGEST_LINE].replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _xml_text(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return "".join(c if _in_xml(c) else "?" for c in text)


def _in_xml(c: str) -> bool:
    return c in "\t\n" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
