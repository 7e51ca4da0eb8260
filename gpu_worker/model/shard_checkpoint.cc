#include "gpu_worker/model/shard_checkpoint.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/cut_tensor.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/shard_config.h"
#include "gpu_worker/model/stored_groups.h"
#include "gpu_worker/model/stored_scales.h"

namespace retroinfer {
namespace {

// What an element of a tensor of a coded matrix is for: so many of the matrix' rows and columns;
// 0: all.
struct Grid {
  int64_t rows_each = 1;
  int64_t cols_each = 1;
  bool transposed = false;  // the tensor has the matrix' columns as its rows
};

// A stored matrix, as the rank has it.
struct Cut {
  std::vector<int64_t> shape;  // of the whole one
  std::vector<Share> rows;     // of the rank, by part
  Share cols;
  bool is_zeros = false;
};

class Sharder {
 public:
  Sharder(const ModelConfig& whole, const ModelConfig& config, const Checkpoint& checkpoint)
      : whole_(whole),
        shard_(*config.shard),
        checkpoint_(checkpoint),
        table_(whole),
        view_(checkpoint.View()) {}

  absl::StatusOr<Checkpoint> Run() {
    for (const auto& [name, stored] : table_.stored()) RETURN_IF_ERROR(Take(name, stored));
    return std::move(view_);
  }

 private:
  const HostTensor& Tensor(const std::string& name) const { return checkpoint_.tensors().at(name); }

  Cut CutOf(const StoredTensor& stored) const {
    Cut cut;
    cut.shape = stored.shape;
    for (const TensorSpec& part : stored.parts) {
      const TensorShare share = ShareOf(part, shard_, whole_.head_dim);
      cut.rows.push_back({part.first_row + share.rows.first, share.rows.count});
      cut.cols = share.cols;
      cut.is_zeros = share.is_zeros;
    }
    return cut;
  }

  absl::Status Take(const std::string& name, const StoredTensor& stored) {
    const auto is_whole = [](const TensorSpec& part) { return part.split == SplitAxis::kNone; };
    if (std::all_of(stored.parts.begin(), stored.parts.end(), is_whole)) return absl::OkStatus();
    const Cut cut = CutOf(stored);
    const std::optional<CodedTensors> codes =
        stored.may_be_coded() ? FindCodes(whole_.quantization, checkpoint_, name) : std::nullopt;
    if (codes.has_value()) return TakeCodes(*codes, cut);
    view_.Replace(name, cut.is_zeros ? ZerosLike(Tensor(name))
                                     : CutTensor(Tensor(name), cut.rows, {cut.cols}));
    return absl::OkStatus();
  }

  absl::Status TakeCodes(const CodedTensors& names, const Cut& cut) {
    const StoredForm& form = whole_.quantization->form;
    const int64_t in_element =
        static_cast<int64_t>(WeightTypeBytes(form.element)) * 8 / form.form.bits;
    RETURN_IF_ERROR(TakeOne(names.codes, GridOfCodes(form.order, in_element, 1), cut));
    // A transposed matrix' scales are so, too.
    RETURN_IF_ERROR(
        TakeOne(names.scales, {form.scale_rows, form.scale_cols, form.order.transposed}, cut));
    if (!names.zeros.empty()) {
      RETURN_IF_ERROR(
          TakeOne(names.zeros, GridOfCodes(form.zeros_order, in_element, form.scale_cols), cut));
    }
    RETURN_IF_ERROR(TakeGroups(names, cut));
    if (!names.shape.empty()) view_.Exchange({names.shape}, {});
    return absl::OkStatus();
  }

  // Of codes in this order, each for `cols_each` columns.
  static Grid GridOfCodes(const CodeOrder& order, int64_t in_element, int64_t cols_each) {
    const bool packs_rows = order.packs_down != order.transposed;
    return {.rows_each = packs_rows ? in_element : 1,
            .cols_each = packs_rows ? cols_each : cols_each * in_element,
            .transposed = order.transposed};
  }

  // Numbers of groups, one of each column.
  absl::Status TakeGroups(const CodedTensors& names, const Cut& cut) {
    if (names.groups.empty() || !checkpoint_.tensors().contains(names.groups)) {
      return absl::OkStatus();
    }
    if (cut.cols.count == cut.shape[1]) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<int32_t> columns,
                     ColumnsByGroup(whole_.quantization->form, names, checkpoint_, cut.shape[1]));
    if (!columns.empty()) {
      return Refuse(names.groups,
                    "orders input features (act order), of which a rank would have some; "
                    "desc_act: false is supported");
    }
    view_.Exchange({names.groups}, {});  // they are side by side, in the rank's part, too
    return absl::OkStatus();
  }

  absl::Status TakeOne(const std::string& name, const Grid& grid, const Cut& cut) {
    if (grid.rows_each == 0 && grid.cols_each == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::vector<Share> rows,
                     Elements(name, cut.rows, grid.rows_each, cut.shape[0], "output features"));
    ASSIGN_OR_RETURN(std::vector<Share> cols,
                     Elements(name, {cut.cols}, grid.cols_each, cut.shape[1], "input features"));
    if (grid.transposed) std::swap(rows, cols);
    view_.Replace(name, CutTensor(Tensor(name), rows, cols));
    return absl::OkStatus();
  }

  // The elements of a tensor that are for these rows or columns, `total` in all.
  absl::StatusOr<std::vector<Share>> Elements(const std::string& name,
                                              const std::vector<Share>& shares, int64_t each,
                                              int64_t total, const char* what) const {
    if (each == 0) return std::vector<Share>{{0, 1}};
    std::vector<Share> elements;
    for (size_t i = 0; i < shares.size(); ++i) {
      const Share& share = shares[i];
      const bool is_last = i + 1 == shares.size() && share.first + share.count == total;
      if (share.first % each != 0 || (share.count % each != 0 && !is_last)) {
        return Refuse(name, absl::StrCat("has an element for ", each, " ", what,
                                         ", of which a rank would have ", share.first, " to ",
                                         share.first + share.count,
                                         "; fewer ranks, or other weights, are supported"));
      }
      elements.push_back({share.first / each, (share.count + each - 1) / each});
    }
    return elements;
  }

  absl::Status Refuse(const std::string& name, const std::string& problem) const {
    return absl::UnimplementedError(absl::StrCat(checkpoint_.folder(), ": tensor \"", name,
                                                 "\" split over ", shard_.parallel.num_ranks,
                                                 " ranks: ", problem));
  }

  const ModelConfig& whole_;
  const ModelShard& shard_;
  const Checkpoint& checkpoint_;
  const ModelTable table_;
  Checkpoint view_;
};

}  // namespace

absl::StatusOr<Checkpoint> ShardCheckpoint(const ModelConfig& whole, const ModelConfig& config,
                                           const Checkpoint& checkpoint) {
  RI_CHECK(config.shard.has_value() && !whole.shard.has_value());
  return Sharder(whole, config, checkpoint).Run();
}

}  // namespace retroinfer
