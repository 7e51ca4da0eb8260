"""What the dashboards show. generate.py makes Grafana's JSON of it; nothing here is about Grafana's format.

A panel is a title, a description for whoever is called at night, a unit, and queries with their legends.
worker(), store() and gateway() write a series with the matchers of the dashboard's variables; WINDOW is the
range of rates that the user chooses.
"""
import dataclasses

WINDOW = "$interval"
_WHERE = 'node=~"$node", instance=~"$instance"'

# Grafana's units.
SECONDS, BYTES, BYTES_PER_SECOND, SHARE = "s", "bytes", "binBps", "percentunit"
COUNT, REQUESTS_PER_SECOND, PER_SECOND = "short", "reqps", "ops"
TOKENS, TOKENS_PER_SECOND, CORES = "suffix: tokens", "suffix: tokens/s", "suffix: cores"


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    description: str
    unit: str
    queries: tuple                # of (expression, legend)
    kind: str = "timeseries"      # timeseries, stat, heatmap
    width: int = 12               # of 24 columns
    height: int = 8
    stacked: bool = False
    maximum: float = None
    decimals: int = None
    steps: tuple = ()             # (from, colour): of stats, or lines in a graph
    colours: tuple = ()           # (legend, colour)


@dataclasses.dataclass(frozen=True)
class Row:
    title: str
    panels: tuple


@dataclasses.dataclass(frozen=True)
class Dashboard:
    name: str                     # of the file, and of the address
    title: str
    description: str
    rows: tuple


def worker(metric, matchers=""):
    return f'{metric}{{job="gpu-worker", {_WHERE}{", " + matchers if matchers else ""}}}'


def store(metric, matchers=""):
    return f'{metric}{{job="kv-store", {_WHERE}{", " + matchers if matchers else ""}}}'


def gateway(metric, matchers=""):
    return f'{metric}{{job="http-gateway", {_WHERE}{", " + matchers if matchers else ""}}}'


def each(metric):
    return f'{metric}{{job=~"gpu-worker|kv-store|http-gateway", {_WHERE}}}'


def rate(series):
    return f"rate({series}[{WINDOW}])"


def total_rate(series):
    return f"sum({rate(series)})"


def quantile(share, histogram):
    return f"histogram_quantile({share}, sum by (le) ({rate(worker(histogram + '_bucket'))}))"


def quantiles(histogram):
    return tuple((quantile(share, histogram), legend)
                 for share, legend in ((0.5, "half of them within"), (0.95, "95 % within"),
                                       (0.99, "99 % within")))


def heatmap(title, description, histogram):
    """How often which value was seen; the unit is that of the values, upwards."""
    unit = SECONDS if histogram.endswith("_seconds") else SHARE if histogram.endswith("_ratio") else TOKENS
    return Panel(title, description, unit,
                 ((f"sum by (le) (increase({worker(histogram + '_bucket')}[{WINDOW}]))", "{{le}}"),),
                 kind="heatmap")


def ratio(part, whole):
    """Share of `part` in `whole`, summed over the instances; no value where there is nothing."""
    return f"sum({part}) / (sum({whole}) > 0)"


# A line at 0 where there is nothing to show, rather than "no data".
NOTHING = 'label_replace(vector(0), "{}", "none", "", "")'
PAGE_LOOKUPS = " + ".join(rate(worker(f"retroinfer_page_{kind}_total"))
                          for kind in ("hits", "misses", "transients"))
GREEN, YELLOW, RED, BLUE, PURPLE, ORANGE, GREY = (
    "green", "yellow", "red", "blue", "purple", "orange", "text")
GOOD_ABOVE = ((None, RED), (0.85, YELLOW), (0.95, GREEN))

HIT_RATIO = Panel(
    "Page hits",
    "Share of the pages looked for by decode steps that were on the device. Below 85 % throughput falls: "
    "the others come over the bus.",
    SHARE,
    ((ratio(rate(worker("retroinfer_page_hits_total")), PAGE_LOOKUPS), "on the device"),
     (ratio(rate(worker("retroinfer_prefix_cache_hits_tokens_total")),
            rate(worker("retroinfer_prompt_tokens_total"))), "prompt tokens found in the cache")),
    maximum=1)
FIRST_TOKEN = Panel(
    "Time to first token",
    "From submission to the first token: queue, prompt, and index. The target of the alerts is 20 s for "
    "99 % of the requests.",
    SECONDS,
    quantiles("retroinfer_time_to_first_token_seconds"))
TOKEN_INTERVAL = Panel(
    "Time between tokens",
    "From one token of a request to the next. The target of the alerts is 0.1 s for 99 % of the tokens.",
    SECONDS, quantiles("retroinfer_inter_token_latency_seconds"))
