"""Draws batches on a device as SVG: a row for each batch, a bar for each of its stages, time from left to right."""

import html

BATCH_MAX = 24
# Stage, and its colour in light and in dark surroundings.
COLOURS = (("copy in", "#3b7dd8", "#6ea8ff"), ("kernels", "#2e9e5b", "#5fd38d"), ("copy out", "#d9822b", "#ffb066"))
WIDTH, LEFT, TOP, ROW, GAP = 960, 70, 64, 16, 4


def scale_of(length):
    """A step for the ruler, of 1, 2 or 5 times a power of ten us, that comes ten times at most."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if length / step <= 10:
                return step
        power *= 10


def draw(title, batches):
    """`batches` are their stages' borders in ns: begin, kernels, copy out, end. The first of them are drawn, sorted by begin."""
    batches = sorted(batches)[:BATCH_MAX]
    first = batches[0][0]
    length = max(stages[3] for stages in batches) - first

    def at(ns):
        return LEFT + (ns - first) / max(length, 1) * (WIDTH - LEFT - 20)

    height = TOP + len(batches) * (ROW + GAP) + 16
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
             f"<title>{html.escape(title)}</title>",
             "<style>text{font:12px sans-serif;fill:#222}.ruler{stroke:#bbb}.page{fill:#fff}"
             + "".join(f".stage{number}{{fill:{light}}}" for number, (_, light, _) in enumerate(COLOURS))
             + "@media(prefers-color-scheme:dark){text{fill:#ddd}.ruler{stroke:#555}.page{fill:#161616}"
             + "".join(f".stage{number}{{fill:{dark}}}" for number, (_, _, dark) in enumerate(COLOURS)) + "}</style>",
             f'<rect class="page" width="{WIDTH}" height="{height}"/>', f'<text x="10" y="18" font-weight="bold">{html.escape(title)}</text>']
    for number, (name, _, _) in enumerate(COLOURS):
        x = WIDTH - 300 + number * 95
        parts.append(f'<rect class="stage{number}" x="{x}" y="8" width="12" height="12"/><text x="{x + 17}" y="18">{name}</text>')
    step, mark = scale_of(length / 1000), 0
    while mark <= length / 1000:
        x = at(first + mark * 1000)
        parts.append(f'<line class="ruler" x1="{x:.1f}" y1="{TOP - 16}" x2="{x:.1f}" y2="{height - 10}"/>'
                     f'<text x="{x + 3:.1f}" y="{TOP - 20}">{mark:g} us</text>')
        mark += step
    for row, stages in enumerate(batches):
        y = TOP + row * (ROW + GAP)
        parts.append(f'<text x="10" y="{y + 12}">batch {row + 1}</text>')
        for number, (start, stop) in enumerate(zip(stages, stages[1:])):
            parts.append(f'<rect class="stage{number}" x="{at(start):.1f}" y="{y}" width="{max(at(stop) - at(start), 0):.1f}" height="{ROW}">'
                         f"<title>{COLOURS[number][0]}: {(stop - start) / 1000:.0f} us</title></rect>")
    parts.append("</svg>\n")
    return "\n".join(parts)
