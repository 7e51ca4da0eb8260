#include "common/hash/segment_name.h"

namespace retroinfer::common {

Hash256 SaltHash(std::string_view salt) {
  return Sha256("retroinfer cache salt").AddU64(salt.size()).Add(salt).Finish();
}

Hash256 SaltHashOfForm(const Hash256& salt_hash, std::string_view how) {
  return Sha256("retroinfer form of KV").Add(salt_hash).AddU64(how.size()).Add(how).Finish();
}

Hash256 FingerprintHash(std::string_view fingerprint) {
  return Sha256("retroinfer model fingerprint")
      .AddU64(fingerprint.size())
      .Add(fingerprint)
      .Finish();
}

SegmentName RootName(std::string_view fingerprint, const Hash256& salt_hash,
                     uint32_t format_version) {
  return Sha256("retroinfer segment root")
      .Add(FingerprintHash(fingerprint))
      .Add(salt_hash)
      .AddU32(format_version)
      .Finish();
}

SegmentName NameSegment(const SegmentName& parent, std::span<const int32_t> token_ids) {
  return Sha256("retroinfer segment")
      .Add(parent)
      .AddU64(token_ids.size())
      .AddI32s(token_ids)
      .Finish();
}

SegmentName NameGenerated(const SegmentName& parent, std::span<const int32_t> token_ids,
                          const Provenance& provenance) {
  return Sha256("retroinfer generated KV")
      .Add(parent)
      .AddU64(token_ids.size())
      .AddI32s(token_ids)
      .Add(provenance.made_by)
      .Add(provenance.sources)
      .Add(provenance.text)
      .Finish();
}

}  // namespace retroinfer::common
