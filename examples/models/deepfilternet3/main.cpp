// Removes noise from sound, as fast as it comes: deepfilternet3 MODEL < SOUND > SOUND, 16-bit mono samples of 48 kHz.
#include <fourfold/model.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t samples = 480;  // a frame of 10 ms
constexpr int delay = 3;          // frames

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "deepfilternet3 MODEL < SOUND > SOUND\n"), 2;
  at::set_num_threads(1);
  fourfold::Stream stream(fourfold::load(words[1]));
  std::vector<int16_t> sound(samples);
  const auto denoised = [&] {
    const at::Tensor x = at::from_blob(sound.data(), {1, samples}, at::kShort).to(at::kFloat).div_(32768);
    return stream({x})[0].toTensor().mul(32768).round_().clamp_(-32768, 32767).to(at::kShort);
  };
  int64_t frame = 0;
  const auto write = [&](const at::Tensor& y) {
    if (frame++ >= delay) std::fwrite(y.const_data_ptr<int16_t>(), sizeof(int16_t), samples, stdout);
  };
  while (std::fread(sound.data(), sizeof(int16_t), samples, stdin) == samples) write(denoised());
  sound.assign(samples, 0);
  for (int rest = 0; rest < delay; ++rest) write(denoised());
  return 0;
}
