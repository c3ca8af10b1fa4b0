"""Draws curves as SVG: panels one below another with a common horizontal axis, each with its own vertical one, linear or logarithmic."""

import collections
import html
import math

# `series` are (name, points); `marks` are (height, what it says) of horizontal lines.
Panel = collections.namedtuple("Panel", "label series is_log marks", defaults=(False, ()))
# Each curve's colour in light and in dark surroundings; the sixth curve begins anew, dashed.
COLOURS = (("#3b7dd8", "#6ea8ff"), ("#2e9e5b", "#5fd38d"), ("#d9822b", "#ffb066"), ("#b3436b", "#ff8fb5"), ("#6b52c8", "#b09cff"))
WIDTH, LEFT, RIGHT, TOP, PANEL, GAP, LEGEND = 960, 70, 20, 40, 260, 50, 18


def steps(least, most):
    """Round numbers between the two, four to ten of them."""
    span = max(most - least, 1e-9)
    step = 10 ** math.floor(math.log10(span))
    while span / step > 8:
        step *= 2 if f"{step:e}"[0] != "2" else 2.5
    while span / step < 4:
        step /= 2 if f"{step:e}"[0] != "5" else 2.5
    first = math.ceil(least / step - 1e-9)
    return [number * step for number in range(first, math.floor(most / step + 1e-9) + 1)]


def decades(least, most):
    """1, 2 and 5 times powers of ten between the two."""
    found = [factor * 10.0 ** power for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1) for factor in (1, 2, 5)]
    return [value for value in found if least <= value <= most]


def said(value):
    return f"{value:.10g}" if value < 10_000 else f"{value:,.0f}"


def bounds(panel):
    heights = [y for _, points in panel.series for _, y in points] + [height for height, _ in panel.marks]
    if panel.is_log:
        least = max(min((height for height in heights if height > 0), default=1), 1e-9)
        return least / 1.2, max(max(heights, default=1), least) * 1.2
    return 0, max(max(heights, default=1), 1e-9) * 1.1


def draw_panel(panel, top, across):
    """The elements of one panel whose upper edge is at `top`; `across` places a point's x."""
    least, most = bounds(panel)

    def at(height):
        share = math.log(height / least) / math.log(most / least) if panel.is_log else height / most
        return top + PANEL * (1 - share)

    parts = [f'<text x="10" y="{top - 8}" font-weight="bold">{html.escape(panel.label)}</text>']
    for height in (decades if panel.is_log else steps)(least, most):
        parts.append(f'<line class="ruler" x1="{LEFT}" y1="{at(height):.1f}" x2="{WIDTH - RIGHT}" y2="{at(height):.1f}"/>'
                     f'<text x="{LEFT - 6}" y="{at(height) + 4:.1f}" text-anchor="end">{said(height)}</text>')
    for height, text in panel.marks:
        parts.append(f'<line class="mark" x1="{LEFT}" y1="{at(height):.1f}" x2="{WIDTH - RIGHT}" y2="{at(height):.1f}"/>'
                     f'<text x="{WIDTH - RIGHT - 4}" y="{at(height) - 4:.1f}" text-anchor="end">{html.escape(text)}</text>')
    for number, (name, points) in enumerate(panel.series):
        points = [(x, y) for x, y in points if y > 0 or not panel.is_log]
        line = " ".join(f"{across(x):.1f},{at(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="6 4"' if number >= len(COLOURS) else ""
        parts.append(f'<polyline class="curve{number % len(COLOURS)}"{dash} points="{line}"><title>{html.escape(name)}</title></polyline>')
        x, y = LEFT + number % 4 * 220, top + PANEL + GAP - 16 + number // 4 * LEGEND
        parts.append(f'<line class="curve{number % len(COLOURS)}"{dash} x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}"/>'
                     f'<text x="{x + 30}" y="{y}">{html.escape(name)}</text>')
    return parts


def draw(title, x_label, panels):
    """The text of the drawing."""
    points = [x for panel in panels for _, series in panel.series for x, _ in series]
    first, last = min(points, default=0), max(points, default=1)

    def across(x):
        return LEFT + (x - first) / max(last - first, 1e-9) * (WIDTH - LEFT - RIGHT)

    tops, height = [], TOP + 24
    for panel in panels:
        tops.append(height)
        height += PANEL + GAP + LEGEND * math.ceil(len(panel.series) / 4) + 16
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
             f"<title>{html.escape(title)}</title>",
             "<style>text{font:12px sans-serif;fill:#222}.ruler{stroke:#ddd}.mark{stroke:#999;stroke-dasharray:2 3}.page{fill:#fff}"
             "polyline{fill:none;stroke-width:1.6}"
             + "".join(f".curve{number}{{stroke:{light}}}" for number, (light, _) in enumerate(COLOURS))
             + "@media(prefers-color-scheme:dark){text{fill:#ddd}.ruler{stroke:#333}.page{fill:#161616}"
             + "".join(f".curve{number}{{stroke:{dark}}}" for number, (_, dark) in enumerate(COLOURS)) + "}</style>",
             f'<rect class="page" width="{WIDTH}" height="{height}"/>', f'<text x="10" y="20" font-weight="bold">{html.escape(title)}</text>']
    for panel, top in zip(panels, tops):
        parts += draw_panel(panel, top, across)
        for x in steps(first, last):
            parts.append(f'<text x="{across(x):.1f}" y="{top + PANEL + 16}" text-anchor="middle">{said(x)}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{top - 8}" text-anchor="end">{html.escape(x_label)}</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)
