#include "common/retrieval/retrieval_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files/regular_file.h"
#include "common/files/toml_text.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kCountMax = int64_t{1} << 40;
constexpr size_t kFingerprintDigits = 64;

absl::Status ErrorAt(const toml::source_region& where, std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", static_cast<int64_t>(where.begin.line), ": ", std::string(message)));
}

// The keys of one table; each is asked for once, and Finish() refuses those that nobody asked for.
class TableReader {
 public:
  TableReader(const toml::table& table, std::string name) : table_(table), name_(std::move(name)) {}

  absl::Status Number(const char* key, double least, double most, double* out) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return Missing(key);
    const std::optional<double> value = node->value<double>();
    if (!node->is_number() || !value.has_value() || !(*value >= least) || !(*value <= most)) {
      return Error(key, absl::StrCat("must be a number from ", least, " to ", most));
    }
    *out = *value;
    return absl::OkStatus();
  }
  absl::Status Count(const char* key, int64_t least, int64_t* out) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return Missing(key);
    const std::optional<int64_t> value = node->value_exact<int64_t>();
    if (!value.has_value() || *value < least || *value > kCountMax) {
      return Error(key, absl::StrCat("must be a whole number from ", least, " to ", kCountMax));
    }
    *out = *value;
    return absl::OkStatus();
  }
  absl::Status Text(const char* key, std::string* out) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return Missing(key);
    const std::optional<std::string> value = node->value_exact<std::string>();
    if (!value.has_value()) return Error(key, "must be a string");
    *out = *value;
    return absl::OkStatus();
  }
  absl::Status Truth(const char* key, bool* out) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return Missing(key);
    const std::optional<bool> value = node->value_exact<bool>();
    if (!value.has_value()) return Error(key, "must be true or false");
    *out = *value;
    return absl::OkStatus();
  }
  const toml::node* Find(const char* key) {
    known_.insert(key);
    return table_.get(key);
  }
  absl::Status Error(const char* key, std::string_view message) const {
    return ErrorAt(table_.get(key)->source(), absl::StrCat(key, " ", std::string(message)));
  }
  absl::Status Finish() const {
    for (const auto& [key, node] : table_) {
      if (known_.contains(std::string(key.str()))) continue;
      return ErrorAt(node.source(), absl::StrCat(std::string(key.str()), " is not a key of ", name_,
                                                 " that this version knows"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Missing(const char* key) const {
    return ErrorAt(table_.source(), absl::StrCat(name_, " has no ", key));
  }

  const toml::table& table_;
  const std::string name_;
  std::set<std::string, std::less<>> known_;
};

absl::Status ReadMeasured(TableReader& reader, MeasuredRatio* out) {
  constexpr double kMost = 1e6;
  RETURN_IF_ERROR(reader.Count("context", 1, &out->context));
  RETURN_IF_ERROR(reader.Number("retrieval_ratio", 1e-6, 1, &out->ratio));
  RETURN_IF_ERROR(reader.Count("windows", 1, &out->windows));
  RETURN_IF_ERROR(reader.Count("tokens", 1, &out->tokens));
  RETURN_IF_ERROR(reader.Number("change", 0, kMost, &out->change));
  RETURN_IF_ERROR(reader.Number("change_error", 0, kMost, &out->change_error));
  RETURN_IF_ERROR(reader.Number("perplexity", -1, kMost, &out->perplexity));
  RETURN_IF_ERROR(reader.Number("perplexity_error", 0, kMost, &out->perplexity_error));
  return reader.Number("agreement", 0, 1, &out->agreement);
}

absl::Status ReadSubject(const toml::table& table, RetrievalSubject* out) {
  TableReader reader(table, "[model]");
  RETURN_IF_ERROR(reader.Text("name", &out->model_name));
  RETURN_IF_ERROR(reader.Text("fingerprint", &out->fingerprint));
  RETURN_IF_ERROR(reader.Text("kv_dtype", &out->kv_dtype));
  RETURN_IF_ERROR(reader.Text("index_dtype", &out->index_dtype));
  RETURN_IF_ERROR(reader.Text("wave_index", &out->wave_index));
  RETURN_IF_ERROR(reader.Text("quality", &out->quality));
  const bool is_hex = out->fingerprint.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex || out->fingerprint.size() != kFingerprintDigits) {
    return reader.Error("fingerprint", "must have 64 hexadecimal digits");
  }
  return reader.Finish();
}

absl::Status ReadTarget(const toml::table& table, RetrievalFile* out) {
  TableReader reader(table, "[target]");
  for (const auto& [key, target] :
       {std::pair("change", &out->target_change), {"perplexity", &out->target_perplexity}}) {
    if (reader.Find(key) == nullptr) continue;
    RETURN_IF_ERROR(reader.Number(key, 0, 100, &target->emplace()));
  }
  if (out->target_change.has_value() == out->target_perplexity.has_value()) {
    return ErrorAt(table.source(), "[target] needs one of change and perplexity");
  }
  const toml::node* const texts = reader.Find("texts");
  const toml::array* const list = texts == nullptr ? nullptr : texts->as_array();
  if (list == nullptr || list->size() > RetrievalFile::kTextsMax) {
    return ErrorAt(table.source(), absl::StrCat("[target] needs texts, a list of at most ",
                                                RetrievalFile::kTextsMax, " strings"));
  }
  for (const toml::node& entry : *list) {
    const std::optional<std::string> text = entry.value_exact<std::string>();
    if (!text.has_value()) return ErrorAt(entry.source(), "texts must be strings");
    out->texts.push_back(*text);
  }
  return reader.Finish();
}

// The tables of a list; none if it is not there.
absl::StatusOr<std::vector<const toml::table*>> TablesOf(const toml::node* node,
                                                         std::string_view name, size_t most) {
  std::vector<const toml::table*> tables;
  if (node == nullptr) return tables;
  const toml::array* const list = node->as_array();
  if (list == nullptr || list->size() > most) {
    return ErrorAt(node->source(),
                   absl::StrCat(std::string(name), " must be a list of at most ", most, " tables"));
  }
  for (const toml::node& entry : *list) {
    if (entry.as_table() == nullptr) {
      return ErrorAt(entry.source(), absl::StrCat(std::string(name), " must be a list of tables"));
    }
    tables.push_back(entry.as_table());
  }
  return tables;
}

absl::Status ReadBudgets(TableReader& top, RetrievalFile* out) {
  ASSIGN_OR_RETURN(const auto budgets,
                   TablesOf(top.Find("budget"), "[[budget]]", RetrievalFile::kBudgetsMax));
  if (budgets.empty()) return absl::InvalidArgumentError("there is no [[budget]]");
  for (const toml::table* const table : budgets) {
    TableReader reader(*table, "[[budget]]");
    RetrievalFile::Budget& budget = out->budgets.emplace_back();
    RETURN_IF_ERROR(ReadMeasured(reader, &budget.chosen));
    RETURN_IF_ERROR(reader.Truth("meets_target", &budget.meets_target));
    RETURN_IF_ERROR(reader.Finish());
    const size_t count = out->budgets.size();
    if (count > 1 && out->budgets[count - 2].chosen.context >= budget.chosen.context) {
      return reader.Error("context", "must be longer than that of the [[budget]] before");
    }
  }
  ASSIGN_OR_RETURN(const auto measured,
                   TablesOf(top.Find("measured"), "[[measured]]", RetrievalFile::kMeasuredMax));
  for (const toml::table* const table : measured) {
    TableReader reader(*table, "[[measured]]");
    RETURN_IF_ERROR(ReadMeasured(reader, &out->measured.emplace_back()));
    RETURN_IF_ERROR(reader.Finish());
  }
  return absl::OkStatus();
}

// A string as JSON has it, which TOML has, too; ASCII alone.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// A number as TOML's floats are written: with a point.
std::string Float(double value) { return absl::StrFormat("%.6f", value); }

std::string Fields(const MeasuredRatio& measured) {
  return absl::StrCat("context = ", measured.context, "\nretrieval_ratio = ", Float(measured.ratio),
                      "\nwindows = ", measured.windows, "\ntokens = ", measured.tokens,
                      "\nchange = ", Float(measured.change),
                      "\nchange_error = ", Float(measured.change_error),
                      "\nperplexity = ", Float(measured.perplexity),
                      "\nperplexity_error = ", Float(measured.perplexity_error),
                      "\nagreement = ", Float(measured.agreement), "\n");
}

std::string Thousands(int64_t count) {
  if (count < 1000) return absl::StrCat(count);
  return absl::StrFormat("%s,%03d", Thousands(count / 1000), static_cast<int>(count % 1000));
}

}  // namespace

double RetrievalFile::RatioFor(int64_t context_tokens) const {
  for (const Budget& budget : budgets) {
    if (context_tokens <= budget.chosen.context) return budget.chosen.ratio;
  }
  return budgets.back().chosen.ratio;
}

absl::StatusOr<RetrievalFile> ParseRetrievalFile(std::string_view text) {
  RETURN_IF_ERROR(CheckTomlCharacters(text));
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) return ErrorAt(parsed.error().source(), parsed.error().description());
  TableReader top(parsed.table(), "the file");
  int64_t version = 0;
  RETURN_IF_ERROR(top.Count("version", 1, &version));
  if (version != kVersion) {
    return top.Error("version", absl::StrCat("must be ", kVersion,
                                             " for this version; measure "
                                             "again: retroinfer tune"));
  }
  RetrievalFile file;
  for (const char* const key : {"model", "target"}) {
    const toml::node* const node = top.Find(key);
    if (node == nullptr || node->as_table() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("there is no [", key, "]"));
    }
    RETURN_IF_ERROR(key == std::string_view("model") ? ReadSubject(*node->as_table(), &file.subject)
                                                     : ReadTarget(*node->as_table(), &file));
  }
  RETURN_IF_ERROR(ReadBudgets(top, &file));
  RETURN_IF_ERROR(top.Finish());
  return file;
}

