"""What was found as a table of Markdown, and as one HTML page without scripts and without anything from elsewhere."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from leasekit.core.measures import shown_figure
from leasekit.emulation.papers.claims import HOLDS

COLUMNS: Final = ("where", "figure", "theirs", "expected", "ours", "verdict")
PICTURE_MAX: Final = 400_000
"""Bytes of a picture up to which it is part of the page; larger ones are beside it."""
STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top; }
td:first-child { min-width: 4.5rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.holds { color: #1a7f37; } .differs { color: #c62828; } .open { color: #a86500; }
@media (prefers-color-scheme: dark) {
  .holds { color: #5fd07c; } .differs { color: #ff8a80; } .open { color: #ffc266; }
}
img { max-width: 100%; background: #fff; margin: .5rem 0; }
small, .why { opacity: .8; }
nav ul { columns: 2; }
"""


def ours(claim: Mapping[str, Any]) -> str:
    """What was found, with the half of its 95% interval and the number of seeds, where there are several."""
    found = shown_figure(claim["found"], 4)
    if claim["low"] is None:
        return found
    return f"{found} ± {shown_figure((claim['high'] - claim['low']) / 2, 2)} ({claim['seeds']})"


def counted(results: Sequence[Mapping[str, Any]]) -> str:
    """How many claims came to which verdict, in words."""
    counts = Counter(claim["verdict"] for result in results for claim in result["claims"])
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "nothing was run"


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The claims of one experiment, as cells in the order of :data:`COLUMNS`."""
    return [
        (claim["where"], claim["figure"], claim["theirs"], claim["expected"], ours(claim), claim["verdict"])
        for claim in result["claims"]
    ]


def markdown(result: Mapping[str, Any]) -> str:
    """The section of one experiment."""
    lines = [f"### {result['name']}", "", _sentence(result), ""]
    if result["claims"]:
        lines += [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join(['---'] * len(COLUMNS))} |"]
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows(result)]
        lines.append("")
    notes = list(_notes(result))
    return "\n".join([*lines, *(f"- **{head}:** {text}" for head, text in notes), *([""] if notes else [])])


def _sentence(result: Mapping[str, Any]) -> str:
    source = f"{result['paper']}. " if result["paper"] else "Our own, without a criterion. "
    return f"{result['what']} {source}{'Quick share' if result['quick'] else 'Full share'}: {result['share']}."


def _notes(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for reason, figures in _reasons(result).items():
        yield f"Why {', '.join(figures)} differ" + ("s" if len(figures) == 1 else ""), reason
    for text in result["stand_ins"]:
        yield "In place of theirs", text
    for where, text in result["left_out"].items():
        yield f"Not repeated, {where}", text
    if "error" in result:
        yield "Not run", result["error"]


def _reasons(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """The figures that a reason speaks of; nothing needs one that is as the paper has it."""
    found: dict[str, list[str]] = {}
    for claim in result["claims"]:
        if claim["why"] and claim["verdict"] != HOLDS:
            found.setdefault(claim["why"], []).append(claim["figure"])
    return found


def html(results: Sequence[Mapping[str, Any]], out: Path) -> str:
    """The page of all experiments, whose pictures are in a folder of each below ``out``."""
    links = "".join(f'<li><a href="#{_id(one)}">{escape(one["name"])}</a></li>' for one in results)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>leasekit: experiments of papers</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"<h1>Experiments of papers, repeated</h1><p>Of all claims: {counted(results)}. <em>Holds</em>: the mean over "
        "seeds meets the criterion, which was written down before the run; where that is a direction, all of its 95% "
        "interval does. <em>Open</em>: the interval lies across the criterion. <em>Shown</em>: there is no criterion. "
        f"Behind ± is half of that interval, and in brackets how many seeds there were.</p><nav><ul>{links}</ul></nav>"
        + "".join(_section(one, out) for one in results)
        + "</body></html>\n"
    )


def _id(result: Mapping[str, Any]) -> str:
    return escape(result["name"], quote=True)


def _section(result: Mapping[str, Any], out: Path) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
    body = "".join(_row(row) for row in rows(result))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
    notes = "".join(f"<li><strong>{escape(head)}:</strong> {escape(text)}</li>" for head, text in _notes(result))
    pictures = "".join(_picture(out, result["name"], name) for name in result["pictures"])
    return (
        f'<section id="{_id(result)}"><h2>{escape(result["name"])}</h2><p>{escape(_sentence(result))}</p>{table}'
        f'<ul class="why">{notes}</ul>{pictures}</section>'
    )


def _row(row: Sequence[str]) -> str:
    *texts, found, verdict = map(escape, row)
    cells = "".join(f"<td>{text}</td>" for text in texts)
    return f'<tr>{cells}<td class="number">{found}</td><td class="{verdict}">{verdict}</td></tr>'


def _picture(out: Path, folder: str, name: str) -> str:
    content = (out / folder / name).read_bytes()
    source = f"{folder}/{name}"
    if len(content) <= PICTURE_MAX:
        source = f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"
    title = escape(f"{folder}: {Path(name).stem}", quote=True)
    return f'<figure><img src="{source}" alt="{title}" loading="lazy"><figcaption>{title}</figcaption></figure>'
