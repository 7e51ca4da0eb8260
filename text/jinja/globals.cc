#include "text/jinja/globals.h"

#include <array>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/call.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/printing.h"

namespace retroinfer::jinja {
namespace {

constexpr char kRaisedUrl[] = "retroinfer/template-raised";

using Function = absl::StatusOr<Value> (*)(Workspace& workspace, const Arguments& arguments);

class BuiltIn : public Object {
 public:
  explicit BuiltIn(Function function) : function_(function) {}
  std::string_view type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  absl::StatusOr<Value> Call(Workspace& workspace, const Arguments& arguments) override {
    return function_(workspace, arguments);
  }

 private:
  const Function function_;
};

// Attributes may be set. A namespace inside of itself would never be freed, so that one may not
// hold namespaces or what can hold them.
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  absl::StatusOr<std::optional<Value>> Attribute(Workspace&, std::string_view name) override {
    const auto found = values_.find(absl::string_view(name.data(), name.size()));
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  absl::Status SetAttribute(std::string_view name, const Value& value) override {
    if (value.holds_objects()) {
      return Unsupported(
          {"a namespace can hold texts, numbers, lists and dicts, not a '", value.TypeName(), "'"});
    }
    values_.insert_or_assign(std::string(name), value);
    return absl::OkStatus();
  }

 private:
  absl::flat_hash_map<std::string, Value> values_;
};

// Gives nothing at the first call and the separator at all others.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  absl::StatusOr<Value> Call(Workspace& workspace, const Arguments&) override {
    if (used_) return separator_;
    used_ = true;
    return workspace.String("");
  }

 private:
  const Value separator_;
  bool used_ = false;
};

absl::StatusOr<Value> Range(Workspace& workspace, const Arguments& arguments) {
  constexpr Int kRangeMax = 100'000;  // of Jinja's sandbox
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("range", arguments, {"start", "stop", "step"}, 1));
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (bound[i]->is_none()) return Error({"range() takes integers"});
  }
  ASSIGN_OR_RETURN(Int start, bound.IntOr(0, 0));
  ASSIGN_OR_RETURN(Int stop, bound.IntOr(1, 0));
  ASSIGN_OR_RETURN(const Int step, bound.IntOr(2, 1));
  if (bound[1] == nullptr) std::swap(start, stop);
  if (step == 0) return Error({"range() arg 3 must not be zero"});
  constexpr Int kBound = Int{1} << 100;
  if (start < -kBound || start > kBound || stop < -kBound || stop > kBound || step < -kBound ||
      step > kBound) {
    return Error({"range() of such numbers"});
  }
  const Int span = step > 0 ? stop - start : start - stop;
  const Int stride = step > 0 ? step : -step;
  const Int count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kRangeMax) {
    return OverLimit({"Range too big. The sandbox blocks ranges larger than 100000."});
  }
  RETURN_IF_ERROR(workspace.Expect(static_cast<size_t>(count) * sizeof(Value)));
  Values items;
  for (Int i = 0; i < count; ++i) items.push_back(Value(start + i * step));
  return workspace.Items(Sequence::Kind::kRange, std::move(items));
}

