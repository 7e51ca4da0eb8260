// What came of a StepCommand, as a plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/executor/output_token.h"

namespace retroinfer {

// A token that was drawn, and what the sequence's constraint says of it.
struct DrawnToken {
  OutputToken token;
  absl::Status allowed;   // SamplingState::Count
  bool must_end = false;  // SamplingState::MustEnd
};

struct CommandResult {
  struct Failure {
    uint64_t id = 0;
    absl::Status status;
  };
  struct Progress {
    uint64_t id = 0;
    int64_t processed_tokens = 0;  // PrefillLane::processed_tokens
  };
  // A sequence whose part of the prompt, or the rest of it, is computed.
  struct Read {
    enum class End : uint8_t {
      kPart,         // the background has something to do before the next part
      kPartInOrder,  // the next part can be read
      kPrompt,
      kHead,  // of a sequence with given tokens: the rest of its prompt is fed to steps
    };
    uint64_t id = 0;
    End end = End::kPart;
    int64_t num_tokens = 0;  // SequenceKv::num_tokens
    // kPrompt: what follows it.
    DrawnToken first;                   // without first_targets
    std::vector<OutputToken> measured;  // of each of first_targets
  };
  struct Measured {
    uint64_t id = 0;
    std::vector<OutputToken> tokens;  // of the prompt, behind those measured before
  };
  struct Row {
    uint64_t id = 0;
    DrawnToken drawn;  // or measured
    AttentionPolicy::BytesRead bytes;
    std::optional<double> unseen;
    // The row came behind a token that the sequence did not get: what was drawn there means
    // nothing, and the row's KV is not the sequence's.
    bool is_rejected = false;
    bool is_given = false;  // another given token follows: nothing was drawn or measured
    // The row came to KV that is on its way from the disk, or came behind such a row. Nothing was
    // drawn, and the sequence is where it was: the same token is to be fed again.
    bool is_unread = false;
  };

  // Not OK: the command contradicts what the executor has, and nothing was done.
  absl::Status refused;
  // Sequences of admit, grow, resume and suspend for which there was no memory: they are as they
  // were.
  std::vector<uint64_t> without_memory;
  // Sequences that have to end, and why. What was to be done for them may be done in part.
  std::vector<Failure> failed;
  std::vector<Progress> progress;  // after each pass
  std::vector<Read> read;
  std::vector<Measured> measured;  // an entry a sequence
  std::vector<uint64_t> finished;  // sequences of `finish` that decode from now on
  std::vector<Failure> unsaved;    // by the name of the save: nothing of it is under way
  // Of the command's rows, in their order; without any after a step that failed.
  std::vector<Row> rows;
  absl::Status step;

  // Makes it empty and keeps its memory.
  void Clear();
  bool LacksMemory(uint64_t id) const;
  // Why the sequence has to end; null: it does not.
  const absl::Status* FailureOf(uint64_t id) const;
};

}  // namespace retroinfer
