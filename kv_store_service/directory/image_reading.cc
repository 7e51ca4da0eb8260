#include "kv_store_service/directory/image_reading.h"

namespace retroinfer::kvstore {

ReadImages ReadImagesOf(const Arena& arena, const KvGeometry& geometry,
                        std::span<const ImageToRead> images) {
  ReadImages read;
  for (const ImageToRead& image : images) {
    read.emplace(image.extent_id, ReadSegmentImage(arena.BytesOf(image.pages), geometry,
                                                   image.token_begin, image.token_count));
  }
  return read;
}

}  // namespace retroinfer::kvstore