TOKENS_A_SECOND = Panel(
    "Tokens",
    "Prompt tokens that were processed (those found in the cache included, counted when a prompt is done),"
    " tokens that were generated, and tokens that were given and scored.",
    TOKENS_PER_SECOND,
    ((total_rate(worker("retroinfer_prompt_tokens_total")), "prompt"),
     (total_rate(worker("retroinfer_generation_tokens_total")), "generated"),
     (total_rate(worker("retroinfer_scored_tokens_total")), "scored"),
     (total_rate(worker("retroinfer_scored_prompt_tokens_total")), "scored, of prompts")))
REQUESTS = Panel(
    "Requests at a time",
    "Running: in prefill or decode. Waiting: in the queue, not admitted yet.",
    COUNT,
    ((f"sum({worker('retroinfer_requests_running')})", "running"),
     (f"sum({worker('retroinfer_requests_waiting')})", "waiting"),
     (f"sum({worker('retroinfer_requests_waiting_for_prefill')})", "running, waiting for prefill"),
     (f"sum({worker('retroinfer_requests_suspended')})", "running, suspended"),
     (f"sum({worker('retroinfer_requests_stalled')})", "running, wait for device memory")))
ENDED = Panel(
    "Requests that ended",
    "By reason: stop and length are answers; cancelled by the caller; deadline of the caller; error of "
    "the server.",
    REQUESTS_PER_SECOND,
    ((f"sum by (finish_reason) ({rate(worker('retroinfer_requests_total'))})", "{{finish_reason}}"),),
    stacked=True, colours=(("stop", GREEN), ("length", BLUE), ("cancelled", GREY), ("deadline", ORANGE),
                           ("error", RED)))
KINDS = Panel(
    "Requests by kind",
    "That ended: generating text, or scoring tokens that were given.",
    REQUESTS_PER_SECOND,
    ((f"sum by (kind) ({rate(worker('retroinfer_requests_by_kind_total'))})", "{{kind}}"),), stacked=True)
REFUSED = Panel(
    "Requests that were refused",
    "Before they were queued, by reason. QUEUE_FULL, OUT_OF_MEMORY, NOT_READY and DRAINING are the "
    "server's load or state; the others are the callers' matter.",
    REQUESTS_PER_SECOND,
    ((f"sum by (reason) ({rate(worker('retroinfer_requests_refused_total'))}) > 0 or " + NOTHING.format("reason"),
      "{{reason}}"),), stacked=True)
PROMPT_LENGTHS = heatmap(
    "Prompt lengths",
    "How many prompts of which length (tokens, upper bounds) ended in a window.",
    "retroinfer_request_prompt_tokens")
GENERATION_LENGTHS = heatmap(
    "Lengths of answers",
    "How many answers of which length (tokens, upper bounds) ended in a window.",
    "retroinfer_request_generation_tokens")


def resized(panels, width, height):
    return tuple(dataclasses.replace(panel, width=width, height=height) for panel in panels)


def thirds(*panels):
    return resized(panels, 8, 7)


def quarters(*panels):
    return resized(panels, 6, 7)


def stat(title, description, unit, expression, legend, steps=((None, GREEN),), decimals=None, width=3):
    return Panel(title, description, unit, ((expression, legend),), kind="stat", width=width, height=4,
                 steps=steps, decimals=decimals)


