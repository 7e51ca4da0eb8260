// The half of Contexts that reads whole segments: verification, export and import.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "kv_store_service/contexts/contexts.h"
#include "kv_store_service/mapping/segment_image.h"

namespace retroinfer::kvstore {
namespace {

constexpr absl::Duration kHoldTime = absl::Hours(1);

std::string Short(const SegmentName& name) { return name.ToHex().substr(0, 16); }

absl::Status NoWorker() {
  return absl::FailedPreconditionError(
      "no worker is attached: the store does not know which model the bytes are of");
}

absl::Status WrongModel(const std::string& what) {
  return common::WithReason(absl::FailedPreconditionError(what), "WRONG_MODEL");
}

// Of an image in memory, as of one in the arena.
absl::Status CheckImage(std::span<const std::byte> image, const KvGeometry& geometry,
                        uint64_t token_begin, uint32_t num_tokens) {
  ASSIGN_OR_RETURN(const SegmentImage read,
                   ReadSegmentImage(image, geometry, token_begin, num_tokens));
  if (read.used_pages * geometry.page_bytes() == image.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the image has ", image.size(), " bytes and uses ", read.used_pages, " pages"));
}

}  // namespace

absl::Status Contexts::CheckSegment(const SegmentRecord& record, SegmentName* parent) const {
  SegmentStorage& storage = store_.tier()->storage();
  std::vector<std::byte> image(record.image_bytes);
  RETURN_IF_ERROR(storage.Read(record.name, image));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, storage.ReadTokens(record.name));
  const auto check = [&]() -> absl::Status {
    if (record.parent != *parent || common::NameSegment(*parent, tokens) != record.name) {
      return absl::DataLossError("its tokens do not make up its name");
    }
    const auto model = store_.context_segments().attached_model();
    if (!model.has_value() ||
        common::FingerprintHash(model->fingerprint) != record.fingerprint_hash) {
      return absl::OkStatus();  // only that model's geometry says how an image must look
    }
    return CheckImage(image, model->geometry, record.token_begin, record.num_tokens);
  };
  if (const absl::Status wrong = check(); !wrong.ok()) {
    RETURN_IF_ERROR(storage.Quarantine(record.name, std::string(wrong.message())));
    return absl::DataLossError(
        absl::StrCat("segment ", Short(record.name), ": ", std::string(wrong.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<ContextVerification> Contexts::Verify(const Hash256& salt_hash,
                                                     std::string_view name,
                                                     const std::function<bool()>& is_over) {
  ASSIGN_OR_RETURN(const ContextRecord context, Find(salt_hash, name));
  ContextVerification report;
  report.segments = context.segments.size();
  SegmentName parent = common::NameSegment(context.root, context.sink_token_ids);
  for (const SegmentName& segment : context.segments) {
    if (is_over && is_over()) return absl::CancelledError("the client is gone");
    const auto record = store_.tier()->storage().Peek(segment);
    const absl::Status status = record.has_value() ? CheckSegment(*record, &parent)
                                                   : absl::NotFoundError("it is not on the disk");
    parent = segment;
    if (status.ok()) {
      ++report.intact;
      report.bytes_checked += record->image_bytes;
    } else if (absl::IsNotFound(status)) {
      ++report.missing;
    } else if (absl::IsDataLoss(status)) {
      ++report.damaged;
      report.problems.emplace_back(status.message());
    } else {
      return status;
    }
  }
  return report;
}

absl::Status Contexts::Export(const Hash256& salt_hash, std::string_view name,
                              ContextFileWriter::Sink sink) {
  ASSIGN_OR_RETURN(const ContextRecord context, Find(salt_hash, name));
  const auto model = store_.context_segments().attached_model();
  if (!model.has_value()) return NoWorker();
  const Hash256 fingerprint = common::FingerprintHash(model->fingerprint);
  if (common::RootName(model->fingerprint, salt_hash, kSegmentVersion) != context.root) {
    return WrongModel(absl::StrCat("context '", std::string(name),
                                   "' is of another model than the one that is served"));
  }
  ContextFileWriter writer(std::move(sink));
  RETURN_IF_ERROR(writer.Begin({.fingerprint_hash = fingerprint,
                                .segment_version = SegmentVersionOf(model->geometry),
                                .geometry = model->geometry,
                                .num_tokens = context.num_tokens,
                                .num_segments = context.segments.size(),
                                .created = context.created,
                                .sink_token_ids = context.sink_token_ids,
                                .context_name = context.context_name}));
  SegmentStorage& storage = store_.tier()->storage();
  for (const SegmentName& segment : context.segments) {
    const auto record = storage.Peek(segment);
    if (!record.has_value()) {
      return absl::DataLossError(absl::StrCat("segment ", Short(segment), " of context '",
                                              std::string(name),
                                              "' is not on the disk any more; "
                                              "save it again"));
    }
    std::vector<std::byte> image(record->image_bytes);
    RETURN_IF_ERROR(storage.Read(segment, image));
    ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, storage.ReadTokens(segment));
    RETURN_IF_ERROR(writer.AddSegment(record->token_begin, tokens, image));
  }
  return writer.Finish();
}

absl::Status Contexts::CheckModel(const ContextFileHeader& header) const {
  RETURN_IF_ERROR(RequireTier().status());
  const auto model = store_.context_segments().attached_model();
  if (!model.has_value()) return NoWorker();
  if (header.segment_version != kSegmentVersion &&
      header.segment_version != kSegmentVersionWithTail) {
    return common::WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "the file has segments of version ", header.segment_version, ", this server reads ",
            kSegmentVersion, " and ", kSegmentVersionWithTail)),
        kWrongFormatReason);
  }
  if (!(header.geometry == model->geometry)) {
    const auto text = [](const KvGeometry& g) {
      return absl::StrCat(g.num_layers, " layers, ", g.num_kv_heads, " KV heads, head_dim ",
                          g.head_dim, ", KV in ", std::string(g.format.name), ", ",
                          g.num_window_layers, " window layers of ", g.window_tokens, " tokens");
    };
    return WrongModel(absl::StrCat("the file is of a model with ", text(header.geometry),
                                   "; the one that is served has ", text(model->geometry)));
  }
  if (header.fingerprint_hash == common::FingerprintHash(model->fingerprint)) {
    return absl::OkStatus();
  }
  return WrongModel(absl::StrCat("the file has the KV of another model (fingerprint ",
                                 header.fingerprint_hash.ToHex().substr(0, 16), "; served: ",
                                 common::FingerprintHash(model->fingerprint).ToHex().substr(0, 16),
                                 "): other weights, tokenizer, element types or index settings"));
}

absl::StatusOr<std::vector<SegmentRecord>> Contexts::NameImported(
    const ContextFileReader& file, const ContextToSave& context) const {
  std::vector<SegmentRecord> records;
  SegmentName parent = common::NameSegment(context.root, file.header().sink_token_ids);
  const absl::Time now = absl::Now();
  for (size_t i = 0; i < file.segments().size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, file.ReadTokens(i));
    const ContextFileReader::Segment& segment = file.segments()[i];
    SegmentRecord& record = records.emplace_back();
    record.name = common::NameSegment(parent, tokens);
    record.parent = parent;
    record.root = context.root;
    record.fingerprint_hash = file.header().fingerprint_hash;
    record.salt_hash = context.salt_hash;
    record.token_begin = segment.token_begin;
    record.num_tokens = segment.num_tokens;
    record.image_bytes = segment.image_bytes;
    record.created = record.last_use = now;
    parent = record.name;
  }
  return records;
}

absl::Status Contexts::WriteImported(const ContextFileReader& file, size_t index,
                                     const SegmentRecord& record, std::span<const int32_t> tokens) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> image, file.ReadImage(index));
  if (const absl::Status wrong =
          CheckImage(image, file.header().geometry, record.token_begin, record.num_tokens);
      !wrong.ok()) {
    return common::WithReason(
        absl::InvalidArgumentError(absl::StrCat(
            "segment ", index, " of the file is none: ", std::string(wrong.message()))),
        kBadFileReason);
  }
  DurableTier& tier = *store_.tier();
  const absl::Status room = tier.budget().MakeRoom(image.size(), record.salt_hash, absl::Now());
  if (absl::IsResourceExhausted(room)) {
    return common::WithReason(absl::FailedPreconditionError(room.message()), "CACHE_FULL");
  }
  RETURN_IF_ERROR(room);
  return tier.storage().Put(record, tokens, image);
}

