// Attaches to the store at argv[1], holds two sequences, one with a committed segment, and waits to
// be killed. Prints "ready" when it holds them. With argv[2], the segment has the name of
// NamedChain({1}).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/notification.h"
#include "gpu_worker/store_link/store_link.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/segment_writer.h"

int main(int argc, char** argv) {
  using namespace retroinfer;
  if (argc < 2) return 2;
  StoreLinkOptions options;
  options.target = argv[1];
  options.geometry = kvstore::kTinyGeometry;
  options.model_fingerprint = "model";
  options.num_slots = 16;
  options.log_capacity = 64;
  options.request_capacity = 64;
  auto link = StoreLink::Connect(options);
  if (!link.ok()) {
    std::fprintf(stderr, "%s\n", link.status().ToString().c_str());
    return 1;
  }
  absl::Notification committed;
  std::optional<SegmentIdentity> identity;
  if (argc > 2) identity = kvstore::NamedChain({1})[0];
  (*link)->Reserve(
      {.sequence_id = 1, .segments = {{1024, identity}, {1024}}},
      [&](absl::StatusOr<std::vector<Extent>> extents) {
        if (!extents.ok()) std::abort();
        const Extent& extent = extents->front();
        kvstore::WriteSegment((*link)->arena().subspan(size_t{extent.first_page} * kPageBytes,
                                                       size_t{extent.num_pages} * kPageBytes),
                              options.geometry, kSinkTokens, 1024);
        (*link)->Commit(1, {{extent.id, kSinkTokens, identity}}, [&](absl::Status status) {
          if (!status.ok()) std::abort();
        });
        (*link)->Reserve(ReserveRequest::Unnamed(2, {1024}),
                         [&](absl::StatusOr<std::vector<Extent>> second) {
                           if (!second.ok()) std::abort();
                           committed.Notify();
                         });
      });
  committed.WaitForNotification();
  std::puts("ready");
  std::fflush(stdout);
  while (true) ::pause();
}
