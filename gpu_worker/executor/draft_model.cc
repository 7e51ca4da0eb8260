// Invariants:
// * Of a slot, positions [0, kv.num_tokens) of the window have KV. The last fed.size() of these are
//   drafts, as they were fed; all before them are tokens of the text.
// * A text's newest token has no KV: the step that is fed it says what follows.
// * Positions are those of the window: the small model never sees one beyond window_tokens.
#include "gpu_worker/executor/draft_model.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/attention/policy_table.h"

namespace retroinfer {
namespace {

// What the small model sees. Beyond some thousands of tokens its guesses get hardly better, and its
// steps longer.
constexpr int64_t kWindowTokens = 4096;
constexpr int64_t kLeastWindow = 128;
// Drafts pay where few requests decode: rows of a full batch are taken.
constexpr int32_t kMostTexts = 8;
constexpr int64_t kMostRows = 512;
// Rows of a pass, at least: fewer take no less time.
constexpr int64_t kLeastRows = 64;
// The first step of a number of rows is enqueued piece by piece, the second one recorded.
constexpr uint8_t kSettled = 2;

int32_t BlocksOf(int64_t tokens) {
  const int64_t window = std::max<int64_t>(0, tokens - kSinkTokens);
  return static_cast<int32_t>(1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens);
}

KvMemorySizes MemorySizes(const DraftModel::Sizes& sizes) {
  return {.geometry = sizes.geometry,
          .dense_blocks = sizes.max_texts * BlocksOf(sizes.window_tokens),
          .max_sequences = sizes.max_texts,
          .max_model_len = sizes.window_tokens};
}

// A part of a prompt begins where a block does, or at its beginning.
int64_t BeginOfPart(int64_t num_tokens) {
  const int64_t blocks = (num_tokens - kSinkTokens) / kDenseBlockTokens;
  return num_tokens < kSinkTokens || blocks == 0 ? 0 : kSinkTokens + blocks * kDenseBlockTokens;
}

}  // namespace

absl::StatusOr<DraftModel::Sizes> DraftModel::SizesFor(const ModelConfig& draft, int64_t vocab_size,
                                                       int64_t max_model_len, int32_t max_batch) {
  const bool has_windows =
      std::ranges::any_of(draft.layer_windows, [](int32_t window) { return window != 0; });
  if (has_windows) {
    return absl::UnimplementedError(
        "--draft-model: the model has layers that see a window of the newest tokens (Gemma 3, "
        "gpt-oss); such models cannot draft: name one whose layers all see all tokens");
  }
  if (draft.context_length < kLeastWindow) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--draft-model: it was made for ", draft.context_length, " tokens, and drafting needs ",
        kLeastWindow, ": name a model of longer contexts"));
  }
  // A request's last tokens are drafted ahead of its end.
  const int64_t longest = std::max(kLeastWindow, max_model_len + kMostDrafted);
  Sizes sizes{.geometry = draft.geometry(kKvFormat),
              .window_tokens = std::min({kWindowTokens, draft.context_length, longest}),
              .max_texts = std::min(kMostTexts, max_batch),
              .vocab_size = std::min(vocab_size, draft.vocab_size)};
  sizes.max_rows = std::min(kMostRows, sizes.window_tokens);
  return sizes;
}

MemoryNeed DraftModel::MemoryOf(const ModelConfig& draft, const BackendNeeds& backend,
                                const Sizes& sizes) {
  const int32_t rows = sizes.max_step_rows();
  return Transformer::MemoryOf(draft, backend, sizes.model_options()) +
         PrefillLane::MemoryOf(draft, backend.activation_dtype, sizes.geometry,
                               sizes.window_tokens) +
         Sampler::MemoryOf(rows, draft.vocab_size) + DecodeStep::MemoryOf(rows) +
         KvMemory::MemoryOf(MemorySizes(sizes)) +
         DenseZoneBatch::MemoryOf(rows, static_cast<int32_t>(draft.num_query_heads),
                                  static_cast<int32_t>(draft.head_dim), backend);
}

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Create(const Parts& parts,
                                                               const Sizes& sizes) {
  auto model = absl::WrapUnique(new DraftModel(parts, sizes));
  RETURN_IF_ERROR(model->Allocate());
  return model;
}

