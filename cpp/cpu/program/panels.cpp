#include "cpu/program/panels.h"

#include "cpu/kernels/transpose_tile.h"

namespace fourfold::cpu {

TransposedPanels::TransposedPanels(
    const Space& space, const std::vector<PanelTensor>& tensors, int64_t rows, int64_t columns)
    : space_(space), each_(rows * columns) {
  for (const PanelTensor& tensor : tensors) {
    if (space.lies_across(tensor.slot) && each_ * tensor.size <= most_bytes) tensors_.push_back({tensor, 0});
  }
  for (size_t k = 1; k < tensors_.size(); ++k) {
    tensors_[k].begin = tensors_[k - 1].begin + (each_ * tensors_[k - 1].tensor.size + 63) / 64 * 64;
  }
}

int64_t TransposedPanels::bytes() const {
  return empty() ? 0 : tensors_.back().begin + each_ * tensors_.back().tensor.size;
}

template <typename F>
void TransposedPanels::for_tiles(bool outputs, const F& f) const {
  for (const Panel& panel : tensors_) {
    if (panel.tensor.is_output != outputs) continue;
    const int64_t offset = space_.offset(panel.tensor.slot, row_ * space_.row() + column_);
    f(panel.tensor, memory_ + panel.begin, panel.tensor.data + offset * panel.tensor.size, space_.step(panel.tensor.slot));
  }
}

void TransposedPanels::enter(int64_t row, int64_t rows, int64_t column, int64_t columns) {
  row_ = row, rows_ = rows, column_ = column, columns_ = columns;
  for_tiles(false, [&](const PanelTensor& tensor, char* panel, const char* data, int64_t step) {
    transpose_tile(tensor.size, data, step, panel, columns_, rows_, columns_);
  });
}

char* TransposedPanels::find(int slot, int64_t at) const {
  for (const Panel& panel : tensors_) {
    if (panel.tensor.slot != slot) continue;
    const int64_t row = at / space_.row();
    const int64_t index = (row - row_) * columns_ + at - row * space_.row() - column_;
    return memory_ + panel.begin + index * panel.tensor.size;
  }
  return nullptr;
}

void TransposedPanels::leave() const {
  for_tiles(true, [&](const PanelTensor& tensor, const char* panel, char* data, int64_t step) {
    transpose_tile(tensor.size, panel, columns_, data, step, columns_, rows_);
  });
}

}  // namespace fourfold::cpu
