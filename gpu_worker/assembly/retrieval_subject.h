// What measured budgets of policy wave must have been measured with to hold for a server.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/kv/kv_format.h"
#include "common/retrieval/retrieval_file.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/model/fingerprint.h"

namespace retroinfer {

common::RetrievalSubject RetrievalSubjectOf(const ServedEngineOptions& options,
                                            const KvFormat& format, std::string model_name,
                                            const Fingerprint& model);

// Returns: INVALID_ARGUMENT if the budgets of the options were measured with something else.
absl::Status CheckRetrieval(const ServedEngineOptions& options,
                            const common::RetrievalSubject& subject);

}  // namespace retroinfer
