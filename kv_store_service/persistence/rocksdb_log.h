// Where RocksDB's own messages go.
#pragma once

#include <rocksdb/env.h>

#include <memory>

namespace retroinfer::kvstore {

// Makes a logger that passes warnings and errors of RocksDB on to the service's log, at most one in
// 5 s. RocksDB's own one writes a file in the database's folder, and ends the process when it
// writes again after the disk was full.
std::shared_ptr<rocksdb::Logger> MakeRocksDbLog();

}  // namespace retroinfer::kvstore
