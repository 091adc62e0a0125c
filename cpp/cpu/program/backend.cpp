#include "program/backend.h"

#include <torch/headeronly/core/DeviceType.h>

#include <atomic>

#include "cpu/program/loops.h"
#include "cpu/program/run.h"
#include "cpu/program/schedule.h"

namespace fourfold::cpu {
namespace {

using program::Generator;

class Scheduled final : public program::Executable {
 public:
  Scheduled(const program::Program& program, std::string_view text)
      : program_(program), schedule_(schedule(program)), nests_(program::nests_of(text)) {}

  void run(const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs) const override {
    const auto generator = generator_.load(std::memory_order_relaxed);
    if (generator != Generator::interpreter) {
      const Loops loops(program_, sizes, inputs, outputs);
      const bool has_elements = loops.rows() > 0 && loops.columns() > 0;
      const program::Nest* nest = has_elements ? nests_->find(loops.layout(), generator) : nullptr;
      if (nest != nullptr) return loops.run(*nest, program_, schedule_, sizes, inputs, outputs);
    }
    cpu::run(program_, schedule_, sizes, inputs, outputs);
  }

  void use(Generator generator) override { generator_.store(generator, std::memory_order_relaxed); }

 private:
  const program::Program& program_;
  const Schedule schedule_;
  const std::shared_ptr<program::Nests> nests_;
  std::atomic<Generator> generator_{Generator::interpreter};
};

constexpr program::Backend backend{
    .compile = [](const program::Program& program, std::string_view text) -> std::unique_ptr<program::Executable> {
      return std::make_unique<Scheduled>(program, text);
    },
};

const program::BackendRegistration registration(static_cast<int32_t>(torch::headeronly::DeviceType::CPU), backend);

}  // namespace
}  // namespace fourfold::cpu