// The entries of dict(...) and namespace(...): of a dict, of pairs, and by name.
absl::StatusOr<std::vector<Dict::Entry>> ReadEntries(Workspace& workspace,
                                                     const Arguments& arguments) {
  std::vector<Dict::Entry> entries;
  if (arguments.positional.size() > 1) return Error({"dict() takes at most 1 argument"});
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.AsDict() != nullptr) {
      entries = source.AsDict()->entries;
    } else {
      ASSIGN_OR_RETURN(const Items items, Iterate(workspace, source));
      for (const Value& item : *items) {
        ASSIGN_OR_RETURN(const Items pair, Iterate(workspace, item));
        if (pair->size() != 2) return Error({"dict() takes pairs"});
        entries.emplace_back((*pair)[0], (*pair)[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    ASSIGN_OR_RETURN(Value key, workspace.String(Text(name, true)));
    entries.emplace_back(std::move(key), value);
  }
  return entries;
}

absl::StatusOr<Value> MakeDict(Workspace& workspace, const Arguments& arguments) {
  ASSIGN_OR_RETURN(std::vector<Dict::Entry> entries, ReadEntries(workspace, arguments));
  return workspace.MakeDict(std::move(entries));
}

absl::StatusOr<Value> MakeNamespace(Workspace& workspace, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Dict::Entry> entries, ReadEntries(workspace, arguments));
  auto result = std::make_shared<Namespace>();
  for (const Dict::Entry& entry : entries) {
    if (entry.first.AsText() == nullptr) return Error({"namespace(): names must be strings"});
    RETURN_IF_ERROR(result->SetAttribute(entry.first.AsText()->bytes(), entry.second));
  }
  return Value(std::shared_ptr<Object>(std::move(result)));
}

absl::StatusOr<Value> MakeJoiner(Workspace& workspace, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("joiner", arguments, {"sep"}));
  ASSIGN_OR_RETURN(Value separator, workspace.String(", "));
  if (bound[0] != nullptr) separator = *bound[0];
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(std::move(separator))));
}

absl::StatusOr<Value> RaiseException(Workspace& workspace, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("raise_exception", arguments, {"message"}, 1));
  ASSIGN_OR_RETURN(const Text message, Str(workspace, *bound[0]));
  constexpr size_t kMessageBytesMax = 1000;
  std::string text = message.bytes();
  if (text.size() > kMessageBytesMax) {
    text = message.Part(0, OffsetOfCharacter(text, kMessageBytesMax / 4)).bytes();
    text.append("...");
  }
  return RaisedError(text);
}

absl::StatusOr<Value> StrftimeNow(Workspace& workspace, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("strftime_now", arguments, {"format"}, 1));
  ASSIGN_OR_RETURN(const Text format, bound.TextOr(0, ""));
  constexpr size_t kFormatBytesMax = 200;
  if (format.size() > kFormatBytesMax)
    return OverLimit({"strftime_now(): a format over 200 bytes"});
  const std::tm now = absl::ToTM(workspace.now(), workspace.time_zone());
  std::array<char, 16384> buffer;
  // A format may give an empty text; with a character before it, 0 means that it did not fit.
  const std::string padded = Concat({"x", format.bytes()});
  const size_t length = std::strftime(buffer.data(), buffer.size(), padded.c_str(), &now);
  if (length == 0) return OverLimit({"strftime_now(): the text is too long"});
  const std::string_view text(buffer.data() + 1, length - 1);
  if (!IsUtf8(text)) return Error({"strftime_now(): the format gives no UTF-8"});
  return workspace.String(text);
}

Value Make(Function function) {
  return Value(std::shared_ptr<Object>(std::make_shared<BuiltIn>(function)));
}

}  // namespace

const Value* FindGlobal(std::string_view name) {
  static const auto* const kGlobals = new absl::flat_hash_map<std::string, Value>{
      {"range", Make(Range)},
      {"dict", Make(MakeDict)},
      {"namespace", Make(MakeNamespace)},
      {"joiner", Make(MakeJoiner)},
      {"raise_exception", Make(RaiseException)},
      {"strftime_now", Make(StrftimeNow)},
  };
  const auto found = kGlobals->find(absl::string_view(name.data(), name.size()));
  return found == kGlobals->end() ? nullptr : &found->second;
}

bool IsNamespace(const Value& value) {
  return value.AsObject() != nullptr && value.AsObject()->type_name() == "Namespace";
}

absl::Status RaisedError(std::string_view message) {
  absl::Status status = Error({message});
  status.SetPayload(kRaisedUrl, absl::Cord());
  return status;
}

bool IsRaisedError(const absl::Status& status) { return status.GetPayload(kRaisedUrl).has_value(); }

}  // namespace retroinfer::jinja
