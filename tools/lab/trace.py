"""Retrieval traces, as `--record-trace` of the worker writes them, and what follows from them.

gpu_worker/measuring/retrieval_trace/trace_encoder.h has the format. Reading needs the standard library alone;
statistics need PyTorch.
"""

import dataclasses
import lzma
import pathlib
from collections.abc import Iterator

MAGIC = b"RITRACE1"
MOST_HEADS = 1 << 16      # of all layers
MOST_CLUSTERS = 1 << 24   # of an index
ENDS = {0: "stopped", 1: "limit"}


class TraceError(ValueError):
    """The file is no trace, or was damaged."""


@dataclasses.dataclass
class Cluster:
    """A cluster that a step has read."""
    number: int
    pages: int   # 0: not known
    missed: int  # of these pages, how many the block cache did not have


@dataclasses.dataclass
class Step:
    """What one step of a sequence has read: clusters of every layer and KV head."""
    sequence: int
    tokens: int        # with KV, before the step
    clusters: int      # places of the index
    heads: list[list[Cluster]]  # [layers * kv_heads]
    left_out: int      # clusters that the recorder had no room for


@dataclasses.dataclass
class Trace:
    """A trace that was read."""
    layers: int
    kv_heads: int
    tokens_per_page: int
    steps: list[Step]
    lost: int          # steps that are missing: the disk was too slow
    end: str           # "stopped", "limit", or "cut off": the worker was killed or the disk full


class _Bytes:
    """Takes a record apart."""

    def __init__(self, data: bytes, at: int = 0):
        self._data, self._at = data, at

    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left():
            raise TraceError(f"{count} bytes are wanted at {self._at}, {self.left()} are left")
        self._at += count
        return self._data[self._at - count:self._at]

    def number(self, most: int = (1 << 64) - 1) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise TraceError(f"a number of more than 64 bits at {self._at}")
        if value > most:
            raise TraceError(f"{value} at {self._at}, at most {most} is possible")
        return value

    def count(self) -> int:
        """Returns a number of things that take a byte or more each."""
        value = self.number()
        if value > self.left():
            raise TraceError(f"{value} things in {self.left()} bytes at {self._at}")
        return value


class _Head:
    """What is remembered of a KV head of a sequence."""

    def __init__(self):
        self.last: list[int] = []
        self.pages: dict[int, int] = {}

    def read(self, data: _Bytes, clusters: int) -> tuple[list[Cluster], int]:
        bits = data.take((len(self.last) + 7) // 8)
        kept = [c for i, c in enumerate(self.last) if bits[i // 8] >> i % 8 & 1]
        fresh, left_out = data.number(), 0
        if fresh % 2:
            left_out = data.number()
        if fresh // 2 > data.left():
            raise TraceError(f"{fresh // 2} clusters in {data.left()} bytes")
        now, following = set(kept), 0
        for _ in range(fresh // 2):
            number = following + data.number(clusters)
            if number >= clusters or number in now:
                raise TraceError(f"cluster {number} of {clusters}, or twice")
            now.add(number)
            following = number + 1
        self.last = sorted(now)
        for number in self.last:
            if number not in self.pages:
                self.pages[number] = data.number(1 << 32)
        found = [Cluster(number, self.pages[number], 0) for number in self.last]
        following = 0
        for _ in range(data.count()):
            place = following + data.number(len(found))
            if place >= len(found):
                raise TraceError(f"misses of cluster {place} of {len(found)}")
            found[place].missed = data.number(1 << 32)
            following = place + 1
        return found, left_out


class _Reader:
    """Reads records."""

    def __init__(self, data: bytes):
        if data[:len(MAGIC)] != MAGIC:
            raise TraceError("no retrieval trace of this version")
        self._data = _Bytes(data, len(MAGIC))
        layers = self._data.number(MOST_HEADS)
        kv_heads = self._data.number(MOST_HEADS)
        if not 0 < layers * kv_heads <= MOST_HEADS:
            raise TraceError(f"{layers} layers of {kv_heads} KV heads")
        self.trace = Trace(layers, kv_heads, self._data.number(1 << 16), [], 0, "cut off")
        self._data.number(1 << 16)
        self._sequences: dict[int, list[_Head]] = {}

    def records(self) -> Iterator[_Bytes]:
        """Gives each whole record. What was cut off at the end is left out."""
        while self._data.left():
            try:
                length = self._data.number()
            except TraceError:
                return
            if length > self._data.left():
                return
            yield _Bytes(self._data.take(length))

    def read(self) -> Trace:
        for record in self.records():
            letter = record.take(1)
            if letter == b"S":
                self._step(record)
            elif letter == b"R":
                self._sequences.pop(record.number(), None)
            elif letter == b"L":
                self.trace.lost += record.number()
            elif letter == b"E":
                self.trace.end = ENDS.get(record.number(), "unknown")
            else:
                raise TraceError(f"a record {letter!r}")
            if record.left():
                raise TraceError(f"{record.left()} bytes too many in a record {letter!r}")
            if letter == b"E":
                break
        return self.trace

    def _step(self, record: _Bytes) -> None:
        trace = self.trace
        sequence, tokens = record.number(), record.number()
        clusters = record.number(MOST_CLUSTERS)
        heads = self._sequences.setdefault(
            sequence, [_Head() for _ in range(trace.layers * trace.kv_heads)])
        found = [head.read(record, clusters) for head in heads]
        trace.steps.append(Step(sequence, tokens, clusters, [head for head, _ in found],
                                sum(left_out for _, left_out in found)))


def decode(data: bytes) -> Trace:
    """Reads the bytes of a trace. Raises TraceError where they are none."""
    return _Reader(data).read()


def load(path: pathlib.Path) -> Trace:
    """Reads a trace, also one that xz has compressed."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        try:
            data = lzma.decompress(data)
        except lzma.LZMAError as error:
            raise TraceError(f"{path}: {error}") from error
    return decode(data)