absl::Status DraftModel::Allocate() {
  Device& device = *parts_.device;
  const ModelConfig& config = parts_.model->config();
  const int32_t rows = sizes_.max_step_rows();
  ASSIGN_OR_RETURN(memory_, KvMemory::Create(device, MemorySizes(sizes_)));
  ASSIGN_OR_RETURN(policy_, FullPolicy::Create(device, parts_.ops->attention(), *parts_.stream,
                                               memory_->dense_pool(), memory_->tables(),
                                               Stretches{.least_tokens = 0},
                                               static_cast<int32_t>(config.num_query_heads), rows));
  ASSIGN_OR_RETURN(sampler_, Sampler::Create(device, parts_.ops->model(), *parts_.stream, rows,
                                             config.vocab_size));
  ASSIGN_OR_RETURN(step_,
                   DecodeStep::Create(device, *parts_.stream, *parts_.model, *sampler_, rows));
  ASSIGN_OR_RETURN(lane_,
                   PrefillLane::Create({.device = parts_.device,
                                        .ops = parts_.ops,
                                        .stream = parts_.stream,
                                        .model = parts_.model,
                                        .arena = {},
                                        .heads = {}},
                                       sizes_.geometry, sizes_.window_tokens, sizes_.max_rows));
  ASSIGN_OR_RETURN(read_, device.CreateEvent());
  slots_.resize(static_cast<size_t>(sizes_.max_texts));
  for (Slot& slot : slots_) {
    ASSIGN_OR_RETURN(slot.sampling,
                     SamplingState::Create(device, *parts_.stream, {.temperature = 0}, {}, {},
                                           config.vocab_size));
  }
  read_text_.reserve(static_cast<size_t>(sizes_.window_tokens));
  rows_.reserve(static_cast<size_t>(rows));
  owners_.reserve(static_cast<size_t>(rows));
  times_seen_.resize(static_cast<size_t>(rows) + 1);
  return absl::OkStatus();
}

absl::Status DraftModel::WarmUp() {
  constexpr uint64_t kId = 1;
  const std::vector<int32_t> prompt(kLeastWindow / 2);
  for (int round = 0; round <= kSettled; ++round) {
    std::vector<int32_t> answer(1);
    const auto text = [&] { return DraftedText{.id = kId, .prompt = prompt, .answer = answer}; };
    RETURN_IF_ERROR(Read(text(), StateOf(text()).unread));
    // Steps of one row, and of two: the newest token and the one before it.
    for (int64_t rows = 1; rows <= 2; ++rows) {
      const Ask ask{.text = text(), .count = 2};
      RETURN_IF_ERROR(Draft({&ask, 1}).status());
      answer.resize(answer.size() + 2);
    }
    Keep({});
  }
  return absl::OkStatus();
}

// --- Texts

DraftModel::Slot* DraftModel::Find(uint64_t id) {
  const auto found = std::ranges::find(slots_, id, &Slot::id);
  return found == slots_.end() ? nullptr : &*found;
}

void DraftModel::LetGo(Slot& slot) {
  if (lane_->Has(slot.kv)) {
    lane_->Drop(slot.kv);
    lane_->Leave(slot.kv);
  }
  if (slot.kv.table_row >= 0) memory_->Free(slot.kv);
  slot.kv = {};
  slot.id = 0;
  slot.is_read = false;
  slot.fed.clear();
}

void DraftModel::Keep(std::span<const uint64_t> ids) {
  for (Slot& slot : slots_) {
    if (slot.id != 0 && std::ranges::find(ids, slot.id) == ids.end()) LetGo(slot);
  }
}

