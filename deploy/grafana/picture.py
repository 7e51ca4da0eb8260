"""Draws a dashboard and the answers to its queries as an SVG, so that a README can show it without a Grafana."""
import html
import json
import math
import re
import time

COLUMN, UNIT, GAP, MARGIN, HEADER = 66, 38, 8, 12, 44
BACKGROUND, PANEL, BORDER, TEXT, MUTED, GRID = (
    "#111217", "#181b1f", "#25282e", "#d2d3de", "#8e909e", "#2a2d34")
PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#8f8bd8",
           "#37872d", "#fade2a", "#447ebc", "#c15c17")
NAMED = {"green": "#56a64b", "yellow": "#d8a200", "red": "#d44a5c", "blue": "#3f6ec7", "orange": "#ff780a",
         "purple": "#b877d9", "text": "#9a9ca8", "transparent": "none"}
FONT = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


def collect(dashboard, query):
    """Returns {panel id: [[name, [[time, value]]]]}. `query` takes an expression and returns
    [(labels, [(time, value)])]."""
    results = {}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            for labels, points in query(target["expr"]):
                name = re.sub(r"{{(\w+)}}", lambda match: labels.get(match.group(1), ""),
                              target["legendFormat"])
                results.setdefault(str(panel["id"]), []).append([name, [list(point) for point in points]])
    return results


