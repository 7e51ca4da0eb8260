// SchedulerInput and StepPlan: what the scheduler is told, and what the scheduler answers. Both are
// values without pointers, so that a plan can be recorded, compared, and carried out by several
// workers alike. What the block cache needs between two steps is not planned here: each worker does
// that alone (wave_buffer/cache_upkeep.h).
//
// Times are seconds of one clock; ids are sequence ids.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "gpu_worker/scheduler/work.h"

namespace retroinfer {

enum class RequestPhase {
  kWaiting,    // in the queue; holds nothing
  kReserving,  // holds device memory, waits for the store's answer
  kReady,      // holds all that reading the prompt, or the prompt's next part, needs
  kReading,    // in a lane
  kSettling,   // prompt or part read; the background builds segments, or rows are being measured
  kDecoding,   // takes part in decode steps
  kLeaving,    // being suspended: KV is copied out of the blocks that the request still holds
  kSuspended,  // KV is in host memory and in the arena; holds nothing on the device
  kReturning,  // being resumed: KV is copied back into the blocks that the request holds again
  kEnded,      // finished towards the client, in no description; the background may use its memory
};

// The store's answer to a request for extents.
enum class StoreAnswer {
  kNone,       // nothing yet, or the request has not asked
  kGranted,    // all extents, or as many as the request can do with
  kArenaFull,  // the arena has no room for the extents
};

struct RequestDescription {
  uint64_t id = 0;
  RequestPhase phase = RequestPhase::kWaiting;
  double arrival = 0;                                         // seconds
  double deadline = std::numeric_limits<double>::infinity();  // seconds
  bool is_aborted = false;
  bool has_failed = false;  // the device, the background or the store could not serve the request
  bool is_new = false;      // kWaiting: no earlier input has described the request
  // is_new: tokens of the prompt that may be found cached.
  int64_t nameable_tokens = 0;
  int32_t priority = 0;  // lower first
  uint32_t tenant = 0;   // index into SchedulerInput::weights

  // --- The prompt, or the part of the prompt that is read next
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;    // prompt tokens that are read, not computed; 0 while unknown
  int64_t unshared_tokens = 0;  // cached tokens that no shared index covers
  // Number of the prefix group: requests whose prompts begin with the same segment. 0: none.
  uint64_t prefix = 0;
  // Length of the longest common prefix with the oldest ready request of this prefix group (its own
  // length for that request), in tokens; no less than the cached tokens that both have.
  int64_t common_tokens = 0;

  // --- Device memory
  int64_t context = 0;  // tokens with KV
  // kDecoding, before the first step: of the context, tokens to which no step has attended since
  // their index came to the device (KvMemory::ColdTokens).
  int64_t cold_tokens = 0;
  // A request that holds no memory: blocks that it takes to begin or to be resumed. Any other:
  // blocks that come free when the request ends.
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  // Upper bound of the blocks that the request may need in addition.
  int32_t more_dense_blocks = 0;
  int32_t more_meta_blocks = 0;
  // kDecoding: additional blocks that the request asks for.
  int32_t asked_dense_blocks = 0;
  int32_t asked_meta_blocks = 0;
  // kDecoding: tokens that fit into the blocks that the request holds. 0: it is stalled.
  int64_t free_tokens = std::numeric_limits<int64_t>::max();

  // --- The store
  bool wants_extents = false;
  bool asks_store = false;                  // the prompt cannot be read before the store's answer
  StoreAnswer answer = StoreAnswer::kNone;  // kReserving
  // kArenaFull: others hold extents, or have released extents since the request asked.
  bool arena_may_free_pages = false;
  // The store's last answer was kArenaFull, and nobody has released extents since.
  bool arena_is_full = false;

  // --- How the prompt is read
  bool takes_in_order = false;  // AttentionPolicy::TakesInOrder
  // Rows of the prompt from this token on attend to chosen blocks of keys; kNeverSparse: none.
  int64_t sparse_from = std::numeric_limits<int64_t>::max();
  bool has_more_parts = false;  // the request is kReady again for the prompt's next part
  int64_t later_tokens = 0;  // prompt tokens of later parts, whose rows attend to all before them
  // The tail: tokens behind the prompt that steps are fed before a token is drawn; kDecoding: those
  // left. `given_depth` tokens are before the first of all.
  int64_t given_tokens = 0;
  int64_t given_depth = 0;
  bool is_settled = false;  // kSettling: the background has finished with the prompt