int64_t DraftModel::Pending(const Slot& slot, const DraftedText& text) {
  return slot.window.LengthOf(text.size()) - slot.kv.num_tokens;
}

// Of the drafts that were fed, those that the text has gone on with are tokens of it now.
DraftModel::Slot* DraftModel::Follow(const DraftedText& text) {
  Slot* const slot = Find(text.id);
  if (slot == nullptr || lane_->Has(slot->kv)) return slot;
  int64_t position = slot->kv.num_tokens - std::ssize(slot->fed);
  for (const int32_t token : slot->fed) {
    const int64_t in_text = slot->window.PositionInText(position);
    // The newest token is fed anew.
    if (in_text + 1 >= text.size() || text[in_text] != token) break;
    ++position;
  }
  slot->kv.num_tokens = position;
  slot->fed.clear();
  if (slot->window.MakeRoom(text.size(), kMostDrafted)) {
    slot->kv.num_tokens = 0;
    slot->is_read = false;
  }
  return slot;
}

DraftModel::State DraftModel::StateOf(const DraftedText& text) {
  const auto num_layers = static_cast<int64_t>(parts_.model->config().num_layers);
  const Slot* const slot = Follow(text);
  if (slot == nullptr) {
    const int64_t length = DraftWindow(sizes_.window_tokens, text.size()).LengthOf(text.size());
    return {.has_room = Find(0) != nullptr && length > 1, .unread = (length - 1) * num_layers};
  }
  if (lane_->Has(slot->kv)) {
    return {.has_room = true,
            .unread = (num_layers - lane_->layer()) * lane_->num_rows() - lane_->next_row()};
  }
  const int64_t pending = Pending(*slot, text);
  if (slot->is_read && pending <= kMostDrafted + 1)
    return {.has_room = true, .behind = pending - 1};
  const int64_t begin = BeginOfPart(slot->kv.num_tokens);
  return {.has_room = true,
          .unread = (slot->window.LengthOf(text.size()) - 1 - begin) * num_layers};
}

// --- Reading

absl::StatusOr<DraftModel::Slot*> DraftModel::Take(const DraftedText& text) {
  Slot* const slot = Find(0);
  if (slot == nullptr) return absl::ResourceExhaustedError("no room for the KV of another text");
  slot->kv.sequence_id = text.id;
  slot->kv.total_tokens = sizes_.window_tokens;
  slot->kv.settings.policy = PolicyKind::kFull;
  if (!memory_->Reserve(KvBlocks{.dense = BlocksOf(sizes_.window_tokens)}, slot->kv)) {
    return absl::InternalError("drafts: a slot without blocks");
  }
  slot->id = text.id;
  slot->window = DraftWindow(sizes_.window_tokens, text.size());
  return slot;
}

// No token is one that the model has no embedding of: a model may have been made with more of them
// than another one of the same tokenizer.
int32_t DraftModel::Embeddable(int32_t token) const {
  return token < parts_.model->config().vocab_size ? token : 0;
}

absl::Status DraftModel::BeginToRead(Slot& slot, const DraftedText& text) {
  const int64_t end = slot.window.LengthOf(text.size()) - 1;
  read_text_.clear();
  for (int64_t position = 0; position < end; ++position) {
    read_text_.push_back(Embeddable(text[slot.window.PositionInText(position)]));
  }
  SequenceKv& kv = slot.kv;
  kv.num_tokens = BeginOfPart(kv.num_tokens);
  kv.prompt = read_text_;
  kv.prompt_tokens = end;
  reading_ = static_cast<size_t>(&slot - slots_.data());
  return lane_->Begin(read_text_, kv, *policy_);
}

