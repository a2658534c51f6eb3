"""Lines and branches that the tests ran, from the `.coverage` that `make coverage` leaves behind.

    python benchmarks/coverage_figures.py --files 20

Prints the two shares, and the files with most branches that no test took.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import coverage


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=20, help="files to name")
    arguments = parser.parse_args()
    report = _report()
    print(_shares("all", report["totals"]))
    files = sorted(
        report["files"].items(), key=lambda item: -item[1]["summary"]["missing_branches"]
    )
    for name, file in files[: arguments.files]:
        print(_shares(name, file["summary"]))


def _report() -> dict[str, Any]:
    measured = coverage.Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        measured.json_report(outfile=str(path))
        return json.loads(path.read_text(encoding="utf-8"))


def _shares(name: str, counts: dict[str, int]) -> str:
    return f"{name}: {_share('lines', 'covered_lines', 'num_statements', counts)}; " + _share(
        "branches", "covered_branches", "num_branches", counts
    )


def _share(what: str, covered: str, total: str, counts: dict[str, int]) -> str:
    share = counts[covered] / max(counts[total], 1)
    return f"{what} {counts[covered]} of {counts[total]}, {share:.1%}"


if __name__ == "__main__":
    main()
