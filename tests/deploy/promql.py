"""Reads PromQL as far as the rules and dashboards of deploy/ use it: which series an expression selects, and
of what unit its values are."""
import re

_TOKEN = re.compile(r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<range>\[[^\]]*\])
  | (?P<matchers>\{[^{}]*(?:"[^"]*"[^{}]*)*\})
  | (?P<number>[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?[smhdw]?)
  | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
  | (?P<operator>==|!=|<=|>=|[-+*/%^<>(),])
  )""", re.VERBOSE)
_PRECEDENCE = [("or",), ("and", "unless"), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"),
               ("*", "/", "%"), ("^",)]
_AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile"}
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}

# A unit is (power of seconds, power of bytes, power of things counted); of a histogram's bucket it is that
# of what the histogram measures, marked with "le".
NONE, SECONDS, BYTES, COUNT = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)


class Expression:
    """A parsed expression. Raises ValueError if it is not understood."""

    def __init__(self, text):
        self.text = text
        self.selectors = []  # (metric, matchers with braces or "")
        self._tokens = list(self._split(text))
        self._at = 0
        self.unit = self._binary(0)
        if self._at != len(self._tokens):
            raise ValueError(f"{text}: not understood from {self._tokens[self._at]}")

    @property
    def metrics(self):
        return {name for name, _ in self.selectors}

    @staticmethod
    def _split(text):
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"{text}: not understood from {text[position:]}")
            position = match.end()
            yield match.lastgroup, match.group(match.lastgroup)

    def _peek(self):
        return self._tokens[self._at] if self._at < len(self._tokens) else (None, None)

    def _take(self, value=None):
        token = self._peek()
        if value is not None and token[1] != value:
            raise ValueError(f"{self.text}: {value} expected, not {token[1]}")
        self._at += 1
        return token

    def _skip_grouping(self):
        while self._peek()[1] in _GROUPING:
            self._take()
            if self._peek()[1] == "(":
                while self._take()[1] != ")":
                    pass

    def _binary(self, level):
        if level == len(_PRECEDENCE):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek()[1] in _PRECEDENCE[level]:
            operator = self._take()[1]
            if self._peek()[1] == "bool":
                self._take()
            self._skip_grouping()
            left = self._combine(operator, left, self._binary(level + 1))
        return left

    def _combine(self, operator, left, right):
        if operator in ("and", "unless"):
            return left
        if operator in ("*", "/"):
            sign = 1 if operator == "*" else -1
            return None if left is None and right is None else tuple(
                a + sign * b for a, b in zip(left or NONE, right or NONE))
        # Plain numbers (unit None) take the unit of the other side.
        if left is not None and right is not None and left != right:
            raise ValueError(f"{self.text}: {operator} of different units, {left} and {right}")
        return left if left is not None else right

    def _unary(self):
        kind, value = self._take()
        if value in ("-", "+"):
            return self._unary()
        if value == "(":
            unit = self._binary(0)
            self._take(")")
            return unit
        if kind == "number":
            return None
        if kind != "name":
            raise ValueError(f"{self.text}: a value expected, not {value}")
        self._skip_grouping()
        if self._peek()[1] == "(":
            return self._call(value)
        matchers = self._take()[1] if self._peek()[0] == "matchers" else ""
        if self._peek()[0] == "range":
            self._take()
        if self._peek()[1] == "offset":
            self._take()
            self._take()
        self.selectors.append((value, matchers))
        return unit_of(value)

    def _call(self, function):
        self._take("(")
        arguments = []
        while self._peek()[1] != ")":
            if self._peek()[0] == "string":
                self._take()
            else:
                arguments.append(self._binary(0))
            if self._peek()[1] == ",":
                self._take()
        self._take(")")
        if function in _AGGREGATIONS:
            self._skip_grouping()
        return self._unit_of_call(function, arguments)

    def _unit_of_call(self, function, arguments):
        if function in ("count", "absent", "changes", "resets", "count_over_time"):
            return COUNT
        if function == "time":
            return SECONDS
        if function == "vector":
            return None
        if function in ("rate", "irate", "deriv"):
            seconds, amount, count, *rest = arguments[0]
            return (seconds - 1, amount, count, *rest)
        if function == "histogram_quantile":
            unit = arguments[1]
            if len(unit) != 4:
                raise ValueError(f"{self.text}: histogram_quantile of something without buckets")
            return measured(unit[3])
        return next((unit for unit in arguments if unit is not None), None)


def unit_of(metric):
    """Returns the unit that a metric's name promises."""
    if ":" in metric:  # a recording rule: level:metric:operations
        operation = metric.split(":")[2]
        return NONE if operation.startswith("ratio") else (-1, 0, 1)
    if metric.endswith("_bucket"):
        return (*COUNT, metric[:-len("_bucket")])
    if metric.endswith("_count"):
        return COUNT
    return measured(re.sub(r"_(sum|total)$", "", metric))


def measured(base):
    if base.endswith("_seconds") or base.endswith("_since_progress"):
        return SECONDS
    if base.endswith("_bytes"):
        return BYTES
    if base.endswith("_ratio"):
        return NONE
    return COUNT


def selectors(expression):
    return Expression(expression).selectors


def metrics(expression):
    """Returns the set of names of the series that an expression selects."""
    return Expression(expression).metrics


def base_of_bucket(metric):
    return metric.removesuffix("_bucket")


def base_name(metric):
    """Returns the name under which a service declares a series: histograms have three suffixes more."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)