absl::StatusOr<ImportedContext> Contexts::Import(const ContextFileReader& file,
                                                 ContextToSave context,
                                                 const std::function<void(size_t)>& done) {
  RETURN_IF_ERROR(CheckModel(file.header()));
  if (context.name.empty()) context.name = file.header().context_name;
  if (context.name.empty() || context.name.size() > kMaxContextNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a context has 1 to ", kMaxContextNameBytes, " bytes"));
  }
  RETURN_IF_ERROR(CheckNameIsFree(context));
  ASSIGN_OR_RETURN(const std::vector<SegmentRecord> records, NameImported(file, context));
  for (const SegmentRecord& record : records) context.segments.push_back(record.name);
  context.sink_token_ids = file.header().sink_token_ids;
  context.num_tokens = file.header().num_tokens;
  SegmentStorage& storage = store_.tier()->storage();
  RETURN_IF_ERROR(
      store_.context_segments().PinForSave(context.segments, common::SteadyNow() + kHoldTime));
  std::vector<SegmentName> written;
  const auto save = [&]() -> absl::StatusOr<SaveProgress> {
    for (size_t i = 0; i < records.size(); ++i) {
      if (!storage.Peek(records[i].name).has_value()) {
        ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, file.ReadTokens(i));
        RETURN_IF_ERROR(WriteImported(file, i, records[i], tokens));
        written.push_back(records[i].name);
      }
      if (done) done(i);
    }
    return Save(context);
  };
  const absl::StatusOr<SaveProgress> progress = save();
  store_.context_segments().PinForSave(context.segments, absl::InfinitePast()).IgnoreError();
  if (progress.ok() && progress->saved.has_value()) {
    return ImportedContext{*progress->saved, written.size()};
  }
  storage.Delete(written).status().IgnoreError();  // what stays is found by its name or evicted
  RETURN_IF_ERROR(progress.status());
  return absl::UnavailableError("a segment was lost while the context was imported; try again");
}

}  // namespace retroinfer::kvstore
