#!/usr/bin/env python3
"""Prints rules/*.yml as one PrometheusRule, for clusters with the Prometheus operator.

    deploy/prometheus/prometheus_rule.py | kubectl apply -n NAMESPACE -f -
"""
import pathlib

HEAD = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: retroinfer
  labels:
    app.kubernetes.io/name: retroinfer
    app.kubernetes.io/component: rules
spec:
  groups:
"""


def main():
    print(HEAD, end="")
    for path in sorted((pathlib.Path(__file__).resolve().parent / "rules").glob("*.yml")):
        groups = path.read_text(encoding="utf-8").split("\ngroups:\n", 1)[1]
        print("".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True)), end="")


if __name__ == "__main__":
    main()
