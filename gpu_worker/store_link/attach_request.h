// How a worker introduces itself to the store.
#pragma once

#include "gpu_worker/store_link/store_link.h"
#include "retroinfer/kvstore/v1/kv_store.pb.h"

namespace retroinfer {

inline kvstore::v1::AttachWorkerRequest MakeAttachRequest(const StoreLinkOptions& options) {
  kvstore::v1::AttachWorkerRequest request;
  kvstore::v1::KvGeometry* geometry = request.mutable_geometry();
  geometry->set_num_layers(options.geometry.num_layers);
  geometry->set_num_kv_heads(options.geometry.num_kv_heads);
  geometry->set_head_dim(options.geometry.head_dim);
  geometry->set_dtype(static_cast<kvstore::v1::DataType>(options.geometry.dtype));
  request.set_model_fingerprint(options.model_fingerprint);
  request.set_num_slots(options.num_slots);
  request.set_log_capacity(options.log_capacity);
  request.set_request_capacity(options.request_capacity);
  return request;
}

}  // namespace retroinfer