  // --- Decoding
  bool can_decode = false;    // kDecoding: no background work that the next step needs is late
  double decoding_since = 0;  // kDecoding: seconds; rows of the batch go to the earliest first
  bool goes_live = false;     // kDecoding: the next step attends through the next segment's index
  // kDecoding: tokens that may share a step with the next one, given or drafted.
  int64_t more_rows = 0;
  // The next tokens of a request that decodes come in runs of so many rows, the last one perhaps of
  // fewer: a step has all rows of a run or none (AttentionPolicy::RowsOfRun).
  int64_t rows_of_run = 1;
  // Of drafted ones, above 0: the chance that one is right if those before it are.
  double draft_chance = 0;
  // kDecoding: what a draft model can add (executor/draft_model.h).
  struct ByModel {
    int64_t rows = 0;    // tokens that it may draft for the next step; 0: none
    double chance = 0;   // that one is right if those before it are
    int64_t unread = 0;  // rows of its layers that it has to read before
    int64_t behind = 0;  // tokens that it is fed before it drafts, beside the newest
  };
  ByModel by_model;
  // The next step feeds the request given tokens (scoring, or the end of its prompt): its client
  // waits for their end, not for each one.
  bool measures_given = false;

  // --- Suspension
  bool is_copied = false;        // kLeaving, kReturning: the copies of the KV are done
  bool can_suspend = false;      // kDecoding: nothing in the background works for the request
  int32_t suspended_blocks = 0;  // kDecoding: host blocks that the request's KV would take
  int32_t num_suspensions = 0;   // so far
  double resident_since = 0;     // kDecoding: seconds; begin of decoding, or last resumption
  double suspended_since = 0;    // kSuspended: seconds

  // --- Output
  int64_t tokens_left = 0;  // upper bound of the tokens still to be generated
  int64_t tokens_generated = 0;
  bool length_is_known = false;  // the request generates exactly tokens_left more
};

// A lane reads the prompts of one group at a time, the rows one after the other, layer by layer.
struct LaneDescription {
  static constexpr int64_t kNeverSparse = std::numeric_limits<int64_t>::max();
  struct Member {
    uint64_t id = 0;
    uint32_t tenant = 0;
    int32_t priority = 0;
    double arrival = 0;         // seconds
    int64_t rows = 0;           // rows to compute
    int64_t cached_tokens = 0;  // between the first rows (the sink) and the other rows
    int64_t unshared_tokens = 0;
    bool takes_in_order = false;
    bool has_more_parts = false;
    uint64_t prefix = 0;        // RequestDescription::prefix
    int64_t common_tokens = 0;  // RequestDescription::common_tokens
    int64_t sparse_from = kNeverSparse;
    int64_t given_tokens = 0;  // RequestDescription::given_tokens

    bool is_sparse() const { return sparse_from != kNeverSparse; }
  };
  // Neighbouring rows of one member, or rows that several members have in common.
  struct Run {
    int64_t rows = 0;
    int64_t depth = 0;    // tokens before the first row
    int64_t cached = 0;   // tokens before the first row that are read from the arena for this run
    uint32_t tenant = 0;  // the tenant that is charged
    // Of the tokens, counted as `depth`: rows from here on attend to chosen blocks of keys. Then no
    // pass cuts a unit of the run (common/kv/query_units.h).
    int64_t sparse_from = kNeverSparse;
  };
  int64_t max_tokens = 0;  // upper bound of LaneTokens(members)
  bool is_free = true;
  std::vector<Member> members;  // members with rows that are not planned yet; in the order of rows
  std::vector<Run> runs;        // runs of all members; empty: RunsOf(members) is the estimate
  uint32_t layer = 0;           // layer of the next row
  int64_t next_row = 0;
  uint32_t layers_open = 0;  // layers from this one on must wait for the background
  // After the last layer: rows that wait to be measured. Their members keep the lane until then.
  int64_t rows_to_measure = 0;
};

// Work that the device has done, and the time that the work took.
struct MeasuredWork {
  Work work;
  double seconds = 0;
};

struct SchedulerInput {
  double now = 0;  // seconds
  bool aborts_all = false;
  bool forgets_costs = false;          // the costs learned so far no longer hold
  std::vector<MeasuredWork> measured;  // since the last plan
  // Requests that have ended, and whose memory neither the device nor the background uses any more.
  std::vector<uint64_t> unused;
  std::vector<RequestDescription> requests;
  std::vector<LaneDescription> lanes;  // the shortest last
  std::vector<double> weights;         // by tenant, each above 0
  // Tenants that took over another tenant's number since the last plan.
  std::vector<uint32_t> new_tenants;
  int64_t free_dense_blocks = 0;
  int64_t free_meta_blocks = 0;
  int64_t free_table_rows = 0;
  int64_t free_suspended_blocks = 0;  // host blocks for the KV of suspended requests
  int64_t draft_untried = 0;          // tokens generated since the draft model was asked last
  uint64_t draft_reading = 0;         // the request whose text the draft model reads; 0: none
  double seconds_in_flight = 0;       // estimate for the passes that the device has yet to finish
  int64_t free_passes = 0;            // passes that may be enqueued now
};

struct StepPlan {
  enum class EndReason {
    kAborted,
    kLate,         // its deadline has passed
    kUnreachable,  // its first token cannot come before its deadline
    kFailed,       // RequestDescription::has_failed
    kArenaFull,    // although no other request holds extents: the extents can never be had
  };
  // A request that ends, in whatever phase.
  struct Ending {
    uint64_t id = 0;
    EndReason reason = EndReason::kAborted;
    double seconds = 0;  // kUnreachable: lower bound of the time to the first token
    friend bool operator==(const Ending&, const Ending&) = default;
  };
  struct Group {
    size_t lane = 0;
    std::vector<uint64_t> members;
    friend bool operator==(const Group&, const Group&) = default;
  };
  // Rows [first_row, first_row + num_rows) of a lane's group go through a layer.
  struct Pass {
    size_t lane = 0;
    uint32_t layer = 0;
    int64_t first_row = 0;
    int64_t num_rows = 0;
    Work work;  // estimate of the pass
    friend bool operator==(const Pass& a, const Pass& b) {
      return a.lane == b.lane && a.layer == b.layer && a.first_row == b.first_row &&
             a.num_rows == b.num_rows;
    }
  };

