// A few rows of the tensors that lie the other way round, whose neighbours in memory are in the next row rather than in the
// next column: transposed into memory of a thread's own, so that every line of the cache that they lie in is used whole.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/program/space.h"

namespace fourfold::cpu {

struct PanelTensor {
  int slot;
  int64_t size;  // of an element
  char* data;    // the tensor's
  bool is_output;
};

// Of a space whose rows are that of its innermost axis.
class Panels {
 public:
  static constexpr int64_t most_rows = 32;
  static constexpr int64_t most_bytes = 1 << 19;  // of one tensor: what second-level caches hold

  // rows and columns: of a panel, at most. Tensors that don't lie so are left out.
  Panels(const Space& space, const std::vector<PanelTensor>& tensors, int64_t rows, int64_t columns);

  bool empty() const { return tensors_.empty(); }
  int64_t bytes() const;
  void use(char* memory) { memory_ = memory; }

  // Which elements the panels hold from now on: these columns of so many rows, which lie side by side along the axis next to
  // the innermost. Brings the inputs' own.
  void enter(int64_t row, int64_t rows, int64_t column, int64_t columns);
  // Where a tensor's at-th element is; null where it has no panel.
  char* find(int slot, int64_t at) const;
  // Puts the outputs' elements where they belong.
  void leave() const;

 private:
  struct Panel {
    PanelTensor tensor;
    int64_t begin;  // in the panels' memory
  };

  template <typename F>
  void for_tiles(bool outputs, const F& f) const;

  const Space& space_;
  std::vector<Panel> tensors_;
  int64_t each_;  // elements of a panel, at most
  char* memory_ = nullptr;
  int64_t row_ = 0;
  int64_t rows_ = 0;
  int64_t column_ = 0;
  int64_t columns_ = 0;
};

}  // namespace fourfold::cpu
