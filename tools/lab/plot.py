"""Plots as SVG, written out: points and lines on two axes, and a legend."""

import dataclasses
import html
import math

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf",
           "#7f7f7f", "#bcbd22", "#000000", "#aa3377")
WIDTH, HEIGHT = 820, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 270, 30, 50


@dataclasses.dataclass
class Series:
    """A named line through points (x, y)."""
    name: str
    points: list[tuple[float, float]]


@dataclasses.dataclass
class Axis:
    """An axis: its label, whether it is logarithmic, and what its ticks look like."""
    label: str
    log: bool = False
    form: str = "{:g}"


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if log:
        found = [m * 10.0 ** e for e in range(math.floor(math.log10(low)) - 1,
                                              math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)]
        return [x for x in found if low * 0.999 <= x <= high * 1.001]
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-12)))
    for divisor in (5, 2, 1):
        if (high - low) / (step / divisor) <= 8:
            step /= divisor
            break
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step) + 1)]


class _Scale:
    """Maps values to pixels."""

    def __init__(self, values: list[float], axis: Axis, begin: float, end: float):
        self._log = axis.log
        low, high = min(values), max(values)
        if axis.log:
            low, high = low / 1.15, high * 1.15
        else:
            room = (high - low or abs(high) or 1.0) * 0.06
            low, high = low - room, high + room
        self.ticks = _ticks(low, high, axis.log)
        self._low, self._high = self._place(low), self._place(high)
        self._begin, self._end = begin, end

    def _place(self, value):
        return math.log10(value) if self._log else value

    def __call__(self, value: float) -> float:
        share = (self._place(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)


def svg(title: str, series: list[Series], x: Axis, y: Axis) -> str:
    """Returns a plot as the text of an SVG file. Raises ValueError without points."""
    points = [p for one in series for p in one.points]
    if not points:
        raise ValueError(f"nothing to draw in {title!r}")
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    to_x = _Scale([p[0] for p in points], x, LEFT, right)
    to_y = _Scale([p[1] for p in points], y, bottom, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           _text(LEFT, 18, title, weight="bold")]
    for tick in to_x.ticks:
        at = to_x(tick)
        out += [_line(at, TOP, at, bottom), _text(at, bottom + 16, x.form.format(tick), "middle")]
    for tick in to_y.ticks:
        at = to_y(tick)
        out += [_line(LEFT, at, right, at), _text(LEFT - 6, at + 4, y.form.format(tick), "end")]
    out += [_text((LEFT + right) / 2, HEIGHT - 12, x.label, "middle"),
            f'<g transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)">'
            + _text(0, 0, y.label, "middle") + "</g>"]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [(to_x(a), to_y(b)) for a, b in one.points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        dash = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                   f'stroke-width="1.6"{dash}/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places]
        row = TOP + 10 + 18 * number
        out += [f'<circle cx="{right + 16}" cy="{row - 4}" r="4" fill="{colour}"/>',
                _text(right + 26, row, one.name)]
    return "\n".join(out + ["</svg>"]) + "\n"


def _line(x1, y1, x2, y2):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            'stroke="#dddddd"/>')


def _text(x, y, content, anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
            f'{html.escape(content)}</text>')
