// Amounts of what requests need to proceed.
#pragma once

#include <cstdint>

namespace retroinfer {

// What is free, or what a request lacks (then an amount may be negative).
struct StepResources {
  int64_t batch_rows = 0, dense_blocks = 0, meta_blocks = 0, table_rows = 0;

  // Whether nothing is lacked.
  bool none() const {
    return batch_rows <= 0 && dense_blocks <= 0 && meta_blocks <= 0 && table_rows <= 0;
  }
  // Whether these resources include any resource that is lacked.
  bool HelpsWith(const StepResources& lacked) const {
    return (lacked.batch_rows > 0 && batch_rows > 0) ||
           (lacked.dense_blocks > 0 && dense_blocks > 0) ||
           (lacked.meta_blocks > 0 && meta_blocks > 0) || (lacked.table_rows > 0 && table_rows > 0);
  }
  StepResources operator-(const StepResources& other) const {
    return {batch_rows - other.batch_rows, dense_blocks - other.dense_blocks,
            meta_blocks - other.meta_blocks, table_rows - other.table_rows};
  }
};

}  // namespace retroinfer
