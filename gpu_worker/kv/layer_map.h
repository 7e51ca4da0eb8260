// Which layers of a model are of which kind.
//
// An *indexed* layer sees all tokens: its KV is what policies, segments and the index are about. A
// *window* layer sees the newest tokens only: its KV lives in rings (window_layers.h). Each kind
// counts its own layers from 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace retroinfer {

// Threads: constant after construction.
class LayerMap {
 public:
  struct Place {
    bool is_window = false;
    uint32_t number = 0;  // among the layers of its kind
  };

  // Of a model whose layers are all indexed.
  explicit LayerMap(uint32_t num_layers) : LayerMap(num_layers, {}) {}
  // `windows`: by layer, the tokens that it sees; 0: all. Empty: all layers see all.
  LayerMap(uint32_t num_layers, std::span<const int32_t> windows) {
    uint32_t num_indexed = 0, num_windows = 0;
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      const bool is_window = !windows.empty() && windows[layer] > 0;
      places_.push_back({is_window, is_window ? num_windows++ : num_indexed++});
    }
  }

  uint32_t num_layers() const { return static_cast<uint32_t>(places_.size()); }
  // REQUIRES: layer < num_layers().
  const Place& operator[](uint32_t layer) const { return places_[layer]; }

 private:
  std::vector<Place> places_;
};

}  // namespace retroinfer