OVERVIEW = Dashboard(
    "overview", "RetroInfer overview", "What a person on call looks at first.",
    (Row("Now", (
        stat("Alerts", "Alerts of RetroInfer that fire now. docs/operate/runbook.md has a section for each.", COUNT,
             'count(ALERTS{alertname=~"RetroInfer.*", alertstate="firing"}) or vector(0)', "firing",
             steps=((None, GREEN), (1, RED))),
        stat("Serving", "Workers that serve requests, of those that there are. Grey: Prometheus sees none.",
             SHARE, f"sum({worker('retroinfer_ready')}) / count({worker('up')})", "ready",
             steps=((None, RED), (1, GREEN))),
        stat("Running", "Requests in prefill or decode.", COUNT,
             f"sum({worker('retroinfer_requests_running')})", "running", steps=((None, BLUE),)),
        stat("Waiting", "Requests in the queue.", COUNT, f"sum({worker('retroinfer_requests_waiting')})",
             "waiting", steps=((None, BLUE), (20, YELLOW), (100, RED))),
        stat("Generated", "Tokens generated a second.", TOKENS_PER_SECOND,
             total_rate(worker("retroinfer_generation_tokens_total")), "generated", steps=((None, BLUE),)),
        stat("First token, 95 %", "95 % of the requests had their first token within this time.", SECONDS,
             quantile(0.95, "retroinfer_time_to_first_token_seconds"), "95 % within",
             steps=((None, GREEN), (10, YELLOW), (20, RED))),
        stat("Next token, 95 %", "95 % of the tokens came within this time after the one before.", SECONDS,
             quantile(0.95, "retroinfer_inter_token_latency_seconds"), "95 % within",
             steps=((None, GREEN), (0.05, YELLOW), (0.1, RED))),
        stat("Page hits", "Share of the pages that were on the device.", SHARE, HIT_RATIO.queries[0][0],
             "on the device", steps=GOOD_ABOVE, decimals=1))),
     Row("Service", thirds(
         TOKENS_A_SECOND, REQUESTS, ENDED, FIRST_TOKEN, TOKEN_INTERVAL, REFUSED, KINDS)),
     Row("Memory and cache", thirds(
         Panel("How full",
               "Memory for KV on the device that requests hold; the arena that running sequences hold; "
               "the queue against its limit; the folder on disk against its own (it is kept at 80 to 90"
               " %). 95 % is nearly full.",
               SHARE,
               ((f"max({worker('retroinfer_kv_cache_usage_ratio')})", "KV memory of the device"),
                (f"max({store('retroinfer_arena_usage_ratio')})", "arena"),
                (f"max(({worker('retroinfer_requests_running')} + {worker('retroinfer_requests_waiting')}) / "
                 f"{worker('retroinfer_requests_waiting_limit')})", "queue"),
                (f"max({store('retroinfer_durable_bytes')} / ({store('retroinfer_durable_limit_bytes')} > 0))",
                 "folder on disk")), maximum=1),
         HIT_RATIO,
         Panel("Arena, read and written",
               "What the worker reads from the arena (pages that were not on the device, prefixes) and "
               "writes to it (new segments): over PCIe where there is a GPU.",
               BYTES_PER_SECOND,
               ((total_rate(worker("retroinfer_arena_read_bytes_total")), "read"),
                (total_rate(worker("retroinfer_arena_written_bytes_total")), "written"))))),
     Row("Requests and processes", quarters(
         PROMPT_LENGTHS,
         Panel("Firing alerts",
               "Alerts that fire, by name; docs/operate/runbook.md has a section for each.",
               COUNT,
               (('count by (alertname) (ALERTS{alertname=~"RetroInfer.*", alertstate="firing"}) or ' +
                 NOTHING.format("alertname"), "{{alertname}}"),), stacked=True),
         Panel("Memory",
               "Resident memory of the processes. That of a store has its arena.",
               BYTES,
               ((each("process_resident_memory_bytes"), "{{job}} {{instance}}"),)),
         Panel("Processor",
               "Cores that the processes keep busy.",
               CORES,
               ((rate(each("process_cpu_seconds_total")), "{{job}} {{instance}}"),))))))

