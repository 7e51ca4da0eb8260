// What the scheduler is told, and what it answers: values without pointers, so that a plan can be
// recorded, compared, and carried out by several workers alike. What the block cache needs between
// two steps is each worker's own (wave_buffer/cache_upkeep.h).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "gpu_worker/scheduler/work.h"

namespace retroinfer {

enum class RequestPhase {
  kWaiting,    // in the queue; holds nothing
  kReserving,  // holds device memory, waits for an answer of the store
  kReady,      // holds all that reading the prompt, or its next part, needs
  kReading,    // in a lane
  kSettling,   // prompt or part read; the background builds segments, or rows are being measured
  kDecoding,   // takes part in decode steps
  kLeaving,    // being suspended: KV is copied out of the blocks that the request still holds
  kSuspended,  // KV is in host memory and in the arena; holds nothing on the device
  kReturning,  // holds blocks again, into which KV is being copied
  kEnded,      // finished towards the client, in no description; the background may use its memory
};

// What a request that asked the store for extents has heard.
enum class StoreAnswer {
  kNone,     // nothing yet, or it has not asked
  kGranted,  // what it asked for, or as much of it as it can do without
  kNoRoom,   // in the arena
};

struct RequestDescription {
  uint64_t id = 0;
  RequestPhase phase = RequestPhase::kWaiting;
  double arrival = 0;                                         // seconds
  double deadline = std::numeric_limits<double>::infinity();  // seconds
  bool is_aborted = false;
  bool has_failed = false;  // the device, the background or the store could not do what it needs
  // kWaiting: in no description before, and tokens of its prompt that may be found cached.
  bool is_new = false;
  int64_t nameable_tokens = 0;
  int32_t priority = 0;  // lower first
  uint32_t tenant = 0;   // SchedulerInput::weights
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;    // of them, read instead of computed; 0 while that is not known
  int64_t unshared_tokens = 0;  // of those, in no segment whose index it shares
  // What its prompt begins with: requests with the same first segment have the same number here; 0
  // is for prompts that are never shared.
  // common_tokens compares it with the first that came of the kReady requests of that number: how
  // many leading tokens both prompts have, at least those that both have cached. Of that first one
  // itself it is all tokens.
  uint64_t prefix = 0;
  int64_t common_tokens = 0;
  int64_t context = 0;  // tokens with KV
  // Of who holds none, what it takes to begin or to come back; else what comes free without it.
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  // What it may need beyond that, at the most.
  int32_t more_dense_blocks = 0;
  int32_t more_meta_blocks = 0;
  // kDecoding: what of that it wants at this moment, and how many tokens it may have without.
  int32_t asked_dense_blocks = 0;
  int32_t asked_meta_blocks = 0;
  int64_t room = std::numeric_limits<int64_t>::max();
  bool wants_extents = false;
  bool asks_store = false;                  // it cannot be read before the store has answered
  StoreAnswer answer = StoreAnswer::kNone;  // kReserving
  // Of kNoRoom: others hold extents, or have given some back since it asked.
  bool arena_may_get_room = false;
  // The arena had no room for it and nothing was given back since.
  bool arena_is_full = false;
  bool takes_in_order = false;  // AttentionPolicy::TakesInOrder
  // The tokens above are those of the prompt's next part and of what it needs of the ones before;
  // it comes back for the others.
  bool has_more_parts = false;
  int64_t later_tokens = 0;   // of the prompt, in later parts, whose rows attend to all before them
  bool is_settled = false;    // kSettling: nothing of its prompt is left to do
  bool can_decode = false;    // kDecoding: no background work of it is late
  double decoding_since = 0;  // kDecoding: seconds; who came first keeps its place
  bool goes_live = false;     // kDecoding: its next segment does, in its next step
  int64_t more_rows = 0;      // kDecoding: further tokens of it that may share that step
  bool is_copied = false;     // kLeaving, kReturning: its KV is where it is to be
  // What it takes to let it step aside.
  bool can_suspend = false;      // kDecoding: nothing in the background works for it
  int32_t suspended_blocks = 0;  // kDecoding: of the host, that would hold its KV
  int32_t num_suspensions = 0;   // so far
  double resident_since = 0;     // kDecoding: seconds; since it began to decode or came back last
  double suspended_since = 0;    // kSuspended: seconds
  int64_t tokens_left = 0;       // that it may still generate
  int64_t tokens_generated = 0;
  bool length_is_known = false;  // it will generate all of them
};

// Where prompts are read: one group at a time, its rows one after the other, layer by layer.
struct LaneDescription {
  struct Member {
    uint64_t id = 0;
    uint32_t tenant = 0;
    int32_t priority = 0;
    double arrival = 0;         // seconds
    int64_t rows = 0;           // to compute
    int64_t cached_tokens = 0;  // between the first rows (the sink) and the others
    int64_t unshared_tokens = 0;
    bool takes_in_order = false;
    bool has_more_parts = false;
    uint64_t prefix = 0;  // as RequestDescription has it
    int64_t common_tokens = 0;
  };
  // Neighbouring rows of one member, or of several whose prompts have them in common.
  struct Run {
    int64_t rows = 0;
    int64_t depth = 0;    // tokens before the first one
    int64_t cached = 0;   // of them, read from the arena before this run
    uint32_t tenant = 0;  // who is charged
  };
  int64_t max_tokens = 0;  // LaneTokens() of all members
  bool is_free = true;
  std::vector<Member> members;  // those whose rows are not all planned; in the order of rows
  std::vector<Run> runs;        // of all members; empty: RunsOf() says what they are taken for
  uint32_t layer = 0;           // of the next row
  int64_t next_row = 0;
  uint32_t layers_open = 0;  // layers from this on must wait for the background
  // Behind the last layer: rows of members that wait to be measured, and keep the lane until then.
  int64_t rows_to_measure = 0;
};

// What the device has done, and the time that it took.
struct MeasuredWork {
  Work work;
  double seconds = 0;
};

struct SchedulerInput {
  double now = 0;  // seconds
  bool aborts_all = false;
  bool forgets_costs = false;          // of all work so far
  std::vector<MeasuredWork> measured;  // since the last plan
  // Requests that have ended, and whose memory neither the device nor the background uses any more.
  std::vector<uint64_t> unused;
  std::vector<RequestDescription> requests;
  std::vector<LaneDescription> lanes;  // the shortest last
  std::vector<double> weights;         // of tenants, each above 0
  std::vector<uint32_t>
      new_tenants;  // of those, who have the number of another one since the last plan
  int64_t free_dense_blocks = 0;
  int64_t free_meta_blocks = 0;
  int64_t free_table_rows = 0;
  int64_t free_suspended_blocks = 0;  // of the host
  double seconds_in_flight = 0;       // of passes that the device has yet to finish, estimated
  int64_t free_passes = 0;            // passes that may be enqueued now
};

struct StepPlan {
  enum class EndReason {
    kAborted,
    kLate,         // its deadline has passed
    kUnreachable,  // its first token cannot come before its deadline
    kFailed,       // RequestDescription::has_failed
    kNoRoom,       // in the arena, though nobody else has any of it
  };
  // A request that ends whatever it has.
  struct Ending {
    uint64_t id = 0;
    EndReason reason = EndReason::kAborted;
    double seconds = 0;  // kUnreachable: until its first token, at the least
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
    Work work;  // what it was taken for
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

