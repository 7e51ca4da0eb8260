"""What report.py measures: the commands of each section, and how their output becomes figures."""
import dataclasses
import json
import re
import shlex

MODEL_CONTEXT = 122880  # "120K"


@dataclasses.dataclass
class Aim:
    what: str
    aim: str
    measured: str
    is_met: bool


@dataclasses.dataclass
class Found:
    where: str    # device and commit
    table: list   # lines of Markdown
    aims: list


@dataclasses.dataclass
class Section:
    name: str
    title: str
    commands: list  # of argument lists; {bin} is the folder of the programs, {root} the source tree
    read: callable  # from what the commands printed to Found
    environment: dict = dataclasses.field(default_factory=dict)
    by_default: bool = True


def shown(command, environment):
    """A command as a reader would type it in a build of the tree."""
    words = [f"{name}={value}" for name, value in environment.items()]
    words += [str(part).replace("{bin}/", "").replace("{root}/", "") for part in command]
    return shlex.join(words)


def objects(text):
    """All JSON objects in a text, one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        yield value


def where(report):
    return f"{report['device']}, commit {report['commit'][:12]}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---:|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


# --- Attention of a decode step

def read_attention(outputs):
    ours = list(objects(outputs[0]))
    peers = [row for row in objects(outputs[1]) if row.get("benchmark") == "decode_attention"]
    torch = next(row for row in objects(outputs[1]) if "torch" in row)
    rows, aims = [], []
    for row in ours:
        if row["shape"] != "dense":
            continue
        key = (row["batch"], row["tokens"])
        best = min((peer["us"] for peer in peers
                    if (peer["batch"], peer["tokens"]) == key and "us" in peer), default=None)
        share = row["share_of_read"]
        rows.append((row["batch"], f"{row['tokens']:,}", f"{row['us']:.1f}", f"{100 * share:.0f} %",
                     "" if best is None else f"{best:.1f}"))
        if row["tokens"] == MODEL_CONTEXT and row["batch"] in (1, 3):
            aims.append(Aim(f"dense decode attention, 120K, batch {row['batch']}: of a plain read",
                            "85 %", f"{100 * share:.0f} %", share >= 0.85))
            if best is not None:
                aims.append(Aim("the same, over PyTorch's best time", "at most 1",
                                f"{row['us'] / best:.3f}", row["us"] <= best))
    return Found(f"{torch['device']}, commit {ours[0]['commit'][:12]}, PyTorch {torch['torch']}",
                 table(("batch", "tokens", "us", "of a plain read", "PyTorch's best, us"), rows), aims)


def read_layer(outputs):
    text = outputs[0]
    head = re.search(r"^(.+), commit (\w+)\nread of .*: (\d+) GB/s", text, re.M)
    if head is None:
        raise ValueError("wave_stages_bench printed no header")
    peers = [row for row in objects(outputs[1]) if row.get("benchmark") == "decode_attention"]
    layers = {}
    rows = []
    for stage, batch, us in re.findall(r"^(.{34}) +(\d+) +([\d.]+)", text, re.M):
        rows.append((stage.strip(), batch, us))
        match = re.match(r"whole layer, (\d+) % hits", stage)
        if match:
            layers[int(batch), int(match.group(1))] = float(us)
    aims = []
    for batch, allowed in ((1, 0.30), (8, 0.18)):
        dense = min(peer["us"] for peer in peers
                    if (peer["batch"], peer["tokens"]) == (batch, MODEL_CONTEXT) and "us" in peer)
        ratio = layers[batch, 95] / dense
        aims.append(Aim(f"wave layer, 120K, 95 % hits, batch {batch}: of PyTorch's dense time",
                        f"at most {allowed:.2f}", f"{ratio:.2f} ({layers[batch, 95]:.1f} us)",
                        ratio <= allowed))
    fetch = re.search(r"^4096 +[\d.]+ +([\d.]+) +[\d.]+ +([\d.]+)$", text, re.M)
    for what, rate, least in (("alone", fetch.group(1), 45), ("beside the estimation",
                                                               fetch.group(2), 40)):
        aims.append(Aim(f"fetch of 4,096 pages, {what}", f"{least} GB/s", f"{rate} GB/s",
                        float(rate) >= least))
    return Found(f"{head.group(1)}, commit {head.group(2)[:12]}, plain read {head.group(3)} GB/s",
                 table(("stage", "batch", "us"), rows), aims)


# --- Decode steps of a whole model

def decode(*settings):
    return ["{bin}/decode_throughput_bench", "--backend", "cuda", *settings]


def reuse_of(report):
    """What the queries of a run ask for again: as recorded text does, or a made-up cosine."""
    overlap = report["settings"]["overlap"]
    return "recorded" if isinstance(overlap, str) else f"made up, cosine {overlap:g}"


def beside_reuse(measured, report):
    """A figure that the block cache's hits decide, with what those rest on when it is made up."""
    reuse = reuse_of(report)
    return measured if reuse == "recorded" else f"{measured} ({reuse})"


