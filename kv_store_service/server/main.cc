// kv_store_service: keeps the KV pages of one gpu_worker in shared memory.
#include "common/process/descriptor_limit.h"
#include "common/process/standard_streams.h"
#include "common/process/thread_limit.h"
#include "kv_store_service/server/store_main.h"

int main(int argc, char** argv) {
  retroinfer::common::OpenStandardStreams();
  if (!retroinfer::common::RaiseDescriptorLimitOf("kv_store_service")) return 1;
  if (!retroinfer::common::ThreadsCanBeHad("kv_store_service")) return 1;
  return retroinfer::kvstore::StoreMain(argc, argv);
}
