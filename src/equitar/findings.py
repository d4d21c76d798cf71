"""What should a person look at before training? All findings about a report."""

from __future__ import annotations

from equitar.class_findings import class_findings
from equitar.epoch_report import Report
from equitar.finding import LEVELS, Finding
from equitar.plan_findings import plan_findings


def findings_of(report: Report) -> list[Finding]:
    """Return what should be looked at, the worst first."""
    return sorted([*plan_findings(report), *class_findings(report)], key=lambda one: LEVELS.index(one.level))
