// kv_store_service: keeps the KV pages of one gpu_worker in shared memory.
#include "common/process/descriptor_limit.h"
#include "common/process/standard_streams.h"
#include "kv_store_service/server/store_main.h"

int main(int argc, char** argv) {
  retroinfer::common::OpenStandardStreams();
  retroinfer::common::RaiseDescriptorLimit();
  return retroinfer::kvstore::StoreMain(argc, argv);
}