LATENCY = Dashboard(
    "latency", "RetroInfer latency", "Where the time of a request goes.",
    (Row("Targets", (
        Panel("Late first tokens",
              "Share of the first tokens after more than the target, by window. The alert of the night "
              "fires above 14.4 % (an hour and five minutes), that of the day above 6 % (six hours and "
              "half an hour).",
              SHARE,
              tuple((f"max({worker('retroinfer:first_token_late:ratio_rate' + window)})", window)
                    for window in ("5m", "30m", "1h", "6h")), steps=((0.06, YELLOW), (0.144, RED))),
        Panel("Late tokens",
              "Share of the tokens that came after more than the target, by window; alerts as on the "
              "left.",
              SHARE,
              tuple((f"max({worker('retroinfer:token_late:ratio_rate' + window)})", window)
                    for window in ("5m", "30m", "1h", "6h")), steps=((0.06, YELLOW), (0.144, RED))))),
     Row("First token", (
         FIRST_TOKEN,
         heatmap("Times to first token",
                 "How many requests of which time, upper bounds.",
                 "retroinfer_time_to_first_token_seconds"),
         Panel("Queue",
               "From submission to admission.",
               SECONDS, quantiles("retroinfer_request_queue_time_seconds")),
         Panel("Prefill",
               "Processing of the prompt, from admission to the first token.",
               SECONDS,
               quantiles("retroinfer_request_prefill_time_seconds")),
         heatmap("Queue times",
                 "How many requests waited for how long, upper bounds.",
                 "retroinfer_request_queue_time_seconds"),
         heatmap("Prefill times",
                 "How many prompts took how long, upper bounds.",
                 "retroinfer_request_prefill_time_seconds"),
         Panel("Oldest waiting",
               "Age of the oldest request that waits, in the queue or for a prefill lane.",
               SECONDS,
               ((f"max({worker('retroinfer_oldest_waiting_seconds')})", "oldest"),)),
         REQUESTS)),
     Row("Next tokens", (
         TOKEN_INTERVAL,
         heatmap("Times between tokens",
                 "How many tokens of which time, upper bounds.",
                 "retroinfer_inter_token_latency_seconds"),
         Panel("Mean step",
               "Time between two tokens on average, and the part of a decode step in which the engine's"
               " thread works rather than waits for the device. Masks of constraints are computed while the"
               " device is in the forward pass.",
               SECONDS,
               ((f"{total_rate(worker('retroinfer_inter_token_latency_seconds_sum'))} / "
                 f"({total_rate(worker('retroinfer_inter_token_latency_seconds_count'))} > 0)", "between tokens"),
                (f"{total_rate(worker('retroinfer_decode_host_seconds_total'))} / "
                 f"({total_rate(worker('retroinfer_decode_steps_total'))} > 0)", "engine's thread, a step"),
                (f"{total_rate(worker('retroinfer_decode_mask_seconds_total'))} / "
                 f"({total_rate(worker('retroinfer_decode_steps_total'))} > 0)",
                 "masks of constraints, a step"))),
         Panel("Batch",
               "Tokens that a decode step generates or scores on average: how full it is.",
               TOKENS,
               ((f"({total_rate(worker('retroinfer_generation_tokens_total'))} + "
                 f"{total_rate(worker('retroinfer_scored_tokens_total'))}) / "
                 f"({total_rate(worker('retroinfer_decode_steps_total'))} > 0)", "tokens a step"),)),
         Panel("Drafts",
               "Guessed tokens (--speculation) that steps have tried: drawn, and so without a step of their own, or not.",
               TOKENS_PER_SECOND,
               ((total_rate(worker("retroinfer_accepted_draft_tokens_total")), "accepted"),
                (total_rate(worker("retroinfer_rejected_draft_tokens_total")), "rejected"))),
         Panel("Draft model",
               "Steps of a small model that drafts (--draft-model), each a guess for every text that it drafts for.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_draft_model_steps_total")), "steps"),)))),
     Row("Whole requests", (
         Panel("Whole requests",
               "From the arrival of a request to its end.",
               SECONDS,
               quantiles("retroinfer_e2e_request_latency_seconds")),
         heatmap("Times of whole requests",
                 "How many requests of which time, upper bounds.",
                 "retroinfer_e2e_request_latency_seconds"),
         Panel("Decoding",
               "From the first token to the last.",
               SECONDS,
               quantiles("retroinfer_request_decode_time_seconds")),
         heatmap("Decode times",
                 "How many requests decoded for how long, upper bounds.",
                 "retroinfer_request_decode_time_seconds"),
         PROMPT_LENGTHS, GENERATION_LENGTHS)),
     Row("Tenants", thirds(
         Panel("Tokens by tenant",
               "Of requests that ended, prompts and answers. Without --tenants-file all is one tenant without a "
               "name.",
               TOKENS_PER_SECOND,
               ((f"sum by (tenant) ({rate(worker('retroinfer_tenant_prompt_tokens_total'))}) + "
                 f"sum by (tenant) ({rate(worker('retroinfer_tenant_generation_tokens_total'))})",
                 "{{tenant}}"),), stacked=True),
         Panel("Requests by tenant",
               "Requests that ended, whatever their reason.",
               REQUESTS_PER_SECOND,
               ((f"sum by (tenant) ({rate(worker('retroinfer_tenant_requests_total'))})", "{{tenant}}"),),
               stacked=True),
         Panel("First token by tenant",
               "Mean time from submission to the first token.",
               SECONDS,
               ((f"sum by (tenant) ({rate(worker('retroinfer_tenant_first_token_seconds_total'))}) / "
                 f"(sum by (tenant) ({rate(worker('retroinfer_tenant_requests_total'))}) > 0)",
                 "{{tenant}}"),))))))