std::string FormatRetrievalFile(const RetrievalFile& file) {
  const RetrievalSubject& subject = file.subject;
  std::string text = absl::StrCat(
      "# Written by retroinfer tune: what policy wave retrieves of a context of each length, for\n"
      "# this model and this form of its index alone. Used with --retrieval.\n",
      "version = ", kVersion, "\n\n[model]\nname = ", Quoted(subject.model_name),
      "\nfingerprint = ", Quoted(subject.fingerprint), "\nkv_dtype = ", Quoted(subject.kv_dtype),
      "\nindex_dtype = ", Quoted(subject.index_dtype),
      "\nwave_index = ", Quoted(subject.wave_index), "\nquality = ", Quoted(subject.quality),
      "\n\n[target]\n");
  if (file.target_change) absl::StrAppend(&text, "change = ", Float(*file.target_change), "\n");
  if (file.target_perplexity) {
    absl::StrAppend(&text, "perplexity = ", Float(*file.target_perplexity), "\n");
  }
  text += "texts = [";
  for (size_t i = 0; i < file.texts.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", Quoted(file.texts[i]));
  }
  text += "]\n";
  for (const RetrievalFile::Budget& budget : file.budgets) {
    absl::StrAppend(&text, "\n[[budget]]\n", Fields(budget.chosen),
                    "meets_target = ", budget.meets_target ? "true" : "false", "\n");
  }
  for (const MeasuredRatio& measured : file.measured) {
    absl::StrAppend(&text, "\n[[measured]]\n", Fields(measured));
  }
  return text;
}

