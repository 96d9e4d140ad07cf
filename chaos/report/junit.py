"""``junit.xml``: one test case a check, so that any CI shows which one failed, and one for the verdict itself.

A check that fails is a ``failure``, one that is inconclusive is ``skipped``. As CI systems take a file of skipped
cases for green, the case ``verdict`` of an inconclusive run is an ``error``: what could not be shown is never a pass.
"""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from chaos.checks import Check
from chaos.report.story import conclusion
from chaos.text import clean
from chaos.verdict import Verdict


def _case(suite: ET.Element, group: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=clean(group), name=clean(name), time="0")


def _told(case: ET.Element, kind: str, message: str, status: str) -> None:
    attributes = (
        {"message": clean(message)} if kind == "skipped" else {"message": clean(message), "type": status}
    )
    ET.SubElement(case, kind, attributes).text = clean(message)


def _check(suite: ET.Element, experiment: str, check: Check) -> None:
    case = _case(suite, f"{experiment}.{check.arm or 'run'}", check.name)
    if check.crashed:
        _told(case, "error", check.summary, "crashed")
    elif check.status == "fail":
        _told(case, "failure", check.summary, "fail")
    elif check.status == "inconclusive":
        _told(case, "skipped", f"inconclusive: {check.summary}", "inconclusive")
    else:
        ET.SubElement(case, "system-out").text = clean(check.summary)


def junit(verdict: Verdict) -> bytes:
    """Return the XML document, UTF-8."""
    evidence = verdict.evidence
    name = evidence.experiment.name if evidence else "unknown"
    suite = ET.Element("testsuite", name=clean(f"brownout.{name}"))
    if verdict.run:
        started = datetime.fromtimestamp(verdict.run.started_at, UTC)
        suite.set("timestamp", started.strftime("%Y-%m-%dT%H:%M:%S"))
        properties = ET.SubElement(suite, "properties")
        facts = {
            "seed": verdict.run.seed,
            "substrate": verdict.run.substrate,
            "without": ",".join(verdict.run.without),
        }
        for key, value in facts.items():
            ET.SubElement(properties, "property", name=key, value=clean(str(value)))
    whole = _case(suite, f"{name}.run", "verdict")
    if verdict.status == "pass":
        ET.SubElement(whole, "system-out").text = clean(conclusion(verdict))
    else:
        _told(whole, "failure" if verdict.status == "fail" else "error", conclusion(verdict), verdict.status)
    for check in verdict.checks:
        _check(suite, name, check)
    cases = suite.findall("testcase")
    for kind, counter in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(counter, str(sum(case.find(kind) is not None for case in cases)))
    suite.set("tests", str(len(cases)))
    suite.set("time", "0")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document