CACHE = Dashboard(
    "cache", "RetroInfer KV and cache",
    "The tiers of the KV: device memory, block cache, arena, and what moves between.",
    (Row("Device", (
        Panel("Device memory",
              "Allocated by the worker, by purpose.",
              BYTES,
              ((f"sum by (purpose) ({worker('retroinfer_device_memory_bytes')})", "{{purpose}}"),), stacked=True),
        Panel("Device memory in use",
              "By whomever, as the device's driver has it.",
              BYTES,
              ((worker("retroinfer_device_memory_in_use_bytes"), "{{instance}}"),)),
        Panel("KV memory in use",
              "Dense blocks: windows, and contexts of policy full. Index blocks: centroids. Slots: "
              "pages in the block cache, which may well be full.",
              SHARE,
              tuple((f"max({worker(f'retroinfer_{pool}_used')} / {worker(f'retroinfer_{pool}')})", legend)
                    for pool, legend in (("dense_blocks", "dense blocks"), ("meta_blocks", "index blocks"),
                                         ("slots", "slots of the block cache"))), maximum=1),
        Panel("Sequences",
              "That hold a row of the block tables on the device; that hold extents in the arena.",
              COUNT,
              ((f"sum({worker('retroinfer_table_rows_used')})", "rows of the block tables"),
               (f"sum({store('retroinfer_sequences')})", "in the arena"))))),
     Row("Block cache", (
         HIT_RATIO,
         Panel("Pages looked for",
               "Hits: in a slot. Misses: read from the arena and admitted. Without a slot: read from "
               "the arena and not kept, since no slot was free.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_page_hits_total")), "hits"),
                (total_rate(worker("retroinfer_page_misses_total")), "misses"),
                (total_rate(worker("retroinfer_page_transients_total")), "without a slot")), stacked=True),
         heatmap("Mass left to estimates",
                 "Predicted share of the softmax mass that a request's steps did not attend to exactly. What "
                 "rises means other texts, or a smaller retrieval zone; it says nothing about single words.",
                 "retroinfer_request_unseen_mass_ratio"),
         Panel("Evictions",
               "Pages that gave up their slot; requests of the store that were refused, since the page "
               "was used meanwhile; pages of new segments that went into free slots.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_page_evictions_total")), "evicted"),
                (total_rate(worker("retroinfer_page_evictions_kept_total")), "kept, used since"),
                (total_rate(worker("retroinfer_page_fills_total")), "filled by new segments"))),
         Panel("The store's side",
               "Entries of the access log that are not replayed, and eviction requests without an "
               "answer. Both are short-lived; what only grows is a stall.",
               COUNT,
               ((f"sum({store('retroinfer_access_log_depth')})", "access log"),
                (f"sum({store('retroinfer_evictions_in_flight')})", "evictions in flight"))),
         Panel("Eviction requests",
               "Posted by the store; applied, and refused, by the worker.",
               PER_SECOND,
               tuple((total_rate(store(f"retroinfer_eviction_requests_{kind}_total")), kind)
                     for kind in ("posted", "applied", "refused"))),
         Panel("Access log",
               "Entries that the store replays.",
               PER_SECOND,
               ((total_rate(store("retroinfer_access_log_entries_total")), "replayed"),)))),
     Row("Bus and arena", (
         Panel("Bus",
               "Read from the arena and written to it by the worker: over PCIe where there is a GPU, "
               "whose limit is about 25 GB/s (4.0 x16) or 55 GB/s (5.0 x16) in each direction.",
               BYTES_PER_SECOND,
               ((total_rate(worker("retroinfer_arena_read_bytes_total")), "read"),
                (total_rate(worker("retroinfer_arena_written_bytes_total")), "written"))),
         Panel("Arena",
               "What is reserved or holds segments; of that, what can be found by its name; and of "
               "that, what no sequence uses, which is given up when room is needed.",
               BYTES,
               ((f"sum({store('retroinfer_arena_bytes')})", "size"),
                (f"sum({store('retroinfer_arena_used_bytes')})", "used"),
                (f"sum({store('retroinfer_prefix_cache_bytes')})", "reusable prefixes"),
                (f"sum({store('retroinfer_prefix_cache_unreferenced_bytes')})", "of them, in no use"),
                (f"sum({store('retroinfer_arena_withheld_bytes')})", "withheld from a former worker"),
                (f"min({store('retroinfer_arena_largest_free_bytes')})", "longest free run"))),
         Panel("Stalls",
               "Requests that had to wait for room in the arena (worker), reservations that were "
               "refused for it (store), commits that were refused.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_allocation_failures_total")), "requests that waited"),
                (total_rate(store("retroinfer_reservations_refused_total")), "reservations refused"),
                (total_rate(store("retroinfer_segments_refused_total")), "commits refused"))),
         Panel("Prefixes",
               "Tokens of prompts that were found and need not be computed; segments that made room.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_prefix_cache_hits_tokens_total")), "tokens found"),
                (total_rate(worker("retroinfer_prefix_cache_queries_tokens_total")), "tokens looked for"),
                (total_rate(store("retroinfer_prefix_cache_evictions_total")), "segments evicted"))),
         Panel("Conversations",
               "Of the prompt tokens of requests that go on with a conversation: what the turn before had, and what "
               "of that was computed again.",
               SHARE,
               ((ratio(rate(worker("retroinfer_conversation_earlier_tokens_total")),
                       rate(worker("retroinfer_conversation_prompt_tokens_total"))), "the turn before had"),
                (ratio(rate(worker("retroinfer_conversation_recomputed_tokens_total")),
                       rate(worker("retroinfer_conversation_prompt_tokens_total"))), "computed again")),
               maximum=1),
         Panel("Cached KV for prompts",
               "Read from the arena for prompts; of what several prompts share, not read again because they were "
               "read together.",
               BYTES_PER_SECOND,
               ((total_rate(worker("retroinfer_prefix_read_bytes_total")), "read"),
                (total_rate(worker("retroinfer_prefix_shared_bytes_total")), "not read again"))),
         Panel("Rows not computed again",
               "Rows of layers that prompts read together have in common, counted for each prompt but one.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_prefill_shared_rows_total")), "rows"),)),
         Panel("Segments",
               "Clustered by the worker; of those, what a request had to wait for before its next token; "
               "committed to the store.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_segments_built_total")), "clustered"),
                (total_rate(worker("retroinfer_segments_late_total")), "waited for"),
                (total_rate(store("retroinfer_segments_committed_total")), "committed"))),
         Panel("In the arena",
               "Segments, those that have a name, and extents that are reserved.",
               COUNT,
               ((f"sum({store('retroinfer_segments')})", "segments"),
                (f"sum({store('retroinfer_prefix_cache_segments')})", "with a name"),
                (f"sum({store('retroinfer_reserved_extents')})", "reserved extents"))))),
     Row("Engine", (
         Panel("Decode steps",
               "Of all requests together; launched as one recorded graph (GPU); shapes recorded.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_decode_steps_total")), "steps"),
                (total_rate(worker("retroinfer_decode_graphs_launched_total")), "as one graph"),
                (total_rate(worker("retroinfer_decode_graphs_recorded_total")), "graphs recorded"))),
         Panel("Preemptions",
               "For others of a higher priority that wait for a place or for memory; and that come back. Or "
               "that wait for device memory for their next token.",
               PER_SECOND,
               ((total_rate(worker("retroinfer_preemptions_total")), "preempted"),
                (total_rate(worker("retroinfer_resumptions_total")), "come back"),
                (total_rate(worker("retroinfer_memory_stalls_total")), "wait for memory"))),
         Panel("KV of suspended requests",
               "Memory of the host (--suspended-kv-bytes). While it is full, no other request is preempted.",
               BYTES,
               ((f"sum({worker('retroinfer_suspended_kv_bytes')})", "in use"),)),
         Panel("Engine's thread",
               "Share of its time in which it works, rather than waits for the device or for requests. "
               "Near 100 % it holds up the device.",
               SHARE,
               ((rate(worker("retroinfer_engine_busy_seconds_total")), "{{instance}}"),), maximum=1)))))

