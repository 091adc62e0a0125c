// Prints where sound has speech, in seconds: silero_vad MODEL < SOUND, 16-bit mono samples of 16 kHz.
#include <fourfold/model.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t samples = 512;  // a frame of 32 ms
constexpr double frames_per_second = 16000.0 / samples;
constexpr float begins = 0.5F, ends = 0.35F;  // probabilities, as in silero-vad's VADIterator

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "silero_vad MODEL < SOUND\n"), 2;
  at::set_num_threads(1);
  fourfold::Stream stream(fourfold::load(words[1]));
  std::vector<int16_t> sound(samples);
  bool is_speech = false;
  int64_t frame = 0;
  for (; std::fread(sound.data(), sizeof(int16_t), samples, stdin) == samples; ++frame) {
    const at::Tensor x = at::from_blob(sound.data(), {1, samples}, at::kShort).to(at::kFloat).div_(32768);
    const auto probability = stream({x})[0].toTensor().item<float>();
    if (is_speech ? probability >= ends : probability < begins) continue;
    is_speech = !is_speech;
    std::printf(is_speech ? "%.2f" : " to %.2f\n", static_cast<double>(frame) / frames_per_second);
  }
  if (is_speech) std::printf(" to %.2f\n", static_cast<double>(frame) / frames_per_second);
  return 0;
}