  // The next rows of a lane's group that wait to be measured.
  struct Measure {
    size_t lane = 0;
    int64_t num_rows = 0;
    friend bool operator==(const Measure&, const Measure&) = default;
  };

  // Tokens that the draft model drafts before the step, of requests whose further rows these are.
  struct Draft {
    uint64_t id = 0;
    int64_t count = 0;
    friend bool operator==(const Draft&, const Draft&) = default;
  };
  // Rows of its layers for which the draft model reads a request's text: a part of what it has to.
  struct DraftRead {
    uint64_t id = 0;
    int64_t rows = 0;
    friend bool operator==(const DraftRead&, const DraftRead&) = default;
  };

  // Lists of ids, in the order in which the lists are carried out.
  std::vector<uint64_t> let_go;    // ended requests: their memory comes free
  std::vector<Ending> end;         // requests that end now
  std::vector<uint64_t> grant;     // take the extents granted by the store, and become kReady
  std::vector<uint64_t> put_back;  // the arena is full: give their blocks back and wait again
  std::vector<uint64_t> leave;     // copied to the host: their blocks come free (kSuspended)
  std::vector<uint64_t> rejoin;    // copied back: decode again
  std::vector<uint64_t> suspend;   // preempted: copying to the host begins (kLeaving)
  std::vector<uint64_t> grow;      // get the blocks that they ask for
  std::vector<uint64_t> resume;    // get blocks again: copying back begins (kReturning)
  std::vector<uint64_t> admit;     // get the blocks to begin with
  std::vector<uint64_t> ask;       // requests of `admit` that ask the store for extents
  std::vector<Group> begin;        // groups that enter a lane
  std::vector<Pass> passes;
  std::vector<Measure> measure;
  // Requests that decode from now on: their background work has finished, or these passes finish
  // their prompts and no background work follows. After a part, a request becomes kReady instead.
  std::vector<uint64_t> finish;
  // Rows of the decode step: requests that decode, and requests of `finish` without background
  // work. A request listed k times occupies k rows of the step. A request that ends before the step
  // is left out.
  std::vector<uint64_t> decode;
  std::vector<uint64_t> go_live;  // requests of `decode` whose next segment is attended from now on
  std::vector<Draft> drafts;
  std::vector<DraftRead> draft_reads;  // at most one
  Work step;                           // estimate of the decode step, with these drafts

  bool empty() const {
    return let_go.empty() && end.empty() && grant.empty() && put_back.empty() && leave.empty() &&
           rejoin.empty() && suspend.empty() && grow.empty() && resume.empty() && admit.empty() &&
           begin.empty() && passes.empty() && measure.empty() && finish.empty() && decode.empty();
  }
  friend bool operator==(const StepPlan& a, const StepPlan& b) {
    return a.let_go == b.let_go && a.end == b.end && a.grant == b.grant &&
           a.put_back == b.put_back && a.leave == b.leave && a.rejoin == b.rejoin &&
           a.suspend == b.suspend && a.grow == b.grow && a.resume == b.resume &&
           a.admit == b.admit && a.ask == b.ask && a.begin == b.begin && a.passes == b.passes &&
           a.measure == b.measure && a.finish == b.finish && a.decode == b.decode &&
           a.go_live == b.go_live && a.drafts == b.drafts && a.draft_reads == b.draft_reads;
  }
};

}  // namespace retroinfer