DISK = Dashboard(
    "store", "RetroInfer store and disk", "Durable segments, contexts, and the two processes.",
    (Row("Disk", (
        Panel("Bytes on disk",
              "What the folder takes, its limit (0: none), what pinned contexts hold of it, and what is"
              " free on the file system.",
              BYTES,
              ((f"sum({store('retroinfer_durable_bytes')})", "folder"),
               (f"sum({store('retroinfer_durable_limit_bytes')})", "limit"),
               (f"sum({store('retroinfer_contexts_pinned_bytes')})", "pinned"),
               (f"min({store('retroinfer_durable_disk_free_bytes')})", "free on the disk"))),
        Panel("State",
              "1 for the state that holds. off: not asked for; on; degraded: left alone after an error;"
              " missing: asked for, and could not be opened.",
              COUNT,
              ((f"max by (state) ({store('retroinfer_durable_tier_state')})", "{{state}}"),), maximum=1,
              colours=(("on", GREEN), ("off", GREY), ("degraded", ORANGE), ("missing", RED))),
        Panel("Written and read",
              "Segments written to the disk, and read back into the arena.",
              BYTES_PER_SECOND,
              ((total_rate(store("retroinfer_durable_persisted_bytes_total")), "written"),
               (total_rate(store("retroinfer_durable_restored_bytes_total")), "read back"))),
        Panel("Index first",
              "What questions that attend by the index read of texts that are on the disk alone: indexes, what "
              "their steps asked for, and the rest, behind.",
              BYTES_PER_SECOND,
              ((total_rate(store("retroinfer_durable_index_bytes_total")), "index"),
               (total_rate(store("retroinfer_durable_asked_bytes_total")), "asked for"),
               (total_rate(store("retroinfer_durable_behind_bytes_total")), "behind"))),
        Panel("Requests for parts",
              "Requests of the worker for parts of such texts: a step's questions wait for a few.",
              PER_SECOND, ((total_rate(store("retroinfer_durable_part_requests_total")), "requests"),)),
        Panel("Waits for parts",
              "Share of the time in which such requests are under way; two at a time are 200 %.",
              SHARE, ((rate(store("retroinfer_durable_part_request_seconds_total")), "{{instance}}"),)),
        Panel("How busy",
              "Share of the time in which a segment is being written, or read back. At 100 % the disk "
              "is the limit.",
              SHARE, ((rate(store("retroinfer_durable_write_seconds_total")), "writing {{instance}}"),
                      (rate(store("retroinfer_durable_restore_seconds_total")), "reading {{instance}}")), maximum=1),
        Panel("Queue",
              "Segments that wait to be written, the one being written included.",
              COUNT,
              ((f"sum({store('retroinfer_durable_queued_segments')})", "queued"),)),
        Panel("Segments on disk",
              "Those that are whole, and damaged ones that are kept aside.",
              COUNT,
              ((f"sum({store('retroinfer_durable_segments')})", "segments"),
               (f"sum({store('retroinfer_durable_quarantined_segments')})", "in quarantine"))))),
     Row("What goes wrong", (
         Panel("Not written",
               "Failed: an error of the disk. Dropped: queue full, no room, or the disk rests after an "
               "error. Skipped: too many wait for the disk.",
               PER_SECOND,
               ((total_rate(store("retroinfer_durable_write_failures_total")), "failed"),
                (total_rate(store("retroinfer_durable_dropped_total")), "dropped"),
                (total_rate(store("retroinfer_durable_skipped_total")), "skipped"))),
         Panel("Not read",
               "Corrupt: did not match its checksum. Failed: could not be read.",
               PER_SECOND,
               ((total_rate(store("retroinfer_durable_corrupt_total")), "corrupt"),
                (total_rate(store("retroinfer_durable_restore_failures_total")), "failed"))),
         Panel("Removed from disk",
               "Segments, by reason: idle for too long, their tenant's quota, the folder's limit.",
               PER_SECOND,
               ((f"sum by (reason) ({rate(store('retroinfer_durable_evictions_total'))})", "{{reason}}"),), stacked=True),
         Panel("Refused from the worker",
               "Entries of the access log, and segments, that did not pass their checks. Other than 0 "
               "is a fault.",
               PER_SECOND,
               ((total_rate(store("retroinfer_access_log_refused_total")), "access log"),
                (total_rate(store("retroinfer_segments_refused_total")), "segments"))))),
     Row("Contexts", (
         Panel("Contexts",
               "That have a name, and those of them that are never evicted.",
               COUNT,
               ((f"sum({store('retroinfer_contexts')})", "named"),
                (f"sum({store('retroinfer_contexts_pinned')})", "pinned"))),
         Panel("Tokens asked for",
               "Tokens of prompts that reservations asked for, and those that were in segments there; then those "
               "that prefill asked for, and those that were in segments or blocks.",
               TOKENS_PER_SECOND,
               ((total_rate(store("retroinfer_reservation_queries_tokens_total")), "asked for"),
                (total_rate(store("retroinfer_reservation_hits_tokens_total")), "there"),
                (total_rate(store("retroinfer_row_queries_tokens_total")), "asked for by prefill"),
                (total_rate(store("retroinfer_row_hits_tokens_total")), "there, for prefill"))))),
     Row("Processes", (
         Panel("Attached",
               "Workers that have their store, stores that have their worker.",
               COUNT,
               ((worker("retroinfer_store_attached"), "{{instance}} has its store"),
                (store("retroinfer_worker_attached"), "{{instance}} has its worker")), maximum=1),
         Panel("Time since start",
               "Of each process: what falls to 0 was restarted.",
               SECONDS,
               ((f"time() - {each('process_start_time_seconds')}", "{{job}} {{instance}}"),)),
         Panel("Restarts",
               "Within a window: stores that came back, workers that attached, services that "
               "`retroinfer serve` started again.",
               COUNT,
               ((f"sum(increase({worker('retroinfer_store_reconnects_total')}[{WINDOW}]))", "stores that came back"),
                (f"sum(increase({store('retroinfer_workers_attached_total')}[{WINDOW}]))", "workers that attached"),
                (f"sum(increase({each('retroinfer_process_restarts_total')}[{WINDOW}]))", "restarted by serve"))),
         Panel("Connections",
               "Open connections of clients, and open calls on them.",
               COUNT,
               ((each("retroinfer_connections"), "connections {{job}} {{instance}}"),
                (each("retroinfer_open_calls"), "calls {{job}} {{instance}}"))),
         Panel("Arrivals",
               "Connections that were accepted, refused, closed for what they did; calls that were "
               "reset before they were answered.",
               PER_SECOND,
               ((f"sum by (result) ({rate(each('retroinfer_connections_total'))})", "{{result}}"),
                (total_rate(each("retroinfer_connections_closed_total")), "closed"),
                (total_rate(each("retroinfer_lost_calls_total")), "lost calls"))),
         Panel("Memory",
               "Resident memory. That of a store has its arena.",
               BYTES,
               ((each("process_resident_memory_bytes"), "{{job}} {{instance}}"),)),
         Panel("Processor",
               "Cores that the processes keep busy.",
               CORES,
               ((rate(each("process_cpu_seconds_total")), "{{job}} {{instance}}"),)),
         Panel("Descriptors",
               "Open ones against the most that a process may have.",
               SHARE,
               ((f"{each('process_open_fds')} / {each('process_max_fds')}", "{{job}} {{instance}}"),), maximum=1),
         Panel("Certificate",
               "Time until the TLS certificate in use ends; nothing without TLS.",
               SECONDS,
               ((f"{each('retroinfer_certificate_expiry_timestamp_seconds')} - time()",
                 "{{job}} {{instance}}"),))))))

