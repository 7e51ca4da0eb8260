#include "text/constraint/string_format.h"

#include "absl/container/flat_hash_map.h"

namespace retroinfer::constraint {
namespace {

// Days that each month has, and the 29th of February in years that have one. Years from 1000 on:
// libraries disagree on the year 0.
#define RI_YEAR_4 R"((?:[1-9]\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00))"
#define RI_DATE                                                      \
  "(?:"                                                              \
  R"([1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01]))"      \
  R"(|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))" \
  "|" RI_YEAR_4 "-02-29)"
#define RI_TIME                                        \
  R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?)" \
  R"((?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))"
#define RI_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define RI_HOST RI_LABEL R"((?:\.)" RI_LABEL "){0,7}"
#define RI_BYTE R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"
#define RI_H16 "[0-9A-Fa-f]{1,4}"
#define RI_PCHAR "[A-Za-z0-9._~!$&'()*+,;=:@-]"

// RFC 3339, appendix A.
constexpr std::string_view kDuration =
    R"(P(?:\d{1,6}W|(?:\d{1,6}Y(?:\d{1,6}M(?:\d{1,6}D)?)?|\d{1,6}M(?:\d{1,6}D)?|\d{1,6}D))"
    R"((?:T(?:\d{1,6}H(?:\d{1,6}M(?:\d{1,6}S)?)?|\d{1,6}M(?:\d{1,6}S)?|\d{1,6}S))?)"
    R"(|T(?:\d{1,6}H(?:\d{1,6}M(?:\d{1,6}S)?)?|\d{1,6}M(?:\d{1,6}S)?|\d{1,6}S)))";

// RFC 4291, with at most one "::".
constexpr std::string_view kIpv6 =
    "(?:" RI_H16 ":){7}" RI_H16 "|(?:" RI_H16 ":){1,7}:|(?:" RI_H16 ":){1,6}:" RI_H16 "|(?:" RI_H16
    ":){1,5}(?::" RI_H16 "){1,2}|(?:" RI_H16 ":){1,4}(?::" RI_H16 "){1,3}|(?:" RI_H16
    ":){1,3}(?::" RI_H16 "){1,4}|(?:" RI_H16 ":){1,2}(?::" RI_H16 "){1,5}|" RI_H16 ":(?::" RI_H16
    "){1,6}|:(?::" RI_H16 "){1,7}|::";

constexpr std::string_view kEmail =
    R"([A-Za-z0-9_+-](?:[A-Za-z0-9_+-]{0,40})(?:\.[A-Za-z0-9_+-]{1,20}){0,3}@)" RI_HOST;

constexpr std::string_view kUri =
    R"([A-Za-z][A-Za-z0-9+.-]{0,20}://)" RI_HOST R"((?::\d{1,4})?(?:/(?:)" RI_PCHAR
    R"(|%[0-9A-Fa-f]{2}|/)*)?(?:\?(?:)" RI_PCHAR R"(|[/?]|%[0-9A-Fa-f]{2})*)?(?:#(?:)" RI_PCHAR
    R"(|[/?]|%[0-9A-Fa-f]{2})*)?)";

}  // namespace

std::optional<std::string_view> PatternOfFormat(std::string_view format) {
  static const auto* const kPatterns = new absl::flat_hash_map<std::string_view, std::string_view>{
      {"date", RI_DATE},
      {"time", RI_TIME},
      {"date-time", RI_DATE "T" RI_TIME},
      {"duration", kDuration},
      {"email", kEmail},
      {"hostname", RI_HOST},
      {"ipv4", RI_BYTE R"((?:\.)" RI_BYTE "){3}"},
      {"ipv6", kIpv6},
      {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
      {"uri", kUri},
  };
  const auto found = kPatterns->find(format);
  if (found == kPatterns->end()) return std::nullopt;
  return found->second;
}

#undef RI_YEAR_4
#undef RI_DATE
#undef RI_TIME
#undef RI_LABEL
#undef RI_HOST
#undef RI_BYTE
#undef RI_H16
#undef RI_PCHAR

}  // namespace retroinfer::constraint
