#include "bench/conversations/both_services.h"

#include <stdlib.h>

#include <string>
#include <system_error>
#include <utility>

#include "bench/support/must.h"

namespace retroinfer::bench {

BothServices::BothServices(ServedEngineOptions options, uint64_t arena_bytes) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) Fail("no folder " + pattern);
  folder_ = pattern;
  kvstore::StoreServerOptions store;
  store.arena_bytes = arena_bytes;
  store.socket_dir = folder_.string();
  store_ = Must(kvstore::StoreServer::Start(store));
  Must(store_->ObtainArena([] { return false; }));
  options.load_format = "dummy";
  options.store_socket_dir = folder_.string();
  ComputeBackend backend = Must(CreateBackend(options));
  device_ = backend.device->info();
  served_ = Must(LoadServedEngine(options, std::move(backend), silent_));
}

BothServices::~BothServices() {
  served_.reset();
  store_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace retroinfer::bench