def number(value, digits=3):
    """At most `digits` digits, without an exponent."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def scaled(value, factor, names):
    index = 0
    while abs(value) >= factor and index + 1 < len(names):
        value, index = value / factor, index + 1
    return f"{number(value)}{names[index]}"


def shown(value, unit):
    if unit == "s":
        if value and abs(value) < 1e-3:
            return f"{number(value * 1e6)} µs"
        if value and abs(value) < 1:
            return f"{number(value * 1e3)} ms"
        for seconds, name in ((86400, "days"), (3600, "h"), (60, "min")):
            if abs(value) >= 2 * seconds:
                return f"{number(value / seconds)} {name}"
        return f"{number(value)} s"
    if unit == "percentunit":
        return f"{number(100 * value)}%"
    if unit in ("bytes", "binBps"):
        per = "/s" if unit == "binBps" else ""
        return scaled(value, 1024, [f" {name}{per}" for name in ("B", "KiB", "MiB", "GiB", "TiB")])
    suffix = {"reqps": " req/s", "ops": " /s", "short": ""}.get(unit, unit.replace("suffix:", ""))
    return scaled(value, 1000, ["", " K", " M", " G"]) + suffix


def ticks(top, binary=False):
    """Returns round numbers from 0 to at least `top`."""
    if top <= 0:
        return [0, 1]
    base = 1024 ** max(0, math.floor(math.log(top, 1024))) if binary and top >= 1 else 1
    scale = 10 ** math.floor(math.log10(top / base / 4))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if 4.5 * factor * scale * base >= top) * base
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


class Canvas:
    def __init__(self):
        self.parts = []

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, content, size=12, colour=TEXT, anchor="start", weight=400):
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
                 f'font-weight="{weight}">{html.escape(content)}</text>')

    def box(self, x, y, width, height, fill, stroke="none", radius=2, opacity=1):
        self.add(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
                 f'stroke="{stroke}" rx="{radius}" opacity="{opacity:.3f}"/>')

    def line(self, x1, y1, x2, y2, colour, dashes=""):
        extra = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>')

    def path(self, points, colour, width=1.5, fill=None, opacity=1.0):
        data = "M" + "L".join(f"{x:.1f} {y:.1f}".replace(".0", "") for x, y in points)
        if fill:
            self.add(f'<path d="{data}Z" fill="{fill}" opacity="{opacity}"/>')
        else:
            self.add(f'<path d="{data}" fill="none" stroke="{colour}" stroke-width="{width}" '
                     f'stroke-linejoin="round"/>')


def finite(points):
    return [(at, value) for at, value in points if math.isfinite(value)]


def runs(points, gap):
    """Splits points where more than `gap` seconds have none."""
    result = []
    for at, value in points:
        if not result or at - result[-1][-1][0] > gap:
            result.append([])
        result[-1].append((at, value))
    return result


class Drawer:
    def __init__(self, dashboard, results):
        self.dashboard, self.results = dashboard, results
        times = [at for series in results.values() for _, points in series for at, _ in points]
        self.begin, self.end = min(times), max(times)
        self.step = min((points[1][0] - points[0][0] for series in results.values() for _, points in series
                         if len(points) > 1), default=1)
        self.canvas = Canvas()

    def draw(self):
        width = 24 * COLUMN + 2 * MARGIN
        bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in self.dashboard["panels"])
        height = HEADER + bottom * UNIT + MARGIN
        canvas = self.canvas
        canvas.add(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                   f'height="{height}" font-family="{FONT}">')
        canvas.box(0, 0, width, height, BACKGROUND, radius=0)
        canvas.text(MARGIN + 4, 28, self.dashboard["title"], 18, weight=600)
        clock = [time.strftime("%H:%M", time.gmtime(at)) for at in (self.begin, self.end)]
        canvas.text(width - MARGIN - 4, 28, f"{clock[0]} to {clock[1]} UTC", 13, MUTED, "end")
        for panel in self.dashboard["panels"]:
            self.panel(panel)
        canvas.add("</svg>")
        return "\n".join(canvas.parts) + "\n"

    def panel(self, panel):
        place = panel["gridPos"]
        x, y = MARGIN + place["x"] * COLUMN, HEADER + place["y"] * UNIT
        width, height = place["w"] * COLUMN - GAP, place["h"] * UNIT - GAP
        if panel["type"] == "row":
            self.canvas.text(x + 4, y + 21, "⌄", 15, MUTED)
            self.canvas.text(x + 24, y + 21, panel["title"], 15, weight=600)
            return
        series = [(name, finite(points)) for name, points in self.results.get(str(panel["id"]), ())]
        if not any(points for _, points in series):
            self.frame(panel, x, y, width, height)
            self.canvas.text(x + width / 2, y + height / 2 + 8, "No data", 13, MUTED, "middle")
            return
        {"stat": self.stat, "heatmap": self.heatmap, "timeseries": self.graph}[panel["type"]](
            panel, [(name, points) for name, points in series if points], x, y, width, height)

    def frame(self, panel, x, y, width, height):
        self.canvas.box(x, y, width, height, PANEL, BORDER)
        self.canvas.text(x + 10, y + 20, panel["title"], 13, weight=600)

    def stat(self, panel, series, x, y, width, height):
        defaults = panel["fieldConfig"]["defaults"]
        name, points = series[0]
        value = points[-1][1]
        colour = "text"
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is None or value >= step["value"]:
                colour = step["color"]
        self.canvas.box(x, y, width, height, NAMED[colour])
        peak = max(value for _, value in points) or 1
        line = [(x + (at - self.begin) / max(self.end - self.begin, 1) * width,
                 y + height - value / peak * height * 0.4) for at, value in points]
        self.canvas.path([(line[0][0], y + height), *line, (line[-1][0], y + height)], "", fill="#000000",
                         opacity=0.16)
        self.canvas.text(x + 10, y + 21, panel["title"], 13, "#ffffff", weight=600)
        text = shown(value, defaults["unit"])
        digits, _, suffix = text.replace("%", " %").partition(" ")
        self.canvas.add(f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 26:.1f}" fill="#ffffff" '
                        f'text-anchor="middle" font-weight="600" font-size="38">{html.escape(digits)}'
                        f'<tspan font-size="17" dx="5">{html.escape(suffix)}</tspan></text>')

    def axes(self, x, y, width, height, labels):
        """Draws the grid. `labels`: (share of the height, text). Returns x of a time."""
        for share, text in labels:
            line = y + height * (1 - share)
            self.canvas.line(x, line, x + width, line, GRID)
            self.canvas.text(x - 7, line + 4, text, 11, MUTED, "end")
        span = max(self.end - self.begin, 1)
        spacing = next(s for s in (10, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
                       if span / s * 62 <= width)
        at = math.ceil(self.begin / spacing) * spacing
        while at <= self.end:
            place = x + (at - self.begin) / span * width
            self.canvas.line(place, y, place, y + height, GRID)
            form = "%H:%M:%S" if spacing < 60 else "%H:%M"
            if x + 12 < place < x + width - 12:
                self.canvas.text(place, y + height + 16, time.strftime(form, time.gmtime(at)), 11, MUTED, "middle")
            at += spacing
        return lambda at: x + (at - self.begin) / span * width

    def graph(self, panel, series, x, y, width, height):
        self.frame(panel, x, y, width, height)
        defaults = panel["fieldConfig"]["defaults"]
        unit, custom = defaults["unit"], defaults["custom"]
        stacked = custom["stacking"]["mode"] == "normal"
        fixed = {override["matcher"]["options"]: NAMED[override["properties"][0]["value"]["fixedColor"]]
                 for override in panel["fieldConfig"]["overrides"]}
        colours = [fixed.get(name, PALETTE[i % len(PALETTE)]) for i, (name, _) in enumerate(series)]
        legend = self.legend_lines(series, unit, width - 24)
        base, tops = {}, []
        for _, points in series:
            if stacked:
                for at, value in points:
                    base[at] = base.get(at, 0) + value
            tops += [value for _, value in points]
        top = max([*base.values(), *tops, 0])
        marks = ticks(min(top * 1.02, defaults.get("max", math.inf)) if top else 0, unit in ("bytes", "binBps"))
        scale = marks[-1]
        labels = [(mark / scale, shown(mark, unit)) for mark in marks]
        left = 22 + 6.2 * max(len(text) for _, text in labels)
        plot = (x + left, y + 34, width - left - 16, height - 34 - 26 - 18 * len(legend))
        place = self.axes(*plot, labels)

        def height_of(value):
            return plot[1] + plot[3] * (1 - min(value, scale) / scale)

        below = {}
        for colour, (_, points) in zip(colours, series):
            if stacked and len(series) > 1 and not any(value for _, value in points):
                continue  # adds nothing, and would hide the line below
            if stacked:
                points = [(at, value + below.get(at, 0)) for at, value in points]
            for run in runs(points, 3.5 * self.step):
                line = [(place(at), height_of(value)) for at, value in run]
                floor = [(place(at), height_of(below.get(at, 0) if stacked else 0)) for at, _ in reversed(run)]
                self.canvas.path([*line, *floor], "", fill=colour, opacity=custom["fillOpacity"] / 100)
                self.canvas.path(line, colour)
            below.update(points)
        self.legend(legend, colours, x + 12, y + height - 18 * len(legend))

    def legend_lines(self, series, unit, width):
        """Wraps the entries into lines; more than two lines end in an ellipsis."""
        lines, used = [[]], 0
        for index, (name, points) in enumerate(series):
            text = f"{name}  {shown(points[-1][1], unit)}"
            room = 34 + sum(8.4 if letter.isupper() or letter == "_" else 6.3 for letter in text)
            if used + room > width and lines[-1]:
                if len(lines) == 2:
                    lines[-1].append((None, "…", 20))
                    break
                lines.append([])
                used = 0
            lines[-1].append((index, text, room))
            used += room
        return lines

    def legend(self, lines, colours, x, y):
        for row, entries in enumerate(lines):
            at = x
            for index, text, room in entries:
                if index is not None:
                    self.canvas.box(at, y + 18 * row + 1, 14, 4, colours[index])
                self.canvas.text(at + 20, y + 18 * row + 8, text, 11.5, TEXT)
                at += room

    def heatmap(self, panel, series, x, y, width, height):
        self.frame(panel, x, y, width, height)
        unit = panel["fieldConfig"]["defaults"]["unit"]
        bounds = sorted((float(name), dict(points)) for name, points in series)
        rows, below = [], {}
        for bound, points in bounds:
            rows.append((bound, {at: max(0, value - below.get(at, 0)) for at, value in points.items()}))
            below = points
        full = [i for i, (_, points) in enumerate(rows) if max(points.values()) > 1e-6]
        rows = rows[max(min(full) - 1, 0):max(full) + 2] if full else rows[:1]
        plot = (x + 66, y + 34, width - 82, height - 34 - 30)
        each = plot[3] / len(rows)
        labels = [((i + 1) / len(rows), shown(bound, unit).replace(" tokens", "") if math.isfinite(bound) else "∞")
                  for i, (bound, _) in enumerate(rows)]
        place = self.axes(*plot, labels[::max(1, math.ceil(len(rows) * 15 / plot[3]))])
        most = max(value for _, points in rows for value in points.values()) or 1
        columns = max(1, round((self.end - self.begin) / self.step / max(plot[2] / 7, 1)))
        for i, (_, points) in enumerate(rows):
            for at in sorted(points)[::columns]:
                if points[at] > 1e-6:
                    warm = math.sqrt(points[at] / most)
                    colour = "#%02x%02x%02x" % tuple(
                        round(low + (high - low) * warm) for low, high in ((90, 255), (45, 190), (20, 110)))
                    left, right = place(at), min(place(at + columns * self.step), plot[0] + plot[2])
                    if right > left:
                        self.canvas.box(left, plot[1] + plot[3] - (i + 1) * each + 0.5, right - left,
                                        each - 1, colour, radius=0)


def draw(dashboard, results):
    """Returns the text of an SVG. `results` as from collect()."""
    return Drawer(dashboard, json.loads(json.dumps(results))).draw()
