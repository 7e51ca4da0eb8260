// What an executor does next, as a plain value: all that it has to know, and no pointer into the
// memory of who commands. Whoever carries out the same commands in the same order, in this process
// or in another one, computes the same tokens.
//
// A round of the engine is a few commands. Each ends where the engine has to look at what came of
// it before it can say more: who got memory, which tokens follow a prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv/extent.h"
#include "gpu_worker/executor/sampling_params.h"
#include "gpu_worker/kv/attention_settings.h"
#include "gpu_worker/kv/block_copier.h"
#include "gpu_worker/kv/cached_run.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

struct StepCommand {
  using Group = StepPlan::Group;
  using Pass = StepPlan::Pass;
  using Measure = StepPlan::Measure;

  // A sequence begins to be known. It holds no memory of the device yet.
  struct Open {
    uint64_t id = 0;
    std::vector<int32_t> prompt;
    // So many tokens of the prompt's end are not read but fed to steps, before anything is drawn.
    int64_t given_tokens = 0;
    int64_t total_tokens = 0;  // prompt + the most that may be generated
    AttentionSettings attention;
    SamplingParams sampling;  // `stop` and what is about text alone may be left out
    std::vector<int32_t> eos_token_ids;
    bool is_prompt_only = false;         // nothing is decoded: the prompt's own tokens are measured
    int32_t num_prompt_logprobs = -1;    // Sequence::num_prompt_logprobs
    std::vector<int32_t> first_targets;  // not empty: nothing is drawn; measured behind the prompt
  };
  struct Blocks {
    uint64_t id = 0;
    KvBlocks blocks;
  };
  // What the sequence has in the arena, from now on until it is lengthened.
  struct Claim {
    uint64_t id = 0;
    std::vector<Extent> extents;     // one a segment
    size_t num_cached_segments = 0;  // of these, in front: SequenceKv
    std::vector<CachedRun> cached;   // SequenceKv: what the prompt reads instead of computing it
  };
  // The sequence may grow further; it has these extents then.
  struct Lengthening {
    uint64_t id = 0;
    int64_t total_tokens = 0;
    std::vector<Extent> extents;
    std::vector<SequenceKv::Growth> growths;
  };
  // Copies of blocks of the sequence's window into the arena.
  struct Save {
    uint64_t id = 0;       // the sequence
    uint64_t save_id = 0;  // names the copies; not another save's that is under way
    std::vector<BlockCopier::Block> blocks;
  };
  // A row of the decode step: StepRow. Of a sequence with given tokens left, rows have these, in
  // order, and only a row with the last of them draws. Of another sequence that draws, the first
  // row has the token that
  // was drawn last, and each further one a draft of what the row before is about to draw. Drafts
  // that are right are kept, up to the first that is not (CommandResult::Row::is_rejected).
  struct Row {
    uint64_t id = 0;
    int32_t token = -1;
    int64_t position = 0;
    int32_t target = -1;  // of a sequence with first_targets: the token to measure; else -1
  };

  // In the order in which the lists are carried out. A sequence is in the stage that its list asks
  // for before the command begins: it is in one list of those from let_go to admit, at most once.
  std::vector<Open> open;
  std::vector<uint64_t> drop;      // their results are not wanted any more
  std::vector<uint64_t> let_go;    // dropped; all that they hold comes free, their ids with it
  std::vector<Claim> claim;        // admitted ones
  std::vector<uint64_t> put_back;  // admitted; their blocks come free, they are open again
  std::vector<uint64_t> leave;     // copied to the host; their blocks come free
  std::vector<uint64_t> rejoin;    // copied back: they decode again
  std::vector<uint64_t> rewind;    // their next position is that behind the prompt
  std::vector<Blocks> give_back;   // keep so many dense blocks
  std::vector<Lengthening> lengthen;
  std::vector<uint64_t> suspend;  // copying to the host begins
  std::vector<Blocks> grow;       // get further blocks
  std::vector<Blocks> resume;     // get blocks; copying back begins
  std::vector<Blocks> admit;      // get the blocks to begin with
  std::vector<Group> begin;       // groups that enter a lane
  std::vector<Pass> passes;
  std::vector<Measure> measure;
  std::vector<uint64_t> finish;  // a part of the prompt, or all of it, is done with
  std::vector<Save> save;
  std::vector<uint64_t> end_save;  // names of saves that are copied: nobody asks for them again
  std::vector<Row> rows;           // of one decode step, by policy and by sequence

  bool empty() const;
  // Makes it empty and keeps its memory.
  void Clear();
  // The sequences that are in any list, each once.
  std::vector<uint64_t> Sequences() const;
};

}  // namespace retroinfer