RESPONSES = "retroinfer_gateway_responses_total"
NO_SUCCESS = 'status=~"4..|5.."'
HTTP = Dashboard(
    "gateway", "RetroInfer HTTP gateway", "OpenAI's HTTP API: requests, streams, and clients that misbehave.",
    (Row("Requests", (
        Panel("Responses by path",
              "Of each path that is served; other: paths that are not. Streams count when they begin.",
              REQUESTS_PER_SECOND,
              ((f"sum by (path) ({rate(gateway(RESPONSES))})", "{{path}}"),), stacked=True),
        Panel("Responses by status",
              "200 also for streams that fail later: their error is an event.",
              REQUESTS_PER_SECOND,
              ((f"sum by (status) ({rate(gateway(RESPONSES))})", "{{status}}"),), stacked=True,
              colours=(("200", GREEN), ("400", YELLOW), ("401", PURPLE), ("429", ORANGE), ("500", RED), ("502", RED),
                       ("503", RED))),
        Panel("Answers that were no success",
              "400 to 499: requests that are wrong, have no key (401), or are too many (429). 502: the worker refuses "
              "the gateway's key. 503: it is away, loads or drains. 504: a deadline passed.",
              REQUESTS_PER_SECOND,
              ((f"sum by (path, status) ({rate(gateway(RESPONSES, NO_SUCCESS))})", "{{status}} {{path}}"),)),
        Panel("Share that fails",
              "Of all responses but those to probes. For 500, 502 and 503 an alert comes at 5 %; 400 to 499 are what "
              "clients can mend, or repeat later (429).",
              SHARE,
              ((ratio(rate(gateway(RESPONSES, 'path!="/health", status=~"500|502|503"')),
                      rate(gateway(RESPONSES, 'path!="/health"'))), "500, 502, 503"),
               (ratio(rate(gateway(RESPONSES, 'path!="/health", status=~"4.."')),
                      rate(gateway(RESPONSES, 'path!="/health"'))), "400 to 499")),
              maximum=1, steps=((0.05, RED),)))),
     Row("Streams and connections", (
         Panel("Streams",
               "Generations that are being answered, streamed or not. At --max-generations more get 429.",
               COUNT,
               ((gateway("retroinfer_gateway_generations"), "{{instance}}"),)),
         Panel("Connections",
               "Open connections of HTTP clients, busy or kept. At --max-connections one more takes the place of the one "
               "that is idle for longest.",
               COUNT,
               ((gateway("retroinfer_gateway_connections"), "{{instance}}"),)),
         Panel("Bytes streamed",
               "Server-sent events that were written.",
               BYTES_PER_SECOND,
               ((total_rate(gateway("retroinfer_gateway_stream_bytes_total")), "events"),)),
         Panel("Connections accepted",
               "Many more than requests: clients that do not keep their connections.",
               PER_SECOND,
               ((total_rate(gateway("retroinfer_gateway_connections_accepted_total")), "accepted"),)),
         Panel("Clients that went away",
               "Before their answer's end: they closed the connection, and their generation was ended.",
               PER_SECOND,
               ((total_rate(gateway("retroinfer_gateway_clients_gone_total")), "gone"),)),
         Panel("Clients that were sent away",
               "Connections that were closed: there were too many; the rest of a request did not come; the client did "
               "not read its answer.",
               PER_SECOND,
               ((total_rate(gateway("retroinfer_gateway_connections_refused_total")), "too many"),
                (total_rate(gateway("retroinfer_gateway_stalled_requests_total")), "did not send"),
                (total_rate(gateway("retroinfer_gateway_slow_clients_total")), "did not read"))))),
     Row("Process", (
         Panel("Certificate",
               "Time until the TLS certificate in use ends; nothing without TLS. Alerts come 14 and 2 days before.",
               SECONDS,
               ((f"{gateway('retroinfer_certificate_expiry_timestamp_seconds')} - time()", "{{instance}}"),),
               width=6),
         Panel("Processor",
               "Cores that it keeps busy; one thread does most of it.",
               CORES, ((rate(gateway("process_cpu_seconds_total")), "{{instance}}"),), width=6),
         Panel("Memory",
               "Resident memory: requests that are being received, and answers that wait for clients to read.",
               BYTES, ((gateway("process_resident_memory_bytes"), "{{instance}}"),), width=6),
         Panel("Descriptors",
               "Open ones against the most that it may have: one for each connection.",
               SHARE, ((f"{gateway('process_open_fds')} / {gateway('process_max_fds')}", "{{instance}}"),),
               width=6, maximum=1)))))

DASHBOARDS = (OVERVIEW, LATENCY, CACHE, DISK, HTTP)