absl::Status DraftModel::Read(const DraftedText& text, int64_t rows) {
  Slot* slot = Follow(text);
  if (slot == nullptr) {
    ASSIGN_OR_RETURN(slot, Take(text));
  }
  if (!lane_->Has(slot->kv)) RETURN_IF_ERROR(BeginToRead(*slot, text));
  auto outcome = PrefillLane::Outcome::kWorked;
  while (rows > 0 && outcome == PrefillLane::Outcome::kWorked) {
    const int64_t of_pass = std::min(
        {std::max(rows, kLeastRows), sizes_.max_rows, lane_->num_rows() - lane_->next_row()});
    ASSIGN_OR_RETURN(outcome, lane_->RunPass(of_pass, sampler_->logits(1)));
    for (const auto& [kv, failure] : lane_->TakeFailures()) return failure;
    rows -= of_pass;
  }
  RETURN_IF_ERROR(parts_.stream->Record(*read_));
  RETURN_IF_ERROR(parts_.device->Synchronize(*read_));
  if (outcome != PrefillLane::Outcome::kDone) return absl::OkStatus();
  RETURN_IF_ERROR(policy_->FinishPrefill(slot->kv).status());
  lane_->Leave(slot->kv);
  slot->is_read = true;
  return absl::OkStatus();
}

// --- Drafting

void DraftModel::CollectRows(std::span<const Ask> asks, int64_t step, const Drafts& drafts) {
  rows_.clear();
  owners_.clear();
  for (size_t i = 0; i < asks.size(); ++i) {
    // One that has ended before has fewer tokens than steps were.
    if (step >= asks[i].count || std::ssize(drafts.tokens[i]) < step) continue;
    Slot& slot = *Find(asks[i].text.id);
    const auto add = [&](int32_t token, int64_t ahead) {
      rows_.push_back({.sequence = &slot.kv,
                       .policy = policy_.get(),
                       .sampling = &*slot.sampling,
                       .token = Embeddable(token),
                       .position = slot.kv.num_tokens + ahead});
      owners_.push_back(i);
    };
    if (step > 0) {
      add(drafts.tokens[i].back(), 0);
      slot.fed.push_back(drafts.tokens[i].back());
      continue;
    }
    const int64_t pending = Pending(slot, asks[i].text);
    for (int64_t ahead = 0; ahead < pending; ++ahead) {
      add(asks[i].text[slot.window.PositionInText(slot.kv.num_tokens + ahead)], ahead);
    }
  }
}

bool DraftModel::TakeResults(std::span<const Ask> asks, int64_t step,
                             std::span<const StepResult> results, Drafts& drafts) {
  bool goes_on = false;
  for (size_t row = 0; row < results.size(); ++row) {
    const size_t owner = owners_[row];
    if (row + 1 < results.size() && owners_[row + 1] == owner) continue;
    const int32_t token = results[row].token->token;
    if (token >= sizes_.vocab_size) continue;  // nothing that the text could go on with
    drafts.tokens[owner].push_back(token);
    goes_on |= step + 1 < asks[owner].count;
  }
  return goes_on;
}

absl::StatusOr<DraftModel::Drafts> DraftModel::Draft(std::span<const Ask> asks) {
  Drafts drafts;
  drafts.tokens.resize(asks.size());
  drafts.is_settled = true;
  for (const Ask& ask : asks) {
    const Slot* const slot = Follow(ask.text);
    RI_CHECK(slot != nullptr && slot->is_read && ask.count <= kMostDrafted &&
             Pending(*slot, ask.text) <= kMostDrafted + 1);
  }
  for (int64_t step = 0, goes_on = 1; goes_on != 0; ++step) {
    CollectRows(asks, step, drafts);
    if (rows_.empty()) break;
    uint8_t& times_seen = times_seen_[rows_.size()];
    drafts.is_settled &= times_seen >= kSettled;
    times_seen = std::min<uint8_t>(times_seen + 1, kSettled);
    ASSIGN_OR_RETURN(const std::span<const StepResult> results, step_->Run(rows_));
    ++drafts.num_steps;
    drafts.num_rows += std::ssize(rows_);
    goes_on = TakeResults(asks, step, results, drafts) ? 1 : 0;
  }
  return drafts;
}

}  // namespace retroinfer