def decode_rows(reports):
    rows = []
    for report in reports:
        settings = report["settings"]
        cache = ("", "", "", "")
        if settings["policy"] == "wave":
            pages = settings["arena_gib"] * (1 << 30) / 2048
            cache = (f"{100 * settings['cache_slots'] / pages:.0f} %",
                     reuse_of(report), f"{100 * report['hit_ratio']:.1f} %",
                     f"{report['pages_evicted_per_step']:,.0f}")
        rows.append((settings["policy"], f"{settings['context_tokens']:,}", settings["batch"],
                     f"{report['step_ms_median']:.2f}", f"{report['output_throughput']:.0f}", *cache,
                     f"{report['host_us_per_step']:.0f}"))
    return table(("policy", "context", "batch", "ms a step", "tokens/s", "slots for", "reuse",
                  "page hits", "evicted a step", "host, us a step"), rows)


def read_decode(outputs):
    reports = [next(objects(output)) for output in outputs]
    by_key = {}  # of two runs the slower one
    for report in sorted(reports, key=lambda r: r["step_ms_median"]):
        settings = report["settings"]
        by_key[settings["policy"], settings["context_tokens"], settings["batch"]] = report
    step = {key: report["step_ms_median"] for key, report in by_key.items()}
    rate = {key: report["output_throughput"] for key, report in by_key.items()}
    wave, full = (max((rate[key], key[2]) for key in rate if key[:2] == (policy, MODEL_CONTEXT))
                  for policy in ("wave", "full"))
    batch_1 = step["full", MODEL_CONTEXT, 1] / step["wave", MODEL_CONTEXT, 1]
    long = step["wave", 524288, 1] / step["full", 8192, 1]
    host = max(report["host_us_per_step"] for report in reports)
    at_120k = by_key["wave", MODEL_CONTEXT, 1]
    return Found(where(reports[0]), decode_rows(reports), [
        Aim("120K, batch 1: wave's tokens a second over full's", "1.4",
            beside_reuse(f"{batch_1:.2f}", at_120k), batch_1 >= 1.4),
        Aim(f"120K, largest batches ({wave[1]} and {full[1]}): wave over full", "4",
            beside_reuse(f"{wave[0] / full[0]:.2f}", by_key["wave", MODEL_CONTEXT, wave[1]]),
            wave[0] / full[0] >= 4),
        Aim("a step at 512K over one at 8K", "at most 1.6",
            beside_reuse(f"{long:.2f}", by_key["wave", 524288, 1]), long <= 1.6),
        Aim("host work a step", "at most 200 us", f"{host:.0f} us", host <= 200)])


def read_million(outputs):
    reports = [next(objects(output)) for output in outputs]
    ratio = reports[-1]["step_ms_median"] / reports[0]["step_ms_median"]
    return Found(where(reports[0]), decode_rows(reports), [
        Aim("a step at 1M tokens over one at 8K", "at most 2",
            beside_reuse(f"{ratio:.2f}", reports[-1]), ratio <= 2)])


# --- Prefill

def read_first_token(outputs):
    reports = [next(objects(output)) for output in outputs]
    rows = [(f"{r['settings']['tokens']:,}", r["settings"]["rows"],
             f"{r['full']['first_token_s']:.2f} s", f"{r['wave']['first_token_s']:.2f} s",
             f"{r['wave']['indexed_after_first_token_ms']:.0f} ms", f"{100 * r['index_share']:.1f} %")
            for r in reports]
    first = min(r["wave"]["first_token_s"] for r in reports if r["settings"]["tokens"] == 117760)
    share = min(r["index_share"] for r in reports if r["settings"]["tokens"] == MODEL_CONTEXT)
    return Found(where(reports[0]),
                 table(("tokens", "rows a slice", "full, first token", "wave, first token",
                        "wave, indexed after it", "index share"), rows),
                 [Aim("time to first token, 115K tokens", "at most 11 s", f"{first:.2f} s",
                      first <= 11),
                  Aim("index construction, of prefill at 120K", "at most 3 %",
                      f"{100 * share:.1f} %", share <= 0.03)])


