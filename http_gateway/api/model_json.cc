#include "http_gateway/api/model_json.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {

std::string ModelJson(const std::string& name, int64_t created, int64_t max_model_len) {
  const std::string date =
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(created), absl::UTCTimeZone());
  return absl::StrCat(R"({"id":)", JsonString(name), R"(,"object":"model","created":)", created,
                      R"(,"owned_by":"retroinfer","max_model_len":)", max_model_len,
                      R"(,"type":"model","display_name":)", JsonString(name), R"(,"created_at":)",
                      JsonString(date), "}");
}

std::string ModelListJson(const std::vector<std::string>& names, int64_t created,
                          int64_t max_model_len) {
  std::string json = R"({"object":"list","data":[)";
  for (const std::string& name : names) {
    absl::StrAppend(&json, json.back() == '[' ? "" : ",", ModelJson(name, created, max_model_len));
  }
  return absl::StrCat(json, R"(],"has_more":false,"first_id":)", JsonString(names.front()),
                      R"(,"last_id":)", JsonString(names.back()), "}");
}

}  // namespace retroinfer::gateway
