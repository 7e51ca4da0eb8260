#include "text/jinja/workspace.h"

#include <algorithm>
#include <string>

#include "common/status/status_macros.h"
#include "text/jinja/errors.h"
#include "text/jinja/operators.h"

namespace retroinfer::jinja {
namespace {

constexpr size_t kBytesAStep = 256;
constexpr size_t kCellBytes = 128;  // of a shared value beside its contents

absl::StatusOr<int> DepthAbove(int depth_inside) {
  if (depth_inside < Workspace::kValueDepthMax) return depth_inside + 1;
  return OverLimit({"values are nested deeper than ", std::to_string(Workspace::kValueDepthMax)});
}

}  // namespace

absl::Status Workspace::Spend(uint64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.steps_max) return absl::OkStatus();
  return OverLimit({"it takes more than the ", std::to_string(limits_.steps_max),
                    " steps that a template may take"});
}

absl::Status Workspace::CheckRoom(size_t bytes) const {
  if (meter_->HasRoom(bytes)) return absl::OkStatus();
  return OverLimit({"its values take more than the ", std::to_string(meter_->bytes_max()),
                    " bytes that a template may have"});
}

absl::Status Workspace::Expect(size_t bytes) {
  RETURN_IF_ERROR(CheckRoom(bytes));
  return Spend(bytes / kBytesAStep);
}

absl::StatusOr<Value> Workspace::String(Text text) {
  const size_t bytes = kCellBytes + text.size() + text.runs().size() * sizeof(Text::Run);
  RETURN_IF_ERROR(Expect(bytes));
  return Value(
      std::make_shared<const StringCell>(StringCell{std::move(text), Charge(meter_, bytes)}));
}

absl::StatusOr<Value> Workspace::Items(Sequence::Kind kind, Values items) {
  const size_t bytes = kCellBytes + items.size() * sizeof(Value);
  RETURN_IF_ERROR(Expect(bytes));
  int depth = 0;
  bool holds_objects = false;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    holds_objects |= item.holds_objects();
  }
  ASSIGN_OR_RETURN(depth, DepthAbove(depth));
  return Value(std::make_shared<const Sequence>(
      Sequence{kind, std::move(items), depth, holds_objects, Charge(meter_, bytes)}));
}

absl::StatusOr<Value> Workspace::MakeDict(std::vector<Dict::Entry> entries) {
  size_t bytes = kCellBytes;
  std::vector<Dict::Entry> kept;
  absl::flat_hash_map<std::string, size_t> strings;
  int depth = 0;
  bool holds_objects = false;
  for (Dict::Entry& entry : entries) {
    bytes += 2 * sizeof(Dict::Entry);
    size_t index = kept.size();
    if (const Text* const key = entry.first.AsText()) {
      index = strings.try_emplace(key->bytes(), index).first->second;
      bytes += key->size();
    } else {
      RETURN_IF_ERROR(CheckKey(entry.first));
      for (size_t i = 0; i < kept.size(); ++i) {
        if (kept[i].first.AsText() != nullptr) continue;
        ASSIGN_OR_RETURN(const bool equal, Equal(*this, kept[i].first, entry.first));
        if (equal) index = i;
      }
    }
    depth = std::max({depth, entry.first.depth(), entry.second.depth()});
    holds_objects |= entry.first.holds_objects() || entry.second.holds_objects();
    if (index < kept.size()) {
      kept[index].second = std::move(entry.second);
    } else {
      kept.push_back(std::move(entry));
    }
  }
  RETURN_IF_ERROR(Expect(bytes));
  ASSIGN_OR_RETURN(depth, DepthAbove(depth));
  return Value(std::make_shared<const Dict>(
      Dict{std::move(kept), std::move(strings), depth, holds_objects, Charge(meter_, bytes)}));
}

}  // namespace retroinfer::jinja