absl::StatusOr<RetrievalFile> ReadRetrievalFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadNamedFile(path, RetrievalFile::kBytesMax));
  absl::StatusOr<RetrievalFile> file = ParseRetrievalFile(text);
  if (file.ok()) return file;
  return absl::Status(file.status().code(), absl::StrCat(path, ": ", file.status().message()));
}

absl::Status CheckSubject(const RetrievalSubject& measured, const RetrievalSubject& served) {
  if (measured.fingerprint != served.fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("it was measured with another model (", measured.model_name, ", ",
                     measured.fingerprint.substr(0, 12), "...; this one is ", served.model_name,
                     ", ", served.fingerprint.substr(0, 12), "...): measure with this one"));
  }
  const std::pair<const char*, std::string RetrievalSubject::*> forms[] = {
      {"kv-dtype", &RetrievalSubject::kv_dtype},
      {"index-dtype", &RetrievalSubject::index_dtype},
      {"wave-index", &RetrievalSubject::wave_index},
      {"quality", &RetrievalSubject::quality}};
  for (const auto& [flag, field] : forms) {
    if (measured.*field == served.*field) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "it was measured with --", flag, " ", measured.*field, ", the server has ", served.*field,
        ": measure again, or serve with --", flag, " ", measured.*field));
  }
  return absl::OkStatus();
}

std::string DescribeBudgets(const RetrievalFile& file) {
  std::string text;
  for (const RetrievalFile::Budget& budget : file.budgets) {
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    absl::StrFormat("%.3g", 100 * budget.chosen.ratio), " % up to ",
                    Thousands(budget.chosen.context), " tokens");
    if (!budget.meets_target) text += " (misses the target)";
  }
  return text;
}

}  // namespace retroinfer::common
