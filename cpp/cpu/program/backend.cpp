#include "program/backend.h"

#include <torch/headeronly/core/DeviceType.h>

#include "cpu/program/run.h"
#include "cpu/program/schedule.h"

namespace fourfold::cpu {
namespace {

class Scheduled final : public program::Executable {
 public:
  explicit Scheduled(const program::Program& program) : program_(program), schedule_(schedule(program)) {}

  void run(const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs) const override {
    cpu::run(program_, schedule_, sizes, inputs, outputs);
  }

 private:
  const program::Program& program_;
  const Schedule schedule_;
};

constexpr program::Backend backend{
    .compile = [](const program::Program& program) -> std::unique_ptr<const program::Executable> {
      return std::make_unique<Scheduled>(program);
    },
};

const program::BackendRegistration registration(static_cast<int32_t>(torch::headeronly::DeviceType::CPU), backend);

}  // namespace
}  // namespace fourfold::cpu
