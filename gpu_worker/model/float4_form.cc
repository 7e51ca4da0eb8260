#include "gpu_worker/model/float4_form.h"

#include "absl/strings/str_cat.h"

namespace retroinfer {

std::string Float4Form::ToString() const {
  return absl::StrCat(std::string(name), " (", std::string(method), ", a scale for each ", group,
                      " input features)");
}

}  // namespace retroinfer
