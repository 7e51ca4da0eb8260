// Segment storage that forgets everything when it dies: the fake for tests, held to the same
// contract suite as the real one.
#pragma once

#include <memory>

#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

std::unique_ptr<SegmentStorage> MakeInMemorySegmentStorage(StorageStageHook on_stage = {});

}  // namespace retroinfer::kvstore
