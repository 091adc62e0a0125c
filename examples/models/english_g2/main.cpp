// Prints the text of a line, dark on light: english_g2 MODEL IMAGE, a binary PGM file of 8 bits.
#include <fourfold/model.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view first = R"(0123456789!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~ )";  // classes from 1; then €
constexpr std::string_view last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr int64_t height = 64;

// Pixels of -1 to 1, (1, 1, 64, width).
at::Tensor image(const char* path) {
  std::ifstream file(path, std::ios::binary);
  int64_t sizes[3] = {};  // width, height, largest value
  std::string word;
  file >> word;
  for (int64_t& size : sizes) {
    while (file >> std::ws && file.peek() == '#') file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    file >> size;
  }
  file.get();
  const auto [w, h, largest] = sizes;
  if (word != "P5" || !file || largest != 255 || w < 1 || h < 1) return {};
  at::Tensor pixels = at::empty({1, 1, h, w}, at::kByte);
  if (!file.read(reinterpret_cast<char*>(pixels.mutable_data_ptr()), w * h)) return {};
  pixels = pixels.to(at::kFloat).div_(127.5).sub_(1);
  return h == height ? pixels : at::upsample_bilinear2d(pixels, {height, (w * height + h - 1) / h}, false);
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return std::fprintf(stderr, "english_g2 MODEL IMAGE\n"), 2;
  at::set_num_threads(1);
  const at::Tensor x = image(words[2]);
  if (!x.defined()) return std::fprintf(stderr, "%s: expected a binary PGM file of 8 bits\n", words[2]), 1;
  const at::Tensor classes = fourfold::load(words[1])({x})[0].toTensor()[0].argmax(-1);
  const auto* c = classes.const_data_ptr<int64_t>();
  std::string text;
  for (int64_t i = 0; i < classes.numel(); ++i) {  // greedy CTC decoding
    if (c[i] == 0 || (i > 0 && c[i] == c[i - 1])) continue;
    const auto place = static_cast<size_t>(c[i]) - 1;
    if (place == first.size()) {
      text += "€";
    } else {
      text += place < first.size() ? first[place] : last[place - first.size() - 1];
    }
  }
  std::printf("%s\n", text.c_str());
  return 0;
}
