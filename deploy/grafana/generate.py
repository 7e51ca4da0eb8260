#!/usr/bin/env python3
"""Writes dashboards/*.json, for Grafana 10 and later, from description.py.

    deploy/grafana/generate.py            writes the files
    deploy/grafana/generate.py --check    ends with 1 if they are not what it would write
"""
import json
import pathlib
import sys

import description as what

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
JOBS = 'job=~"gpu-worker|kv-store|http-gateway"'


def query_variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE,
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "sort": 1,
            "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}


def variables():
    windows = ["1m", "5m", "15m", "1h"]
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
         "current": {}, "refresh": 1},
        query_variable("node", "Machine", f"label_values(up{{{JOBS}}}, node)"),
        query_variable("instance", "Instance", f'label_values(up{{{JOBS}, node=~"$node"}}, instance)'),
        {"name": "interval", "label": "Window of rates", "type": "interval", "query": ",".join(windows),
         "auto": True, "auto_min": windows[0], "auto_count": 60, "refresh": 2,
         "current": {"text": "auto", "value": "$__auto_interval_interval"},
         "options": [{"selected": True, "text": "auto", "value": "$__auto_interval_interval"}] +
                    [{"selected": False, "text": window, "value": window} for window in windows]}]


def targets(panel):
    return [{"refId": chr(ord("A") + i), "datasource": DATASOURCE, "editorMode": "code", "expr": expression,
             "legendFormat": legend, "range": True, "instant": False,
             "format": "heatmap" if panel.kind == "heatmap" else "time_series"}
            for i, (expression, legend) in enumerate(panel.queries)]


def thresholds(panel):
    base = [] if panel.steps and panel.steps[0][0] is None else [{"color": "transparent", "value": None}]
    return {"mode": "absolute",
            "steps": base + [{"color": colour, "value": value} for value, colour in panel.steps]}


def field_config(panel):
    defaults = {"unit": panel.unit, "min": 0}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.steps:
        defaults["thresholds"] = thresholds(panel)
    if panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
    if panel.kind == "timeseries":
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if panel.stacked else 8,
            "showPoints": "never", "spanNulls": False, "axisSoftMin": 0,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.steps else "off"}}
    overrides = [{"matcher": {"id": "byName", "options": legend},
                  "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]}
                 for legend, colour in panel.colours]
    return {"defaults": defaults, "overrides": overrides}


def options(panel):
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "background", "graphMode": "area", "justifyMode": "center", "textMode": "value"}
    if panel.kind == "heatmap":
        return {"calculate": False, "cellGap": 1, "cellValues": {"unit": "short"},
                "yAxis": {"unit": panel.unit, "axisPlacement": "left"},
                "rowsFrame": {"layout": "le", "value": "number"},
                "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "orange"},
                "legend": {"show": True}, "tooltip": {"mode": "single", "yHistogram": True},
                "filterValues": {"le": 1e-9}}
    narrow = panel.width < 12
    return {"legend": {"displayMode": "list" if narrow else "table", "placement": "bottom", "showLegend": True,
                       "calcs": ["lastNotNull"] if narrow else ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"}}


def panels(dashboard):
    result, y, identifier = [], 0, 0
    for row in dashboard.rows:
        identifier += 1
        result.append({"id": identifier, "type": "row", "title": row.title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}})
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            identifier += 1
            result.append({"id": identifier, "type": panel.kind, "title": panel.title,
                           "description": panel.description, "datasource": DATASOURCE,
                           "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
                           "targets": targets(panel), "fieldConfig": field_config(panel),
                           "options": options(panel)})
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return result


def dashboard_json(dashboard):
    starts = f'process_start_time_seconds{{{JOBS}, node=~"$node", instance=~"$instance"}} * 1000'
    return {
        "uid": f"retroinfer-{dashboard.name}", "title": dashboard.title, "description": dashboard.description,
        "tags": ["retroinfer"], "schemaVersion": 39, "version": 1, "editable": True, "id": None,
        "timezone": "browser", "refresh": "30s", "time": {"from": "now-1h", "to": "now"},
        "timepicker": {"refresh_intervals": ["10s", "30s", "1m", "5m"]}, "graphTooltip": 1,
        "templating": {"list": variables()},
        "annotations": {"list": [{"name": "Starts of processes", "enable": True, "iconColor": "purple",
                                  "datasource": DATASOURCE, "expr": starts, "step": "60s",
                                  "titleFormat": "{{job}} started", "useValueForTime": True}]},
        "links": [{"type": "dashboards", "tags": ["retroinfer"], "title": "RetroInfer", "asDropdown": False,
                   "includeVars": True, "keepTime": True}],
        "panels": panels(dashboard)}


def files():
    """Returns {path: content} of what there has to be."""
    return {FOLDER / f"{dashboard.name}.json": json.dumps(dashboard_json(dashboard), indent=1) + "\n"
            for dashboard in what.DASHBOARDS}


def main():
    wanted = files()
    there = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if sys.argv[1:] == ["--check"]:
        different = sorted(path.name for path in wanted.keys() | there.keys()
                           if wanted.get(path) != there.get(path))
        if different:
            sys.exit(f"not up to date: {', '.join(different)}; run deploy/grafana/generate.py")
        return
    FOLDER.mkdir(exist_ok=True)
    for path in there.keys() - wanted.keys():
        path.unlink()
    for path, content in wanted.items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
