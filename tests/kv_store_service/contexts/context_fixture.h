// A durable store in memory with its contexts, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kv_store_service/contexts/contexts.h"
#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {

class ContextStoreTest : public DurableStoreTest {
 protected:
  ContextStoreTest() { StartContexts(); }
  void StartContexts(PersistMode mode = PersistMode::kOnDemand) {
    contexts_.reset();
    Start(mode);
    contexts_ = std::make_unique<Contexts>(store_.get());
  }

  static ContextToSave ToSave(const std::string& name, const std::vector<SegmentIdentity>& chain,
                              const std::string& salt = "") {
    ContextToSave context;
    context.name = name;
    context.salt_hash = common::SaltHash(salt);
    context.root = common::RootName("model", context.salt_hash, kSegmentVersion);
    context.sink_token_ids.assign(kSinkTokens, 1);
    for (const SegmentIdentity& identity : chain) context.segments.push_back(identity.name);
    context.num_tokens = kSinkTokens + 1024 * chain.size() + 70;
    return context;
  }
  // Saves as a worker does: computes what is missing and asks until it is saved.
  absl::StatusOr<ContextListing> SaveAll(const ContextToSave& context,
                                         const std::vector<SegmentIdentity>& chain) {
    while (true) {
      const auto progress = contexts_->Save(context);
      if (!progress.ok()) return progress.status();
      if (progress->saved.has_value()) return *progress->saved;
      if (progress->missing > 0 && progress->queued == 0) Run(++last_sequence_, chain);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  absl::StatusOr<ContextListing> SaveText(const std::string& name,
                                          const std::vector<int32_t>& texts, bool pinned = false,
                                          const std::string& salt = "") {
    const std::vector<SegmentIdentity> chain = NamedChain(texts, 1024, salt);
    ContextToSave context = ToSave(name, chain, salt);
    context.pinned = pinned;
    return SaveAll(context, chain);
  }
  absl::StatusOr<std::string> ExportText(const std::string& name) {
    std::string file;
    const absl::Status status =
        contexts_->Export(common::SaltHash(""), name, [&file](std::string_view bytes) {
          file.append(bytes);
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return file;
  }

  const Hash256 tenant_ = common::SaltHash("");
  uint64_t last_sequence_ = 1000;
  std::unique_ptr<Contexts> contexts_;
};

}  // namespace retroinfer::kvstore