def read_index(outputs):
    rows = [(name.strip(), ms, of_prompt) for name, ms, of_prompt in
            re.findall(r"^(.{26}) +([\d.]+) +[\d.]+ (?:TFLOP|GB)/s +(\d+) ms", outputs[0], re.M)]
    if not rows:
        raise ValueError("index_construction_bench printed no figures")
    return Found("one layer of a segment of 8,192 tokens",
                 table(("operation", "ms", "120K tokens, 32 layers, ms"), rows), [])


def read_prefill(outputs):
    reports = [r for r in objects(outputs[0]) if r["settings"]["kernel"] == "hopper"] \
        or list(objects(outputs[0]))
    rows = [(f"{r['settings']['tokens']:,}", f"{r['settings']['chunk']:,}",
             f"{r['attention_tflops']:.0f}", f"{r['cublas_tflops']:.0f}", f"{r['ratio']:.2f}")
            for r in reports]
    speed = max(r["attention_tflops"] for r in reports if r["settings"]["tokens"] == 32768)
    return Found(where(reports[0]),
                 table(("tokens", "chunk", "TFLOP/s", "cuBLAS 8192^3", "ratio"), rows),
                 [Aim("prefill attention at 32K", "500 TFLOP/s", f"{speed:.0f} TFLOP/s",
                      speed >= 500)])


# --- Both services

def read_stall(outputs):
    reports = list(objects(outputs[0]))
    rows = [(r["run"], f"{1e3 * r['step_seconds_median_running']:.4f} ms",
             f"{1e3 * r['step_seconds_median_stopped']:.4f} ms", f"{100 * r['change']:+.1f} %",
             r["same_tokens"]) for r in reports]
    free = next(r for r in reports if r["run"] == "free slots")
    return Found(where(free), table(("block cache", "store running", "store stopped", "change",
                                     "same tokens"), rows),
                 [Aim("a stopped store, while slots are free: the median step", "within 3 %",
                      f"{100 * free['change']:+.1f} %",
                      abs(free["change"]) <= 0.03 and all(r["same_tokens"] for r in reports))])


ATTENTION_PEERS = ["python3", "{root}/bench/peers/attention_peers.py", "--decode"]
CONTEXT = ["--context", str(MODEL_CONTEXT)]
LONG = ["--steps", "600"]  # until slots have been used again and again

ALL = [
    Section("attention", "Attention of a decode step",
            [["{bin}/decode_attention_cuda_bench", "--json"], ATTENTION_PEERS], read_attention),
    Section("layer", "A layer of wave attention, stage by stage",
            [["{bin}/wave_stages_bench"], ATTENTION_PEERS], read_layer),
    Section("decode", "Decode steps of the 8B shape",
            [decode("--policy", "full", "--context", "8192"),
             decode("--policy", "full", *CONTEXT),
             decode("--policy", "full", *CONTEXT, "--batch", "3"),
             decode("--policy", "wave", *CONTEXT, *LONG),
             decode("--policy", "wave", *CONTEXT, "--cache-share", "1", *LONG),
             decode("--policy", "wave", *CONTEXT, "--batch", "6", "--cache-share", "0.3", *LONG),
             decode("--policy", "wave", "--context", "524288", "--cache-share", "0.4", *LONG)],
            read_decode),
    Section("million", "One context of 1M tokens", [
        decode("--policy", "full", "--context", "8192"),
        decode("--policy", "wave", "--context", "524288", "--cache-share", "0.5", *LONG),
        decode("--policy", "wave", "--context", "1048576", "--cache-share", "0.5", *LONG)],
            read_million, by_default=False),
    Section("first_token", "Time to first token of the 8B shape",
            [["{bin}/first_token_bench", "--backend", "cuda", "--tokens", "117760", "--rows", "2048",
              "--rounds", "1", "--decode-steps", "4"],
             ["{bin}/first_token_bench", "--backend", "cuda", "--tokens", str(MODEL_CONTEXT),
              "--rows", "1024", "--rounds", "4", "--decode-steps", "4"]], read_first_token),
    Section("index", "Index construction", [["{bin}/index_construction_bench"]], read_index),
    Section("prefill", "Prefill attention", [["{bin}/prefill_attention_cuda_bench"]], read_prefill),
    Section("stall", "A stopped store", [["{bin}/store_stall_bench"]], read_stall,
            environment={"RETROINFER_TEST_DEVICE": "cuda"}),
]
