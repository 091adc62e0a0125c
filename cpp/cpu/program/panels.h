// Panels: a few rows of the transposed tensors, which are contiguous along the rows instead of the columns. A thread
// transposes them into its own memory, so that every cache line is used completely.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/program/space.h"

namespace fourfold::cpu {

struct PanelTensor {
  int slot;
  int64_t size;  // bytes of an element
  char* data;    // the tensor's memory
  bool is_output;
};

// For a space whose rows are those of its innermost axis.
class TransposedPanels {
 public:
  static constexpr int64_t most_rows = 32;
  static constexpr int64_t most_bytes = 1 << 19;  // of one tensor's panel: the size of L2 caches

  // rows and columns: the maximum size of a panel. Tensors that aren't transposed have no panel.
  TransposedPanels(const Space& space, const std::vector<PanelTensor>& tensors, int64_t rows, int64_t columns);

  bool empty() const { return tensors_.empty(); }
  int64_t bytes() const;
  void use(char* memory) { memory_ = memory; }

  // Moves the panels to these columns of these rows, which are adjacent along the axis next to the innermost. Copies
  // the inputs' elements into the panels.
  void enter(int64_t row, int64_t rows, int64_t column, int64_t columns);
  // The address of a tensor's at-th element in its panel; null if it has none.
  char* find(int slot, int64_t at) const;
  // Copies the outputs' elements from the panels into the tensors.
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
  int64_t each_;  // the maximum number of elements of a panel
  char* memory_ = nullptr;
  int64_t row_ = 0;
  int64_t rows_ = 0;
  int64_t column_ = 0;
  int64_t columns_ = 0;
};

}  // namespace fourfold::cpu
