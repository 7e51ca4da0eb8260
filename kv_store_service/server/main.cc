// kv_store_service: keeps the KV pages of one gpu_worker in shared memory.
#include "kv_store_service/server/store_main.h"

int main(int argc, char** argv) { return retroinfer::kvstore::StoreMain(argc, argv); }