  // In the order in which they are carried out.
  std::vector<uint64_t> let_go;  // have ended; what they hold comes free
  std::vector<Ending> end;
  std::vector<uint64_t> grant;     // take what the store has granted, and can be read
  std::vector<uint64_t> put_back;  // there was no room in the arena: they hold nothing and wait
  std::vector<uint64_t> leave;     // their KV is copied to the host: what they hold comes free
  std::vector<uint64_t> rejoin;    // it is copied back: they decode
  std::vector<uint64_t> suspend;   // step aside: what they hold comes free in a while
  std::vector<uint64_t> grow;      // get the memory that they ask for
  std::vector<uint64_t> resume;    // get their memory again
  std::vector<uint64_t> admit;     // get their memory
  std::vector<uint64_t> ask;       // of those, who ask the store for extents
  std::vector<Group> begin;        // enter a lane
  std::vector<Pass> passes;
  std::vector<Measure> measure;
  // Their prompts are done with, they decode from now on: those whose background has finished, and
  // those whose prompts these passes finish and that need no background.
  std::vector<uint64_t> finish;
  // Get one token each, unless they end before: those who decode already, and those whose prompts
  // these passes finish and that need no background. Who is there k times gets k tokens.
  std::vector<uint64_t> decode;
  std::vector<uint64_t> go_live;  // of those, whose next segment is attended from this step on
  Work step;                      // what the decode step was taken for

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
           a.go_live == b.go_live;
  }
};

}  // namespace retroinfer
