#include "gpu_worker/assembly/draft_model_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/kept_weights.h"
#include "text/tokenizer/same_tokens.h"

namespace retroinfer {
namespace {

absl::Status OfDraftModel(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--draft-model: ", std::string(status.message())));
}

// What is said of the served model's weights and contexts is not said of this one.
ServedEngineOptions OptionsOf(const ServedEngineOptions& options) {
  ServedEngineOptions of_draft;
  of_draft.model_folder = options.draft_model_folder;
  of_draft.load_format = options.load_format;
  return of_draft;
}

}  // namespace

absl::StatusOr<DraftModelSource> DraftModelSource::Open(const ServedEngineOptions& options,
                                                        const ModelSource& served,
                                                        const ComputeBackend& backend) {
  absl::StatusOr<ModelSource> source = ModelSource::Open(OptionsOf(options));
  if (!source.ok()) return OfDraftModel(source.status());
  RETURN_IF_ERROR(OfDraftModel(CheckSameTokens(served.tokenizer(), source->tokenizer())));
  RETURN_IF_ERROR(OfDraftModel(CheckWeightForm(source->config(), backend.needs)));
  return DraftModelSource(*std::move(source));
}

absl::Status DraftModelSource::LoadWeights(ComputeBackend& backend) {
  const size_t before = backend.device->allocated_bytes(MemoryPurpose::kWeights);
  absl::StatusOr<ModelSource::Loaded> loaded = source_.Load(
      *backend.device, backend.ops->model(), backend.weight_source, DraftModel::kKvFormat);
  if (!loaded.ok()) return OfDraftModel(loaded.status());
  weights_ = std::move(loaded->weights);
  allocated_bytes_ = backend.device->allocated_bytes(MemoryPurpose::kWeights) - before;
  return absl::OkStatus();
}

// A backend may keep more than the files have.
absl::StatusOr<MemoryPlanInput::Draft> DraftModelSource::ToPlan(
    const ComputeBackend& backend) const {
  absl::StatusOr<size_t> of_files = source_.WeightBytesOf({}, backend.needs);
  if (!of_files.ok()) return OfDraftModel(of_files.status());
  return MemoryPlanInput::Draft{.model = source_.config(),
                                .weight_bytes = std::max(*of_files, allocated_bytes_)};
}

absl::StatusOr<std::unique_ptr<Transformer>> DraftModelSource::TakeModel(
    ComputeBackend& backend, const DraftModel::Sizes& sizes) {
  auto model = Transformer::Create(*backend.device, *backend.ops, source_.config(),
                                   std::move(weights_), sizes.model_options());
  if (!model.ok()) return OfDraftModel(model.status());
  return model;
}

}  // namespace retroinfer
