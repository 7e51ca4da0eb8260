#include "gpu_worker/assembly/retrieval_subject.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace retroinfer {

common::RetrievalSubject RetrievalSubjectOf(const ServedEngineOptions& options,
                                            const KvFormat& format, std::string model_name,
                                            const Fingerprint& model) {
  const bool is_high = options.quality == RetrievalQuality::kHigh;
  return {.model_name = std::move(model_name),
          .fingerprint = FingerprintHex(model),
          .kv_dtype = std::string(PagesName(format)),
          .index_dtype = std::string(IndexName(format)),
          .wave_index = options.wave_index,
          .quality = is_high ? "high" : "standard"};
}

absl::Status CheckRetrieval(const ServedEngineOptions& options,
                            const common::RetrievalSubject& subject) {
  if (!options.retrieval.has_value()) return absl::OkStatus();
  const absl::Status status = common::CheckSubject(options.retrieval->subject, subject);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--retrieval ", options.retrieval_path, ": ",
                                                 status.message(),
                                                 "; --retrieval none serves without"));
}

}  // namespace retroinfer
