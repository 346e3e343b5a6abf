"""The opening of a report as HTML, which notebooks show for a run."""

from __future__ import annotations

import base64

import jinja2

from commbench.analysis.run import Run
from commbench.reports.figures import first_drawn
from commbench.reports.html import page_opening
from commbench.reports.sections import heading, printable
from commbench.reports.sentences import details

_TEMPLATE = """\
<div style="max-width: 50em">
<b>{{ heading }}</b>
{% for part in opening %}
{% if part is string %}
<p style="white-space: pre-line">{{ part }}</p>
{% else %}
<p><b>{{ part.title }}</b></p>
<table>
<tr>{% for title in part.titles %}<th>{{ title }}</th>{% endfor %}</tr>
{% for row in part.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table>
{% if part.note %}
<p>{{ part.note }}</p>
{% endif %}
{% endif %}
{% if loop.first and figure %}
<img src="data:image/png;base64,{{ image }}" alt="{{ figure.words }}" style="width: 100%">
{% endif %}
{% else %}
<p>No launch has ended well.</p>
{% endfor %}
{% for paragraph in findings %}
{% if loop.first %}
<details>
<summary>All findings, with evidence</summary>
{% endif %}
<p style="white-space: pre-line; overflow-wrap: anywhere">{{ paragraph }}</p>
{% if loop.last %}
</details>
{% endif %}
{% endfor %}
</div>
"""


def render(run: Run) -> str:
    """Return the heading, the verdict, the first figure, the rest of the opening, and findings."""
    figure = first_drawn(run)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, finalize=lambda value: printable(str(value))
    )
    return environment.from_string(_TEMPLATE).render(
        heading=heading(run),
        opening=page_opening(figure, run),
        findings=details(run) if run.findings else (),
        figure=figure,
        image=base64.b64encode(figure.png).decode() if figure else "",
    )
