// The program kv_store_service, but for its main().
#pragma once

#include "kv_store_service/server/store_server.h"

namespace retroinfer::kvstore {

// Runs the service until SIGTERM or SIGINT with what the arguments, the environment and the config
// file say; `options` are the defaults. Returns the exit status of the process: 2 for options that
// are wrong.
int StoreMain(int argc, char** argv, StoreServerOptions options = {});

}  // namespace retroinfer::kvstore
