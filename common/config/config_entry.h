// A setting in a file.
#pragma once

#include <string>
#include <vector>

namespace retroinfer::common {

struct ConfigEntry {
  std::string name;                 // "arena-bytes"
  std::vector<std::string> values;  // one, or those of a list
  int line = 0;                     // from 1
  int column = 0;                   // of the value, from 1; 0: unknown
};

}  // namespace retroinfer::common
